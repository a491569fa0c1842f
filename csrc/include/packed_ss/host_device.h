// Function qualifiers that let one definition serve the C++ compiler and nvcc.
#pragma once

#if defined(__CUDACC__)
#define PACKED_SS_HOST_DEVICE __host__ __device__ __forceinline__
#elif defined(__GNUC__)
// Always inlined, so that a caller compiled for a wider instruction set takes these bodies along.
#define PACKED_SS_HOST_DEVICE inline __attribute__((always_inline))
#else
#define PACKED_SS_HOST_DEVICE inline
#endif
