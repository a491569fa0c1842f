// How a block passes over the logits of a row: element types, 16-byte loads, the running argmax, and reductions of a block.
#pragma once

#include <cstdint>

#include "launch.h"
#include "packed_ss/scores.h"
#include "packed_ss/views.h"

namespace packed_ss::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMaxWarps = 32;
constexpr int kThreads = 256;
constexpr int kChunkBytes = 16;
constexpr int kLoadsInFlight = 4;  // chunks that a thread asks for before it uses the first
constexpr int kSplitUnit = 8;      // splits of the vocabulary are multiples of this, so that none cuts a chunk

using Packed = unsigned long long;  // pack_best's integer, in the type that atomics and shuffles have

// ---- Elements: how the bits of a logit are stored, and what they are worth ------------------------------------------------
struct Float32 {
  using Bits = std::uint32_t;
  static constexpr int kIds = kChunkBytes / 4;  // ids of a chunk
  static constexpr Bits kNegativeInf = 0xFF800000u;
  static constexpr int kKeyDigits = 3;  // radix digits of its keys that may differ (row_filters.cuh)
  static __device__ __forceinline__ float value(Bits bits) { return __uint_as_float(bits); }
};

struct BFloat16 {
  using Bits = std::uint16_t;
  static constexpr int kIds = kChunkBytes / 2;
  static constexpr Bits kNegativeInf = 0xFF80u;
  static constexpr int kKeyDigits = 2;
  static __device__ __forceinline__ float value(Bits bits) { return __uint_as_float(std::uint32_t{bits} << 16); }
};

struct Float16 {
  using Bits = std::uint16_t;
  static constexpr int kIds = kChunkBytes / 2;
  static constexpr Bits kNegativeInf = 0xFC00u;
  static constexpr int kKeyDigits = 2;
  // A half's exponent and mantissa, moved to where a float has them, are worth 2^-112 of it, subnormals included.
  static __device__ __forceinline__ float value(Bits bits) {
    const std::uint32_t magnitude = bits & 0x7FFFu;
    const std::uint32_t finite = float_bits(__uint_as_float(magnitude << 13) * 0x1p112f);
    const std::uint32_t unbounded = (magnitude << 13) | kFloat32Inf;
    return __uint_as_float((magnitude >= kFloat16Inf ? unbounded : finite) | ((std::uint32_t{bits} & 0x8000u) << 16));
  }
};

// Calls use(Element{}) for a dtype that the kernels have; other dtypes are an invalid value.
template <class Use>
int with_element(DType dtype, Use use) {
  switch (dtype) {
    case DType::kFloat32: return use(Float32{});
    case DType::kBFloat16: return use(BFloat16{});
    case DType::kFloat16: return use(Float16{});
    default: return cudaErrorInvalidValue;
  }
}

// The score of a key (order_key), which is not that of a NaN. Of the two zeros, +0.
__device__ __forceinline__ float key_score(std::uint32_t key) {
  const bool negative = key < kFloat32Inf;
  return __uint_as_float(negative ? (kFloat32Inf - key) | 0x80000000u : key - kFloat32Inf);
}

// ---- Loads ----------------------------------------------------------------------------------------------------------------
// 16 bytes of a row from `id` on: one load where the row is aligned and has as many left, element by element elsewhere;
// -inf past the end.
template <class Element>
__device__ __forceinline__ uint4 load_chunk(const typename Element::Bits* row, std::int32_t id, std::int32_t end, bool aligned) {
  if (aligned && id + Element::kIds <= end) return *reinterpret_cast<const uint4*>(row + id);
  constexpr int kPerWord = Element::kIds / 4;
  std::uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = 0;
#pragma unroll
    for (int k = 0; k < kPerWord; ++k) {
      const std::int32_t at = id + w * kPerWord + k;
      const std::uint32_t bits = at < end ? row[at] : Element::kNegativeInf;
      words[w] |= bits << (32 / kPerWord * k);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <class Element>
__device__ __forceinline__ void unpack_chunk(uint4 chunk, float (&x)[Element::kIds]) {
  const std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
  constexpr int kPerWord = Element::kIds / 4;
#pragma unroll
  for (int k = 0; k < Element::kIds; ++k) {
    x[k] = Element::value(static_cast<typename Element::Bits>(words[k / kPerWord] >> (32 / kPerWord * (k % kPerWord))));
  }
}

// The block passes over ids begin ... end - 1 of a row, begin a multiple of kSplitUnit: use(id, x) has the logits x of ids
// id, id + 1, ..., -inf past the end. A thread sees its ids in ascending order.
template <class Element, class Use>
__device__ __forceinline__ void for_each_chunk(const typename Element::Bits* row, std::int32_t begin, std::int32_t end, Use use) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(row) % kChunkBytes == 0;
  const std::int32_t step = static_cast<std::int32_t>(blockDim.x) * Element::kIds;
  for (std::int32_t first = begin + static_cast<std::int32_t>(threadIdx.x) * Element::kIds; first < end;
       first += kLoadsInFlight * step) {
    uint4 chunks[kLoadsInFlight];
#pragma unroll
    for (int c = 0; c < kLoadsInFlight; ++c) {
      const std::int32_t id = first + c * step;
      chunks[c] = id < end ? load_chunk<Element>(row, id, end, aligned) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int c = 0; c < kLoadsInFlight; ++c) {
      const std::int32_t id = first + c * step;
      if (id >= end) break;
      float x[Element::kIds];
      unpack_chunk<Element>(chunks[c], x);
      use(id, x);
    }
  }
}

// ---- The argmax of what a thread has seen ---------------------------------------------------------------------------------
struct Largest {
  float score;               // of the numbers among them
  Best<std::uint32_t> best;  // of all; a NaN is above every number
};

// Before anything is seen. A split of nothing but -inf keeps this key and id: the lowest id of the row wins where all are alike.
__device__ __forceinline__ Largest nothing_seen(std::int32_t begin) {
  Largest result;
  result.score = -INFINITY;
  result.best.key = 0;
  result.best.id = begin;
  return result;
}

// Few chunks of a row hold a new largest score: only for those is every id looked at. Returns the chunk's largest number.
template <int kIds>
__device__ __forceinline__ float consider(Largest& seen, std::int32_t id, const float (&x)[kIds]) {
  float top = x[0];
  bool has_nan = x[0] != x[0];
#pragma unroll
  for (int k = 1; k < kIds; ++k) {
    top = fmaxf(top, x[k]);
    has_nan = has_nan || x[k] != x[k];
  }
  if (top > seen.score || has_nan) {
#pragma unroll
    for (int k = 0; k < kIds; ++k) {
      const std::uint32_t key = order_key(x[k]);
      if (key > seen.best.key) {
        seen.best.key = key;
        seen.best.id = id + k;
      }
    }
    seen.score = fmaxf(seen.score, top);
  }
  return top;
}

// ---- Reductions. All threads of the warp or block take part, and all have the result --------------------------------------
__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ __forceinline__ int warp_count() { return static_cast<int>(blockDim.x) / kWarp; }

__device__ __forceinline__ Packed warp_max(Packed x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Packed other = __shfl_xor_sync(kAllLanes, x, offset);
    x = other > x ? other : x;
  }
  return x;
}

// Every lane adds the same numbers in the same order.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

__device__ __forceinline__ Packed block_max(Packed x) {
  PACKED_SS_SHARED(of_warp, Packed[kMaxWarps]);
  x = warp_max(x);
  if (lane_id() == 0) of_warp[warp_id()] = x;
  __syncthreads();
  x = of_warp[0];
  for (int w = 1; w < warp_count(); ++w) x = of_warp[w] > x ? of_warp[w] : x;
  __syncthreads();
  return x;
}

__device__ __forceinline__ float block_sum(float x) {
  PACKED_SS_SHARED(of_warp, float[kMaxWarps]);
  x = warp_sum(x);
  if (lane_id() == 0) of_warp[warp_id()] = x;
  __syncthreads();
  x = of_warp[0];
  for (int w = 1; w < warp_count(); ++w) x += of_warp[w];
  __syncthreads();
  return x;
}

// The largest of the results of splits; lanes look at several at once.
__device__ __forceinline__ Packed warp_best_of(const Packed* results, std::int32_t count) {
  Packed best = 0;
  for (std::int32_t s = lane_id(); s < count; s += kWarp) {
    const Packed result = __ldcg(results + s);
    best = result > best ? result : best;
  }
  return warp_max(best);
}

}  // namespace packed_ss::cuda
