#include "packed_ss/pack_ordered.h"

#include "block_team.cuh"
#include "launch.h"
#include "operators.h"

namespace packed_ss::cuda {
namespace {

// A few blocks are one sequence. All of them read its window, 8 W + 4 P bytes; together they write 16 bytes a row, and 4 for each
// word of its mask.
__global__ void __launch_bounds__(kMostTeam, 1) pack_ordered_kernel(PackOrdered args, unsigned blocks) {
  PACKED_SS_SHARED(words, std::uint32_t[kWindowWords]);
  const std::int64_t i = blockIdx.x / blocks;
  const DraftBits bits = find_draft_bits(args.state, args.rows.shape, i, false, words, BlockTeam{});
  const std::int64_t step = std::int64_t{blocks} * blockDim.x;
  for (std::int64_t item = first_item(blocks); item < ordered_items(args.rows); item += step) {
    write_ordered_item(args.state, args.rows, i, item, bits);
  }
}

}  // namespace

int launch_pack_ordered(const PackOrdered& args, CUstream_st* stream) {
  if (args.state.sequences == 0) return cudaSuccess;
  const TeamGrid grid = team_grid(ordered_items(args.rows));
  if (grid.blocks > INT32_MAX || args.state.sequences * grid.blocks > INT32_MAX) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>(args.state.sequences * grid.blocks);
  PACKED_SS_LAUNCH(pack_ordered_kernel, blocks, grid.threads, 0, stream, args, static_cast<unsigned>(grid.blocks));
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
