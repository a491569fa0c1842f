#include "packed_ss/uniform_noise.h"

#include "launch.h"
#include "packed_ss/philox.h"

namespace packed_ss::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMaxGridY = 65535;

// One thread is one Philox block of one row: four ids, 16 bytes written, 12 bytes read (seed and position, from L1).
// In all 4 * sequences * rows * vocab_size bytes are written and nothing of that size is read.
template <bool kAligned>
__global__ void __launch_bounds__(kThreads) uniform_noise_kernel(UniformNoise args) {
  const std::int64_t block = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t first_id = block * kPhiloxLanes;
  if (first_id >= args.vocab_size) return;
  for (std::int64_t row = blockIdx.y; row < args.sequences * args.rows; row += gridDim.y) {
    const PhiloxBlock x = noise_words(philox_key(args.seed[row / args.rows]), static_cast<std::uint32_t>(args.position[row]),
                                      static_cast<std::uint32_t>(block), args.stream);
    const float4 u = make_float4(word_to_uniform(x.x0), word_to_uniform(x.x1), word_to_uniform(x.x2), word_to_uniform(x.x3));
    float* out = args.out + row * args.vocab_size + first_id;
    if (kAligned) {
      *reinterpret_cast<float4*>(out) = u;
    } else {
      const std::int64_t left = args.vocab_size - first_id;
      out[0] = u.x;
      if (left > 1) out[1] = u.y;
      if (left > 2) out[2] = u.z;
      if (left > 3) out[3] = u.w;
    }
  }
}

}  // namespace

int launch_uniform_noise(const UniformNoise& args, CUstream_st* stream) {
  const std::int64_t total_rows = args.sequences * args.rows;
  if (total_rows == 0) return cudaSuccess;
  const std::int64_t blocks = (args.vocab_size + kPhiloxLanes - 1) / kPhiloxLanes;
  const dim3 grid(static_cast<unsigned>((blocks + kThreads - 1) / kThreads),
                  static_cast<unsigned>(total_rows < kMaxGridY ? total_rows : kMaxGridY));
  // A vocabulary that is a multiple of four keeps every row on a 16-byte boundary, as torch allocates out on one.
  if (args.vocab_size % kPhiloxLanes == 0) {
    PACKED_SS_LAUNCH(uniform_noise_kernel<true>, grid, kThreads, 0, stream, args);
  } else {
    PACKED_SS_LAUNCH(uniform_noise_kernel<false>, grid, kThreads, 0, stream, args);
  }
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
