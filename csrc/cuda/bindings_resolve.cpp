// Torch's side of the CUDA resolves and pack_block: checks, workspace, current device and stream. Built only where torch has
// CUDA.
#include "cuda/bindings_launch.h"
#include "ops.h"

namespace packed_ss::cuda {

void pack_block(PACKED_SS_PACK_PARAMETERS) {
  const PackCall call = pack_call(PACKED_SS_PACK_ARGUMENTS);
  run(PackBlock{call.state, call.next}, tokens, launch_pack_block);
}

void resolve_greedy(PACKED_SS_RESOLVE_PARAMETERS) {
  constexpr const char* kOp = "resolve_greedy";
  Resolve args{};
  args.call = resolve_call(kOp, PACKED_SS_RESOLVE_ARGUMENTS);
  check_element(kOp, logits);
  run(args, logits, resolve_greedy_workspace_bytes, launch_resolve_greedy);
}

void resolve_coupled(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS) {
  constexpr const char* kOp = "resolve_coupled";
  Resolve args{};
  args.call = resolve_call(kOp, PACKED_SS_RESOLVE_ARGUMENTS);
  check_element(kOp, logits);
  args.sampling = sampling_of(kOp, logits, PACKED_SS_SAMPLING_ARGUMENTS);
  run(args, logits, resolve_coupled_workspace_bytes, launch_resolve_coupled);
}

void resolve_rejection(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS, const at::Tensor& draft_log_q) {
  constexpr const char* kOp = "resolve_rejection";
  Resolve args{};
  args.call = resolve_call(kOp, PACKED_SS_RESOLVE_ARGUMENTS);
  check_element(kOp, logits);
  args.sampling = sampling_of(kOp, logits, PACKED_SS_SAMPLING_ARGUMENTS);
  check_draft_log_q(kOp, logits, block_size, draft_log_q);
  args.draft_log_q = draft_log_q.mutable_data_ptr<float>();
  run(args, logits, resolve_rejection_workspace_bytes, launch_resolve_rejection);
}

}  // namespace packed_ss::cuda
