// What torch's side of the CUDA kernels does in each of them: current device and stream, workspace, errors of launches.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/resolve.h"

namespace packed_ss::cuda {

// Refuses logits that the kernels have no element for, or more ids than fit.
inline void check_element(const char* op, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(logits.scalar_type() != at::kDouble, op, ": logits on a GPU must be Float, BFloat16 or Half, got ",
                    logits.scalar_type(), ".");
  TORCH_CHECK_VALUE(logits.size(2) <= kMaxVocabSize, op, ": logits on a GPU must have V in 1 ... 2^30, got ", logits.sizes(),
                    ".");
}

// Launches on the device that `where` is on.
template <class Arguments>
void run(const Arguments& args, const at::Tensor& where, int (*launch)(const Arguments&, CUstream_st*)) {
  const c10::cuda::CUDAGuard guard(where.device());
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch(args, c10::cuda::getCurrentCUDAStream().stream())));
}

// The same of arguments with a workspace. Its memory comes from torch's allocator, which orders its reuse after the kernels and
// serves captures too.
template <class Arguments>
void run(Arguments args, const at::Tensor& where, std::int64_t (*workspace_bytes)(const Arguments&),
         int (*launch)(const Arguments&, CUstream_st*)) {
  const c10::cuda::CUDAGuard guard(where.device());
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, where.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(args, where, launch);
}

}  // namespace packed_ss::cuda
