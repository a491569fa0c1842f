// The launchers of csrc/cuda for tests, one line each; tests/host_cuda/operators.py has their argument structs.
#include "exports.h"

#include "../cuda/operators.h"
#include "packed_ss/tail_mask.h"
#include "packed_ss/uniform_noise.h"

namespace {

using packed_ss::cuda::ArgmaxRows;
using packed_ss::cuda::DrawRows;
using packed_ss::cuda::VerifyRows;
using packed_ss::host_cuda::measure;

struct TailMask {
  packed_ss::BlockShape shape;
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
PACKED_SS_EXPORT(argmax_rows, packed_ss::cuda::launch_argmax_rows)
PACKED_SS_EXPORT(draw_rows, packed_ss::cuda::launch_draw_rows)
PACKED_SS_EXPORT(verify_rows, packed_ss::cuda::launch_verify_rows)
PACKED_SS_EXPORT(pack_block, packed_ss::cuda::launch_pack_block)
PACKED_SS_EXPORT(pack_ordered, packed_ss::cuda::launch_pack_ordered)
PACKED_SS_EXPORT(advance_block, packed_ss::cuda::launch_advance_block)
PACKED_SS_EXPORT(advance_ordered, packed_ss::cuda::launch_advance_ordered)
PACKED_SS_EXPORT(advance_native, packed_ss::cuda::launch_advance_native)
PACKED_SS_EXPORT(compact_cache, packed_ss::cuda::launch_compact_cache)
PACKED_SS_EXPORT(argmax_rows_workspace, (measure<ArgmaxRows, packed_ss::cuda::argmax_rows_workspace_bytes>))
PACKED_SS_EXPORT(draw_rows_workspace, (measure<DrawRows, packed_ss::cuda::draw_rows_workspace_bytes>))
PACKED_SS_EXPORT(verify_rows_workspace, (measure<VerifyRows, packed_ss::cuda::verify_rows_workspace_bytes>))
PACKED_SS_EXPORT(tail_mask, tail_mask)
