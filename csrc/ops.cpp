// packed_ss._C: importing it registers the native kernels with torch; info() tells what was built, and how.
#include <pybind11/pybind11.h>
#include <torch/library.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "build_info.h"
#include "ops.h"
#ifdef PACKED_SS_WITH_CUDA
#include "cuda/bindings_device_loop.h"
#endif

#define PACKED_SS_REGISTER(name) \
  if (wanted(#name)) m.impl(#name, TORCH_FN(name));
#define PACKED_SS_LIST(name) \
  if (wanted(#name)) names.append(#name);

namespace packed_ss {
namespace {

namespace py = pybind11;

// Whether PACKED_SS_NATIVE leaves this operator to its native kernels: it may list those that have them, separated by commas.
bool wanted(std::string_view operator_name) {
  static const std::string setting = [] {
    const char* const value = std::getenv("PACKED_SS_NATIVE");
    return std::string(value == nullptr ? "" : value);
  }();
  std::string_view rest = setting;
  if (rest.empty() || rest == "1") return true;
  while (!rest.empty()) {
    const std::size_t end = rest.find(',');
    if (rest.substr(0, end) == operator_name) return true;
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return false;
}

py::dict info() {
  py::dict kernels;
  {
    py::list names;
    PACKED_SS_CPU_KERNELS(PACKED_SS_LIST)
    kernels["cpu"] = names;
  }
  {
    py::list names;
#ifdef PACKED_SS_WITH_CUDA
    PACKED_SS_CUDA_KERNELS(PACKED_SS_LIST)
#endif
    kernels["cuda"] = names;
  }
  py::dict result;
  result["compiler"] = PACKED_SS_COMPILER;
  result["flags"] = PACKED_SS_FLAGS;
  result["threads"] = PACKED_SS_THREADS;
  result["torch"] = PACKED_SS_TORCH_VERSION;
  result["cuda"] = PACKED_SS_CUDA_STATUS;
  result["kernels"] = kernels;
  return result;
}

}  // namespace

namespace cpu {
TORCH_LIBRARY_IMPL(packed_ss, CPU, m) { PACKED_SS_CPU_KERNELS(PACKED_SS_REGISTER) }
}  // namespace cpu

#ifdef PACKED_SS_WITH_CUDA
namespace cuda {
TORCH_LIBRARY_IMPL(packed_ss, CUDA, m) { PACKED_SS_CUDA_KERNELS(PACKED_SS_REGISTER) }
}  // namespace cuda
#endif

}  // namespace packed_ss

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native kernels of packed_ss; importing this module registers them with torch.";
  m.def("info", &packed_ss::info, "How this module was built: compiler, flags, threads, torch, cuda, kernels by device.");
#ifdef PACKED_SS_WITH_CUDA
  packed_ss::cuda::define_device_loop(m);
#else
  m.def("device_loop_obstacle", [] { return "packed_ss._C was built without a device loop (CUDA: " PACKED_SS_CUDA_STATUS ")."; });
#endif
}
