#include "launch.h"
#include "operators.h"

namespace packed_ss::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kSlotsAtOnce = 4;  // slots that a thread reads before it writes the first

// One thread is 16 bytes (or fewer) of every slot of one layer and sequence, of keys or of values. It walks the slots upwards:
// what it has written nobody reads, for sources ascend and lie to the right. Reads and writes the slots that move.
template <class Chunk>
__global__ void __launch_bounds__(kThreads) compact_cache_kernel(CompactCache args, std::int64_t column_blocks) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x % column_blocks) * kThreads + threadIdx.x;
  std::int64_t rest = blockIdx.x / column_blocks;
  const bool is_value = rest % 2 != 0;
  rest /= 2;
  const std::int64_t i = rest % args.sequences;
  const std::int64_t layer = rest / args.sequences;
  const std::int64_t end = args.end(i);
  std::int64_t slot = args.begin(i);
  if (slot >= end || column * static_cast<std::int64_t>(sizeof(Chunk)) >= args.slot_bytes) return;
  char* base = static_cast<char*>(is_value ? args.values : args.keys) + layer * args.layer_stride + i * args.sequence_stride +
               column * static_cast<std::int64_t>(sizeof(Chunk));
  for (; slot < end; slot += kSlotsAtOnce) {
    std::int64_t from[kSlotsAtOnce];
    Chunk chunks[kSlotsAtOnce];
#pragma unroll
    for (int k = 0; k < kSlotsAtOnce; ++k) {
      from[k] = slot + k < end ? args.from(i, slot + k) : -1;
      if (from[k] >= 0) chunks[k] = *reinterpret_cast<const Chunk*>(base + from[k] * args.slot_stride);
    }
#pragma unroll
    for (int k = 0; k < kSlotsAtOnce; ++k) {
      if (from[k] >= 0) *reinterpret_cast<Chunk*>(base + (slot + k) * args.slot_stride) = chunks[k];
    }
  }
}

// Whether a thread can take `bytes` at a time.
bool is_aligned(const CompactCache& args, std::int64_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(args.keys) | reinterpret_cast<std::uintptr_t>(args.values);
  const std::int64_t sizes =
      static_cast<std::int64_t>(at % 16) | args.layer_stride | args.sequence_stride | args.slot_stride | args.slot_bytes;
  return sizes % bytes == 0;
}

template <class Chunk>
int launch(const CompactCache& args, CUstream_st* stream) {
  const std::int64_t columns = args.slot_bytes / static_cast<std::int64_t>(sizeof(Chunk));
  const std::int64_t column_blocks = (columns + kThreads - 1) / kThreads;
  const std::int64_t blocks = 2 * args.layers * args.sequences * column_blocks;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  PACKED_SS_LAUNCH(compact_cache_kernel<Chunk>, static_cast<unsigned>(blocks), kThreads, 0, stream, args, column_blocks);
  return cudaGetLastError();
}

}  // namespace

int launch_compact_cache(const CompactCache& args, CUstream_st* stream) {
  if (is_aligned(args, sizeof(uint4))) return launch<uint4>(args, stream);
  if (is_aligned(args, sizeof(unsigned))) return launch<unsigned>(args, stream);
  return launch<unsigned char>(args, stream);
}

}  // namespace packed_ss::cuda
