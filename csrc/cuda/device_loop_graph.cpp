// The host's side of the device loop: builds and launches the graph. A C++ compiler builds this against the CUDA runtime's
// header; nothing in it needs nvcc.
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "device_loop.h"

namespace packed_ss::cuda {
namespace {

constexpr int kNeeded = 12040;

std::string version(int number) { return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10); }

}  // namespace

#if CUDART_VERSION < 12040

std::string device_loop_obstacle() {
  return "packed_ss._C was compiled with CUDA " + version(CUDART_VERSION) + ", which has no WHILE nodes: they need CUDA " +
         version(kNeeded) + " or newer.";
}

DeviceLoop::DeviceLoop(CUgraph_st*, const LoopCondition&) { throw std::runtime_error(device_loop_obstacle()); }
DeviceLoop::~DeviceLoop() = default;
void DeviceLoop::launch(CUstream_st*) {}

#else

namespace {

// Asks for the error as well, so that no later call, of torch or of anybody else, takes it for its own.
void check(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorString(error) + ".");
}

struct Destroy {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t exec) const { cudaGraphExecDestroy(exec); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

// What the body of a WHILE node refuses, in words; null for what it accepts.
const char* refused(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
    case cudaGraphNodeTypeMemcpy:
    case cudaGraphNodeTypeMemset:
    case cudaGraphNodeTypeGraph:
    case cudaGraphNodeTypeEmpty: return nullptr;
    case cudaGraphNodeTypeHost: return "a call of a host function";
    case cudaGraphNodeTypeWaitEvent:
    case cudaGraphNodeTypeEventRecord: return "an event";
    case cudaGraphNodeTypeMemAlloc:
    case cudaGraphNodeTypeMemFree: return "an allocation of memory (is torch's allocator cudaMallocAsync?)";
    case cudaGraphNodeTypeConditional: return "a conditional node";  // a body may hold one, but a child graph may not
    default: return "a node of another kind than kernel, copy, fill and child graph";
  }
}

// Instantiation would refuse such a graph too, but as an "invalid argument".
void check_iteration(cudaGraph_t graph) {
  std::size_t count = 0;
  check("cudaGraphGetNodes", cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  check("cudaGraphGetNodes", cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t const node : nodes) {
    cudaGraphNodeType type{};
    check("cudaGraphNodeGetType", cudaGraphNodeGetType(node, &type));
    if (const char* const what = refused(type)) {
      throw std::runtime_error(std::string("the captured iteration holds ") + what + ", which a WHILE node cannot repeat.");
    }
    if (type == cudaGraphNodeTypeGraph) {
      cudaGraph_t child = nullptr;
      check("cudaGraphChildGraphNodeGetGraph", cudaGraphChildGraphNodeGetGraph(node, &child));
      check_iteration(child);
    }
  }
}

cudaGraphNode_t add_condition(cudaGraph_t graph, const cudaGraphNode_t* after, LoopCondition condition, bool reset,
                              cudaGraphConditionalHandle handle) {
  std::array<void*, 3> arguments{&condition, &reset, &handle};  // their values are copied
  cudaKernelNodeParams params{};
  params.func = const_cast<void*>(loop_condition_kernel());
  params.gridDim = dim3(1);
  params.blockDim = dim3(kLoopConditionThreads);
  params.kernelParams = arguments.data();
  cudaGraphNode_t node = nullptr;
  check("cudaGraphAddKernelNode", cudaGraphAddKernelNode(&node, graph, after, after == nullptr ? 0 : 1, &params));
  return node;
}

// Returns the body, which belongs to the graph.
cudaGraph_t add_while(cudaGraph_t graph, cudaGraphNode_t after, cudaGraphConditionalHandle handle) {
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = cudaGraphCondTypeWhile;
  params.conditional.size = 1;
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  check("cudaGraphAddNode", cudaGraphAddNode(&node, graph, &after, nullptr, 1, &params));
#else
  check("cudaGraphAddNode", cudaGraphAddNode(&node, graph, &after, 1, &params));
#endif
  return params.conditional.phGraph_out[0];
}

}  // namespace

std::string device_loop_obstacle() {
  int runtime = 0;
  int driver = 0;
  try {
    check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
    check("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  const std::string needs = ", and WHILE nodes need CUDA " + version(kNeeded) + " or newer.";
  if (driver == 0) return "there is no CUDA driver.";
  if (driver < kNeeded) return "the driver is of CUDA " + version(driver) + needs;
  if (runtime < kNeeded) return "the CUDA runtime is of version " + version(runtime) + needs;
  return "";
}

DeviceLoop::DeviceLoop(CUgraph_st* iteration, const LoopCondition& condition) {
  cudaGraph_t created = nullptr;
  check("cudaGraphCreate", cudaGraphCreate(&created, 0));
  Owned<cudaGraph_t> graph(created);
  check_iteration(iteration);

  // 0 at the start of each launch: what the first kernel does not allow does not run.
  cudaGraphConditionalHandle handle = 0;
  check("cudaGraphConditionalHandleCreate", cudaGraphConditionalHandleCreate(&handle, created, 0, cudaGraphCondAssignDefault));
  cudaGraph_t const body = add_while(created, add_condition(created, nullptr, condition, true, handle), handle);
  cudaGraphNode_t work = nullptr;
  check("cudaGraphAddChildGraphNode", cudaGraphAddChildGraphNode(&work, body, nullptr, 0, iteration));
  add_condition(body, &work, condition, false, handle);

  check("cudaGraphInstantiate", cudaGraphInstantiate(&exec_, created, 0));
  graph_ = graph.release();
}

DeviceLoop::~DeviceLoop() {
  cudaGraphExecDestroy(exec_);
  cudaGraphDestroy(graph_);
}

void DeviceLoop::launch(CUstream_st* stream) { check("cudaGraphLaunch", cudaGraphLaunch(exec_, stream)); }

#endif

}  // namespace packed_ss::cuda
