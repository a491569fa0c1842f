// The whole generation as one launch: a CUDA graph whose WHILE node repeats a captured iteration until every sequence has
// finished. Free of torch. CUDA 12.4 brought WHILE nodes; the driver must be as new.
//
//   condition (reset) ──▶ WHILE { iteration, a child graph ──▶ condition }
#pragma once

#include <cstdint>
#include <string>

struct CUgraph_st;
struct CUgraphExec_st;
struct CUstream_st;

namespace packed_ss::cuda {

// What decides whether another iteration runs. The pointers are device pointers.
struct LoopCondition {
  const std::int32_t* finish_reason;  // [sequences], 0 while a sequence is running
  std::int64_t sequences;
  std::int32_t* iterations;  // [1], out: how many iterations the launch has run
  std::int32_t limit;        // no more than so many, whatever finish_reason says
};

// device_loop.cu: a kernel of one block, with the parameters (LoopCondition, bool reset, cudaGraphConditionalHandle). It counts
// an iteration (or, to reset, starts at 0) and sets the handle to whether another one runs.
constexpr unsigned kLoopConditionThreads = 128;
const void* loop_condition_kernel();

// Why there can be no DeviceLoop here, in one sentence; empty where runtime and driver have what it takes.
std::string device_loop_obstacle();

class DeviceLoop {
 public:
  // Builds the graph on the current device, where all of condition's memory must be. `iteration` is cloned; what its nodes use
  // must outlive the loop. Throws std::runtime_error, one sentence that names the CUDA call or the node that stood in the way,
  // and leaves nothing behind, neither a graph nor an error for cudaGetLastError.
  DeviceLoop(CUgraph_st* iteration, const LoopCondition& condition);
  ~DeviceLoop();  // a launch that is under way goes on to its end
  DeviceLoop(const DeviceLoop&) = delete;
  DeviceLoop& operator=(const DeviceLoop&) = delete;

  // Queues a generation: iterations run while a sequence is, none if none is. Throws std::runtime_error.
  void launch(CUstream_st* stream);

 private:
  CUgraph_st* graph_;
  CUgraphExec_st* exec_;
};

}  // namespace packed_ss::cuda
