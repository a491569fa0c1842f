// Torch's side of the CUDA resolves and pack_block: checks, workspace, current device and stream. Built only where torch has
// CUDA.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/resolve.h"
#include "ops.h"

namespace packed_ss::cuda {
namespace {

void check_element(const char* op, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(logits.scalar_type() != at::kDouble, op, ": logits on a GPU must be Float, BFloat16 or Half, got ",
                    logits.scalar_type(), ".");
  TORCH_CHECK_VALUE(logits.size(2) <= kMaxVocabSize, op, ": logits on a GPU must have V in 1 ... 2^30, got ", logits.sizes(),
                    ".");
}

// The memory comes from torch's allocator, which orders its reuse after the kernels and serves captures too.
void run(Resolve args, const at::Tensor& logits, std::int64_t (*workspace_bytes)(const Resolve&),
         int (*launch)(const Resolve&, CUstream_st*)) {
  const c10::cuda::CUDAGuard guard(logits.device());
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, logits.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch(args, c10::cuda::getCurrentCUDAStream().stream())));
}

}  // namespace

void pack_block(PACKED_SS_PACK_PARAMETERS) {
  const PackCall call = pack_call(PACKED_SS_PACK_ARGUMENTS);
  const c10::cuda::CUDAGuard guard(tokens.device());
  const PackBlock args{call.state, call.next};
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_pack_block(args, c10::cuda::getCurrentCUDAStream().stream())));
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
