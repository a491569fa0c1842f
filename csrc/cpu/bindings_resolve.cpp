// Torch's side of the resolves and of pack_block on the CPU.
#include "cpu/resolve.h"
#include "cpu/torch_workers.h"
#include "ops.h"

namespace packed_ss::cpu {

void pack_block(PACKED_SS_PACK_PARAMETERS) {
  const PackCall call = pack_call(PACKED_SS_PACK_ARGUMENTS);
  pack_block(call.state, call.next);
}

void resolve_greedy(PACKED_SS_RESOLVE_PARAMETERS) {
  resolve_greedy(resolve_call("resolve_greedy", PACKED_SS_RESOLVE_ARGUMENTS), TorchWorkers());
}

void resolve_coupled(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS) {
  constexpr const char* kOp = "resolve_coupled";
  const ResolveCall call = resolve_call(kOp, PACKED_SS_RESOLVE_ARGUMENTS);
  resolve_coupled(call, sampling_of(kOp, logits, PACKED_SS_SAMPLING_ARGUMENTS), TorchWorkers());
}

void resolve_rejection(PACKED_SS_RESOLVE_PARAMETERS, PACKED_SS_SAMPLING_PARAMETERS, const at::Tensor& draft_log_q) {
  constexpr const char* kOp = "resolve_rejection";
  const ResolveCall call = resolve_call(kOp, PACKED_SS_RESOLVE_ARGUMENTS);
  const Sampling sampling = sampling_of(kOp, logits, PACKED_SS_SAMPLING_ARGUMENTS);
  check_draft_log_q(kOp, logits, block_size, draft_log_q);
  resolve_rejection(call, sampling, draft_log_q.mutable_data_ptr(), TorchWorkers());
}

}  // namespace packed_ss::cpu
