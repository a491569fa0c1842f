// packed_ss._C: importing it registers the native kernels with torch; info() tells what was built, and how.
#include "ops.h"

#include <pybind11/pybind11.h>

#include <cstdlib>
#include <span>
#include <string>

#include "build_info.h"
#ifdef PACKED_SS_WITH_CUDA
#include "cuda/bindings_device_loop.h"
#endif

namespace packed_ss {

bool is_wanted(std::string_view operator_name) {
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

namespace {

namespace py = pybind11;

py::list listed(std::span<const Operand> operands) {
  py::list result;
  for (const Operand& operand : operands) result.append(py::make_tuple(operand.name, operand.shape, operand.written));
  return result;
}

py::dict info() {
#define PACKED_SS_LIST(name) \
  if (is_wanted(#name)) names.append(#name);
  py::dict kernels;
  {
    py::list names;
    PACKED_SS_CPU_KERNELS(PACKED_SS_LIST)
    PACKED_SS_VIEW_KERNELS(PACKED_SS_LIST)
    kernels["cpu"] = names;
  }
  {
    py::list names;
#ifdef PACKED_SS_WITH_CUDA
    PACKED_SS_CUDA_KERNELS(PACKED_SS_LIST)
    PACKED_SS_VIEW_KERNELS(PACKED_SS_LIST)
#endif
    kernels["cuda"] = names;
  }
  py::dict operands;
  operands["block_state"] = listed(kBlockState);
  operands["ordered_state"] = listed(kOrderedState);
  operands["block_rows"] = listed(kBlockRows);
  operands["ordered_rows"] = listed(kOrderedRows);
  py::dict result;
  result["compiler"] = PACKED_SS_COMPILER;
  result["flags"] = PACKED_SS_FLAGS;
  result["threads"] = PACKED_SS_THREADS;
  result["torch"] = PACKED_SS_TORCH_VERSION;
  result["cuda"] = PACKED_SS_CUDA_STATUS;
  result["kernels"] = kernels;
  result["operands"] = operands;
  return result;
}

}  // namespace
}  // namespace packed_ss

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native kernels of packed_ss; importing this module registers them with torch.";
  m.def("info", &packed_ss::info,
        "How this module was built: compiler, flags, threads, torch, cuda; kernels by device; operands of states and rows.");
#ifdef PACKED_SS_WITH_CUDA
  packed_ss::cuda::define_device_loop(m);
#else
  m.def("device_loop_obstacle", [] { return "packed_ss._C was built without a device loop (CUDA: " PACKED_SS_CUDA_STATUS ")."; });
#endif
}
