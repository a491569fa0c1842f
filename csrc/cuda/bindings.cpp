// Torch's side of the CUDA kernels: checks, allocation, current device and stream. Built only where torch has CUDA.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops.h"
#include "packed_ss/uniform_noise.h"

namespace packed_ss::cuda {

at::Tensor uniform_noise(const at::Tensor& seed, const at::Tensor& position, std::int64_t stream, std::int64_t vocab_size) {
  check_uniform_noise(seed, position, stream, vocab_size);
  const c10::cuda::CUDAGuard guard(position.device());
  const at::Tensor seeds = seed.contiguous();
  const at::Tensor positions = position.contiguous();
  at::Tensor out = at::empty({positions.size(0), positions.size(1), vocab_size}, positions.options().dtype(at::kFloat));
  const UniformNoise args{seeds.const_data_ptr<std::int64_t>(),
                          positions.const_data_ptr<std::int32_t>(),
                          positions.size(0),
                          positions.size(1),
                          static_cast<std::uint32_t>(stream),
                          vocab_size,
                          out.mutable_data_ptr<float>()};
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_uniform_noise(args, c10::cuda::getCurrentCUDAStream().stream())));
  return out;
}

}  // namespace packed_ss::cuda
