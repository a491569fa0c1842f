// The native operators of torch.ops.packed_ss. Their schemas and their plain-torch versions are in packed_ss/ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// The operators that have a native kernel, by device: a line here registers it and lists it in info().
#define PACKED_SS_CPU_KERNELS(KERNEL) KERNEL(uniform_noise)
#define PACKED_SS_CUDA_KERNELS(KERNEL) KERNEL(uniform_noise)

namespace packed_ss {

// Refuses shapes, dtypes and ranges that uniform_noise does not accept (ValueError in Python).
void check_uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size);

namespace cpu {
at::Tensor uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size);
}  // namespace cpu

#ifdef PACKED_SS_WITH_CUDA
namespace cuda {
at::Tensor uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size);
}  // namespace cuda
#endif

}  // namespace packed_ss
