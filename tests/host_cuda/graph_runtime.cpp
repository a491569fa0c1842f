// The CUDA runtime's graphs, as far as csrc/cuda/device_loop_graph.cpp uses them, on the CPU: for test_device_loop.py.
//
// A graph runs when it is launched: loop_condition_kernel by csrc/testing/host_cuda.h, nodes of the iteration by a callback.
// What the runtime's manual forbids is refused, any call can be told to fail, and what is alive is counted. The file compiles
// against the toolkit's header, so that a call that differs from the runtime's does not.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../csrc/cuda/device_loop.h"

// As in csrc/testing/host_cuda.h, which cannot stand beside the toolkit's header.
namespace packed_ss::host_cuda {
void run_grid(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, void (*body)(const void*), const void* context);
}

namespace {

using packed_ss::cuda::LoopCondition;

int runtime_version = CUDART_VERSION;
int driver_version = CUDART_VERSION;
std::string fails;  // the name of the call that fails
cudaError_t last_error = cudaSuccess;
int alive = 0;  // graphs and executable graphs that nobody has destroyed
std::vector<std::string> order;
void (*iterate)() = nullptr;
constexpr int kEndless = 1000;  // rounds of a WHILE node, in place of a hung test

}  // namespace

struct CUgraphNode_st {
  CUgraph_st* owner;
  cudaGraphNodeType type;
  std::vector<CUgraphNode_st*> after;
  std::unique_ptr<CUgraph_st> graph;  // of a child graph node or a WHILE node
  CUgraph_st* out;                    // what phGraph_out points to
  cudaGraphConditionalHandle handle;
  LoopCondition condition;
  bool reset;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  std::map<unsigned*, bool> handles;  // and whether a node has it
  std::vector<std::unique_ptr<unsigned>> values;
  unsigned value_at_launch = 0;
};

struct CUgraphExec_st {
  CUgraph_st* graph;
};

namespace {

cudaError_t result(const char* call, bool valid = true) {
  const cudaError_t error = call == fails ? cudaErrorUnknown : valid ? cudaSuccess : cudaErrorInvalidValue;
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool belong(const CUgraph_st* graph, const cudaGraphNode_t* after, std::size_t count) {
  return std::all_of(after, after + count, [graph](const CUgraphNode_st* node) { return node->owner == graph; });
}

CUgraphNode_st* add(CUgraph_st* graph, cudaGraphNodeType type, const cudaGraphNode_t* after, std::size_t count) {
  auto node = std::make_unique<CUgraphNode_st>();
  node->owner = graph;
  node->type = type;
  node->after.assign(after, after + count);
  return graph->nodes.emplace_back(std::move(node)).get();
}

std::unique_ptr<CUgraph_st> clone(const CUgraph_st& graph) {
  auto copy = std::make_unique<CUgraph_st>();
  for (const auto& node : graph.nodes) {
    CUgraphNode_st* const twin = add(copy.get(), node->type, nullptr, 0);
    if (node->graph) twin->graph = clone(*node->graph);
  }
  return copy;
}

bool any(const CUgraph_st& graph, const std::function<bool(const CUgraphNode_st&)>& wanted) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const auto& node) { return wanted(*node) || (node->graph && any(*node->graph, wanted)); });
}

bool repeatable(const CUgraphNode_st& node) {
  return node.type <= cudaGraphNodeTypeMemset || node.type == cudaGraphNodeTypeGraph || node.type == cudaGraphNodeTypeEmpty ||
         node.type == cudaGraphNodeTypeConditional;
}

void run_condition(const void* context) {
  const auto& node = *static_cast<const CUgraphNode_st*>(context);
  using Kernel = void (*)(LoopCondition, bool, cudaGraphConditionalHandle);
  const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(packed_ss::cuda::loop_condition_kernel()));
  kernel(node.condition, node.reset, node.handle);
}

void run(const CUgraph_st& graph) {
  std::vector<const CUgraphNode_st*> done;
  const auto is_done = [&](const CUgraphNode_st* node) { return std::find(done.begin(), done.end(), node) != done.end(); };
  while (done.size() < graph.nodes.size()) {
    // The last node that may run comes first: whoever forgets an edge notices.
    const auto next = std::find_if(graph.nodes.rbegin(), graph.nodes.rend(), [&](const auto& node) {
      return !is_done(node.get()) && std::all_of(node->after.begin(), node->after.end(), is_done);
    });
    const CUgraphNode_st& node = **next;
    if (node.type == cudaGraphNodeTypeConditional) {
      for (int i = 0; *reinterpret_cast<unsigned*>(node.handle) != 0 && i < kEndless; ++i) run(*node.graph);
    } else if (node.type == cudaGraphNodeTypeGraph) {
      run(*node.graph);
    } else if (node.handle != 0) {
      order.push_back(node.reset ? "reset" : "condition");
      packed_ss::host_cuda::run_grid("loop_condition", 1, packed_ss::cuda::kLoopConditionThreads, 0, run_condition, &node);
    } else if (iterate != nullptr) {
      order.push_back("iteration");
      iterate();
    }
    done.push_back(&node);
  }
}

}  // namespace

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = runtime_version;
  return result("cudaRuntimeGetVersion");
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return result("cudaDriverGetVersion");
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidValue ? "invalid argument" : "unknown error";
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int) {
  const cudaError_t error = result("cudaGraphCreate");
  if (error == cudaSuccess) {
    *graph = new CUgraph_st;
    ++alive;
  }
  return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  --alive;
  return cudaSuccess;
}

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* handle, cudaGraph_t graph, unsigned int value,
                                             unsigned int flags) {
  const cudaError_t error = result("cudaGraphConditionalHandleCreate", flags == cudaGraphCondAssignDefault);
  if (error == cudaSuccess) {
    unsigned* const address = graph->values.emplace_back(std::make_unique<unsigned>(1)).get();
    graph->handles[address] = false;
    graph->value_at_launch = value;
    *handle = reinterpret_cast<cudaGraphConditionalHandle>(address);
  }
  return error;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after, std::size_t count,
                                   const cudaKernelNodeParams* params) {
  const bool valid = params->func == packed_ss::cuda::loop_condition_kernel() && params->gridDim.x == 1 &&
                     params->gridDim.y == 1 && params->gridDim.z == 1 &&
                     params->blockDim.x == packed_ss::cuda::kLoopConditionThreads && params->blockDim.y == 1 &&
                     params->blockDim.z == 1 && params->sharedMemBytes == 0 && params->extra == nullptr;
  const cudaError_t error = result("cudaGraphAddKernelNode", valid && belong(graph, after, count));
  if (error == cudaSuccess) {
    *node = add(graph, cudaGraphNodeTypeKernel, after, count);
    std::memcpy(&(*node)->condition, params->kernelParams[0], sizeof(LoopCondition));
    std::memcpy(&(*node)->reset, params->kernelParams[1], sizeof(bool));
    std::memcpy(&(*node)->handle, params->kernelParams[2], sizeof(cudaGraphConditionalHandle));
  }
  return error;
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after, std::size_t count,
                                       cudaGraph_t child) {
  const bool valid = !any(*child, [](const CUgraphNode_st& n) {
    return n.type == cudaGraphNodeTypeConditional || n.type == cudaGraphNodeTypeMemAlloc || n.type == cudaGraphNodeTypeMemFree;
  });
  const cudaError_t error = result("cudaGraphAddChildGraphNode", valid && belong(graph, after, count));
  if (error == cudaSuccess) {
    *node = add(graph, cudaGraphNodeTypeGraph, after, count);
    (*node)->graph = clone(*child);
  }
  return error;
}

#if CUDART_VERSION >= 13000
cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                             const cudaGraphEdgeData* edges, std::size_t count, cudaGraphNodeParams* params) {
#else
cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after, std::size_t count,
                             cudaGraphNodeParams* params) {
  const cudaGraphEdgeData* const edges = nullptr;
#endif
  const auto handle = graph->handles.find(reinterpret_cast<unsigned*>(params->conditional.handle));
  const bool valid = params->type == cudaGraphNodeTypeConditional && params->conditional.type == cudaGraphCondTypeWhile &&
                     params->conditional.size == 1 && handle != graph->handles.end() && !handle->second && edges == nullptr;
  const cudaError_t error = result("cudaGraphAddNode", valid && belong(graph, after, count));
  if (error == cudaSuccess) {
    handle->second = true;
    *node = add(graph, cudaGraphNodeTypeConditional, after, count);
    (*node)->handle = params->conditional.handle;
    (*node)->graph = std::make_unique<CUgraph_st>();
    (*node)->out = (*node)->graph.get();
    params->conditional.phGraph_out = &(*node)->out;
  }
  return error;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  for (std::size_t i = 0; nodes != nullptr && i < std::min(*count, graph->nodes.size()); ++i) nodes[i] = graph->nodes[i].get();
  *count = graph->nodes.size();
  return result("cudaGraphGetNodes");
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = node->type;
  return result("cudaGraphNodeGetType");
}

cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) {
  *graph = node->graph.get();
  return result("cudaGraphChildGraphNodeGetGraph");
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  bool valid = flags == 0;
  for (const auto& [address, taken] : graph->handles) valid = valid && taken;
  for (const auto& node : graph->nodes) {
    valid = valid && (node->type != cudaGraphNodeTypeConditional ||
                      !any(*node->graph, [](const CUgraphNode_st& n) { return !repeatable(n); }));
  }
  const cudaError_t error = result("cudaGraphInstantiate", valid);
  if (error == cudaSuccess) {
    *exec = new CUgraphExec_st{graph};
    ++alive;
  }
  return error;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  --alive;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  const cudaError_t error = result("cudaGraphLaunch");
  if (error == cudaSuccess) {
    for (const auto& value : exec->graph->values) *value = exec->graph->value_at_launch;
    run(*exec->graph);
  }
  return error;
}

}  // extern "C"

// ---- For test_device_loop.py -------------------------------------------------------------------------------------------------

#define PACKED_SS_API extern "C" __attribute__((visibility("default")))

namespace {
std::string text;
const char* keep(std::string value) {
  text = std::move(value);
  return text.c_str();
}
}  // namespace

PACKED_SS_API int packed_ss_cudart_version() { return CUDART_VERSION; }

PACKED_SS_API const char* packed_ss_obstacle(int runtime, int driver, const char* failing_call) {
  runtime_version = runtime;
  driver_version = driver;
  fails = failing_call;
  return keep(packed_ss::cuda::device_loop_obstacle());
}

// Builds a loop over an iteration of nodes of these types, in a child graph of the iteration if nested, launches it `launches`
// times, and destroys it. Returns what was thrown; packed_ss_order() has the names of the nodes that ran.
PACKED_SS_API const char* packed_ss_device_loop(const std::int32_t* finish_reason, std::int64_t sequences,
                                                std::int32_t* iterations, std::int32_t limit, void (*iteration)(),
                                                const int* types, int count, int nested, int launches, const char* failing_call) {
  order.clear();
  iterate = iteration;
  CUgraph_st captured;
  for (int i = 0; i < count; ++i) add(&captured, static_cast<cudaGraphNodeType>(types[i]), nullptr, 0);
  CUgraph_st outer;
  add(&outer, cudaGraphNodeTypeGraph, nullptr, 0)->graph = clone(captured);
  fails = failing_call;
  try {
    const LoopCondition condition{finish_reason, sequences, iterations, limit};
    packed_ss::cuda::DeviceLoop loop(nested != 0 ? &outer : &captured, condition);
    for (int i = 0; i < launches; ++i) loop.launch(nullptr);
  } catch (const std::exception& error) {
    return keep(error.what());
  }
  return keep("");
}

PACKED_SS_API const char* packed_ss_order() {
  std::string names;
  for (const std::string& name : order) names += (names.empty() ? "" : " ") + name;
  return keep(names);
}

// Graphs and executable graphs that are left over, and the error that the next cudaGetLastError would return.
PACKED_SS_API int packed_ss_alive() { return alive; }
PACKED_SS_API int packed_ss_last_error() { return cudaGetLastError(); }
