#pragma once

#include <pybind11/pybind11.h>

namespace packed_ss::cuda {

// Adds device_loop_obstacle and DeviceLoop to a Python module; packed_ss/device_loop.py is their caller.
void define_device_loop(pybind11::module_& m);

}  // namespace packed_ss::cuda
