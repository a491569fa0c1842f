#include "launch.h"
#include "packed_ss/commit.h"
#include "resolve.h"

namespace packed_ss::cuda {
namespace {

constexpr int kPackThreads = 128;

// One thread is one row: reads at most 16 bytes of state and writes 12, so 12 * N * rows bytes in all.
__global__ void __launch_bounds__(kPackThreads) pack_block_kernel(PackBlock args) {
  const std::int64_t rows = args.next.shape.rows();
  const std::int64_t at = std::int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (at < args.state.sequences * rows) write_row(args.state, args.next, at / rows, at % rows);
}

}  // namespace

int launch_pack_block(const PackBlock& args, CUstream_st* stream) {
  const std::int64_t rows = args.state.sequences * args.next.shape.rows();
  if (rows == 0) return cudaSuccess;
  const std::int64_t blocks = (rows + kPackThreads - 1) / kPackThreads;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  PACKED_SS_LAUNCH(pack_block_kernel, static_cast<unsigned>(blocks), kPackThreads, 0, stream, args);
  return cudaGetLastError();
}

}  // namespace packed_ss::cuda
