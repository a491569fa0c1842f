// How a kernel is launched and how shared memory is declared, in one spelling for nvcc and for the C++ compiler that builds
// the same sources for tests (csrc/testing). Where nvcc does not compile, <cuda_runtime.h> is csrc/testing/shim's, which defines
// these macros too; a plain <<<>>> or __shared__ does not compile there.
//
//   PACKED_SS_LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...)
//       kernel<<<grid, block, shared_bytes, stream>>>(arguments...). Template arguments with a comma need parentheses around the
//       kernel: PACKED_SS_LAUNCH((kernel<float, true>), ...).
//   PACKED_SS_SHARED(name, type)           static shared memory: PACKED_SS_SHARED(best, float[32]);
//   PACKED_SS_DYNAMIC_SHARED(name, type)   `type* name` to the shared_bytes of the launch, 16-byte aligned
#pragma once

#include <cuda_runtime.h>

#ifdef __CUDACC__

namespace packed_ss::cuda {
template <typename T>
using Same = T;  // lets an array type stand in front of the name it declares
}  // namespace packed_ss::cuda

#define PACKED_SS_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
#define PACKED_SS_SHARED(name, ...) __shared__::packed_ss::cuda::Same<__VA_ARGS__> name
#define PACKED_SS_DYNAMIC_SHARED(name, ...)                                       \
  extern __shared__ __align__(16) unsigned char packed_ss_dynamic_shared_bytes[]; \
  __VA_ARGS__* const name = reinterpret_cast<__VA_ARGS__*>(packed_ss_dynamic_shared_bytes)

#endif
