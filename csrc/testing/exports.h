// A C ABI for launchers, for callers that are not C++ (tests/host_cuda/library.py).
//
// packed_ss_<name>(arguments, bytes) passes a pointer to the launcher's argument struct on, whose size the caller also gives.
// It returns the launcher's cudaError_t, or -1 after a fault, which packed_ss_fault() describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "host_cuda.h"

#define PACKED_SS_API extern "C" __attribute__((visibility("default")))

namespace packed_ss::host_cuda {

inline std::string& fault_text() {
  static std::string text;
  return text;
}

template <typename Arguments>
int call(int (*launcher)(const Arguments&, CUstream_st*), const void* arguments, std::size_t bytes) {
  try {
    if (bytes != sizeof(Arguments)) {
      throw Fault("the argument struct has " + std::to_string(sizeof(Arguments)) + " bytes, got " + std::to_string(bytes));
    }
    return launcher(*static_cast<const Arguments*>(arguments), nullptr);
  } catch (const std::exception& error) {
    fault_text() = error.what();
    return -1;
  }
}

// In place of a launcher: puts the size of the workspace where the workspace would be.
template <typename Arguments, std::int64_t (*kBytes)(const Arguments&)>
int measure(const Arguments& arguments, CUstream_st*) {
  *static_cast<std::int64_t*>(arguments.workspace) = kBytes(arguments);
  return cudaSuccess;
}

}  // namespace packed_ss::host_cuda

#define PACKED_SS_EXPORT(name, launcher)                                         \
  PACKED_SS_API int packed_ss_##name(const void* arguments, std::size_t bytes) { \
    return ::packed_ss::host_cuda::call(&launcher, arguments, bytes);            \
  }
// Once a library: what does not belong to one launcher.
#define PACKED_SS_EXPORT_RUNTIME                                                                          \
  PACKED_SS_API const char* packed_ss_fault() { return ::packed_ss::host_cuda::fault_text().c_str(); }    \
  PACKED_SS_API void packed_ss_set_order(std::uint64_t seed) { ::packed_ss::host_cuda::set_order(seed); } \
  PACKED_SS_API std::uint64_t packed_ss_launches() { return ::packed_ss::host_cuda::launches(); }
