// The device loop as a Python module of its own, without torch (test_device_loop_module.py).
#include "cuda/bindings_device_loop.h"

PYBIND11_MODULE(device_loop_module, m) { packed_ss::cuda::define_device_loop(m); }
