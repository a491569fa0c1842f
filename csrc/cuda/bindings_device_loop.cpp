// Python's side of the device loop. Graphs, streams and device memory come as their addresses, so that nothing in here needs a
// torch with CUDA, or the library of torch's Python types.
#include "cuda/bindings_device_loop.h"

#include <cstdint>

#include "cuda/device_loop.h"

namespace packed_ss::cuda {
namespace {

namespace py = pybind11;

template <typename T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

void define_device_loop(py::module_& m) {
  m.def("device_loop_obstacle", &device_loop_obstacle,
        "Why there can be no DeviceLoop here, in one sentence; empty where there can.");
  // Without the interpreter's lock: building takes milliseconds, and a launch waits where the stream's queue is full.
  using unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<DeviceLoop>(m, "DeviceLoop", "A generation as one launch; raises RuntimeError, one sentence.")
      .def(py::init([](std::uintptr_t graph, std::uintptr_t finish_reason, std::int64_t sequences, std::uintptr_t iterations,
                       std::int32_t limit) {
             const LoopCondition condition{at<const std::int32_t>(finish_reason), sequences, at<std::int32_t>(iterations), limit};
             return new DeviceLoop(at<CUgraph_st>(graph), condition);
           }),
           py::arg("graph"), py::arg("finish_reason"), py::arg("sequences"), py::arg("iterations"), py::arg("limit"), unlocked())
      .def(
          "launch", [](DeviceLoop& loop, std::uintptr_t stream) { loop.launch(at<CUstream_st>(stream)); }, py::arg("stream"),
          unlocked());
}

}  // namespace packed_ss::cuda
