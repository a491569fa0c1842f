// The launchers of csrc/cuda for tests, one line each; tests/host_cuda/backend.py has their argument structs.
#include "exports.h"

#include "../cuda/resolve.h"
#include "packed_ss/tail_mask.h"
#include "packed_ss/uniform_noise.h"

namespace {

using packed_ss::cuda::Resolve;
using packed_ss::host_cuda::measure;

struct TailMask {
  packed_ss::CallShape shape;
  std::int32_t* words;    // [rows, ceil(rows / 32)]: tail_mask_word
  std::int32_t* visible;  // [rows, rows]: what is_visible reads in them
};

// No launcher, but called as they are.
int tail_mask(const TailMask& args, CUstream_st*) {
  const std::int64_t rows = args.shape.rows();
  const std::int64_t words = (rows + 31) / 32;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int32_t* const of_row = args.words + r * words;
    for (std::int64_t w = 0; w < words; ++w) of_row[w] = packed_ss::tail_mask_word(args.shape, r, w);
    for (std::int64_t s = 0; s < rows; ++s) args.visible[r * rows + s] = packed_ss::is_visible(of_row, s);
  }
  return cudaSuccess;
}

}  // namespace

PACKED_SS_EXPORT_RUNTIME
PACKED_SS_EXPORT(uniform_noise, packed_ss::cuda::launch_uniform_noise)
PACKED_SS_EXPORT(pack_block, packed_ss::cuda::launch_pack_block)
PACKED_SS_EXPORT(resolve_greedy, packed_ss::cuda::launch_resolve_greedy)
PACKED_SS_EXPORT(resolve_coupled, packed_ss::cuda::launch_resolve_coupled)
PACKED_SS_EXPORT(resolve_rejection, packed_ss::cuda::launch_resolve_rejection)
PACKED_SS_EXPORT(resolve_greedy_workspace, (measure<Resolve, packed_ss::cuda::resolve_greedy_workspace_bytes>))
PACKED_SS_EXPORT(resolve_coupled_workspace, (measure<Resolve, packed_ss::cuda::resolve_coupled_workspace_bytes>))
PACKED_SS_EXPORT(resolve_rejection_workspace, (measure<Resolve, packed_ss::cuda::resolve_rejection_workspace_bytes>))
PACKED_SS_EXPORT(tail_mask, tail_mask)
