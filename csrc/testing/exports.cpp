// The launchers of csrc/cuda for tests, one line each; tests/host_cuda/operators.py has their argument structs.
#include "exports.h"

#include "../cuda/operators.h"
#include "packed_ss/uniform_noise.h"

namespace {

using packed_ss::cuda::ArgmaxRows;
using packed_ss::cuda::DrawRows;
using packed_ss::cuda::VerifyRows;
using packed_ss::host_cuda::measure;

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
