// uniform_noise: u[n, r, id] for every vocabulary id, from seed[n] and position[n, r].
#pragma once

#include <cstdint>

struct CUstream_st;

namespace packed_ss {

// Contiguous views; the caller has checked shapes, and owns the memory.
struct UniformNoise {
  const std::int64_t* seed;      // [sequences]
  const std::int32_t* position;  // [sequences, rows], read as unsigned
  std::int64_t sequences;
  std::int64_t rows;
  std::uint32_t stream;     // packed_ss::Stream
  std::int64_t vocab_size;  // 1 ... 2^31 - 1
  float* out;               // [sequences, rows, vocab_size]
};

namespace cuda {

// Queues the kernel on `stream` and returns the cudaError_t of the launch (0 is success).
// The pointers of `args` are device pointers; nothing is allocated and nothing waits.
int launch_uniform_noise(const UniformNoise& args, CUstream_st* stream);

}  // namespace cuda
}  // namespace packed_ss
