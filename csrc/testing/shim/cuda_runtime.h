// Takes the place of the toolkit's header where a C++ compiler builds the CUDA sources for tests.
#pragma once

#include "../host_cuda.h"
