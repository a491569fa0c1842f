// The launchers of the ordered layout for tests, as exports.cpp has the others; tests/host_cuda/ordered.py has their argument
// structs.
#include "exports.h"

#include "../cuda/ordered.h"

using packed_ss::cuda::ArgmaxRows;
using packed_ss::cuda::DrawRows;
using packed_ss::cuda::VerifyRows;
using packed_ss::host_cuda::measure;

PACKED_SS_EXPORT(argmax_rows, packed_ss::cuda::launch_argmax_rows)
PACKED_SS_EXPORT(draw_rows, packed_ss::cuda::launch_draw_rows)
PACKED_SS_EXPORT(verify_rows, packed_ss::cuda::launch_verify_rows)
PACKED_SS_EXPORT(argmax_rows_workspace, (measure<ArgmaxRows, packed_ss::cuda::argmax_rows_workspace_bytes>))
PACKED_SS_EXPORT(draw_rows_workspace, (measure<DrawRows, packed_ss::cuda::draw_rows_workspace_bytes>))
PACKED_SS_EXPORT(verify_rows_workspace, (measure<VerifyRows, packed_ss::cuda::verify_rows_workspace_bytes>))
PACKED_SS_EXPORT(resolve_ordered, packed_ss::cuda::launch_resolve_ordered)
PACKED_SS_EXPORT(resolve_native, packed_ss::cuda::launch_resolve_native)
PACKED_SS_EXPORT(compact_cache, packed_ss::cuda::launch_compact_cache)
PACKED_SS_EXPORT(pack_ordered, packed_ss::cuda::launch_pack_ordered)
