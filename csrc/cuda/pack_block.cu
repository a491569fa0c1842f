#include "block_team.cuh"
#include "launch.h"
#include "operators.h"
#include "packed_ss/advance_block.h"

namespace packed_ss::cuda {
namespace {

// A few blocks are one sequence. All of them read its draft, 4 W bytes; together they write 16 bytes a row.
__global__ void __launch_bounds__(kMostTeam, 1) pack_block_kernel(PackBlock args, unsigned blocks) {
  const std::int64_t i = blockIdx.x / blocks;
  const std::int32_t kappa = draft_length(args.state, i, false, BlockTeam{});
  const std::int64_t step = std::int64_t{blocks} * blockDim.x;
  for (std::int64_t r = first_item(blocks); r < args.rows.shape.rows(); r += step) {
    write_block_row(args.state, args.rows, i, r, kappa);
  }
}

}  // namespace

int launch_pack_block(const PackBlock& args, CUstream_st* stream) {
  if (args.state.sequences == 0) return cudaSuccess;
  const TeamGrid grid = team_grid(args.rows.shape.rows());
  const std::int64_t blocks = args.state.sequences * grid.blocks;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  PACKED_SS_LAUNCH(pack_block_kernel, static_cast<unsigned>(blocks), grid.threads, 0, stream, args,
                   static_cast<unsigned>(grid.blocks));
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
