// The launchers of csrc/cuda for tests, one line each; tests/host_cuda/backend.py has their argument structs.
#include "exports.h"

#include "../cuda/resolve.h"
#include "packed_ss/uniform_noise.h"

namespace {

using packed_ss::cuda::Resolve;

// In place of a launcher: puts the size of the workspace where the workspace would be.
template <std::int64_t (*kBytes)(const Resolve&)>
int measure(const Resolve& args, CUstream_st*) {
  *static_cast<std::int64_t*>(args.workspace) = kBytes(args);
  return cudaSuccess;
}

}  // namespace

PACKED_SS_EXPORT_RUNTIME
PACKED_SS_EXPORT(uniform_noise, packed_ss::cuda::launch_uniform_noise)
PACKED_SS_EXPORT(pack_block, packed_ss::cuda::launch_pack_block)
PACKED_SS_EXPORT(resolve_greedy, packed_ss::cuda::launch_resolve_greedy)
PACKED_SS_EXPORT(resolve_coupled, packed_ss::cuda::launch_resolve_coupled)
PACKED_SS_EXPORT(resolve_rejection, packed_ss::cuda::launch_resolve_rejection)
PACKED_SS_EXPORT(resolve_greedy_workspace, measure<packed_ss::cuda::resolve_greedy_workspace_bytes>)
PACKED_SS_EXPORT(resolve_coupled_workspace, measure<packed_ss::cuda::resolve_coupled_workspace_bytes>)
PACKED_SS_EXPORT(resolve_rejection_workspace, measure<packed_ss::cuda::resolve_rejection_workspace_bytes>)
