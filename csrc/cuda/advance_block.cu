#include "packed_ss/advance_block.h"

#include "block_team.cuh"
#include "launch.h"
#include "operators.h"

// What follows the tokens of a call in the block layout: accept, truncate, append, retain, and the next call's rows.
namespace packed_ss::cuda {
namespace {

// One block is one sequence. Reads the tokens of its verifier rows and of the rows that stay open, 4 (v + W) bytes (8 v + 4 W
// with `accepted`), and as much of the state; writes 4 (a + 3 W + 5) bytes of the state, and 16 for each of the next rows.
__global__ void __launch_bounds__(kMostTeam, 1) advance_block_kernel(AdvanceBlock args) {
  advance_block_sequence(args, blockIdx.x, BlockTeam{});
}

}  // namespace

int launch_advance_block(const AdvanceBlock& args, CUstream_st* stream) {
  const std::int64_t sequences = args.state.sequences;
  if (sequences == 0) return cudaSuccess;
  if (sequences > INT32_MAX) return cudaErrorInvalidValue;
  const std::int64_t next_rows = args.next.ids == nullptr ? 0 : args.next.shape.rows();
  const unsigned threads = team_threads(next_rows > args.state.width ? next_rows : args.state.width);
  PACKED_SS_LAUNCH(advance_block_kernel, static_cast<unsigned>(sequences), threads, 0, stream, args);
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
