#include "device_loop.h"

#include "launch.h"

#if !defined(CUDART_VERSION) || CUDART_VERSION >= 12040

namespace packed_ss::cuda {
namespace {

// One block: reads 4 bytes for each sequence, writes 4 and the handle.
__global__ void __launch_bounds__(kLoopConditionThreads)
    loop_condition(LoopCondition args, bool reset, cudaGraphConditionalHandle handle) {
  bool running = false;
  for (std::int64_t i = threadIdx.x; i < args.sequences; i += kLoopConditionThreads) {
    running = running || args.finish_reason[i] == 0;
  }
  running = __syncthreads_or(running) != 0;
  if (threadIdx.x == 0) {
    const std::int32_t iterations = reset ? 0 : *args.iterations + 1;
    *args.iterations = iterations;
    cudaGraphSetConditional(handle, running && iterations < args.limit);
  }
}

}  // namespace

const void* loop_condition_kernel() { return reinterpret_cast<const void*>(&loop_condition); }

}  // namespace packed_ss::cuda

#endif
