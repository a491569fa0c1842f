// A block as the team that works on a sequence (packed_ss/ordered.h). Whole warps only.
#pragma once

#include <cstdint>

#include "packed_ss/ordered.h"
#include "row_scan.cuh"

namespace packed_ss::cuda {

constexpr int kMostTeam = 256;

struct BlockTeam {
  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int lanes() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ void sync() const { __syncthreads(); }

  template <class T>
  __device__ __forceinline__ T min(T x) const {
    PACKED_SS_SHARED(parts, T[kMaxWarps]);
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const T other = __shfl_xor_sync(kAllLanes, x, offset);
      x = other < x ? other : x;
    }
    if (lane_id() == 0) parts[warp_id()] = x;
    __syncthreads();
    x = parts[0];
    for (int w = 1; w < warp_count(); ++w) x = parts[w] < x ? parts[w] : x;
    __syncthreads();
    return x;
  }

  __device__ __forceinline__ Counted count(bool flag) const {
    PACKED_SS_SHARED(parts, std::int32_t[kMaxWarps]);
    const unsigned flags = __ballot_sync(kAllLanes, flag);
    if (lane_id() == 0) parts[warp_id()] = __popc(flags);
    __syncthreads();
    Counted result{__popc(flags & ((1u << lane_id()) - 1u)), 0};
    for (int w = 0; w < warp_count(); ++w) {
      if (w < warp_id()) result.before += parts[w];
      result.total += parts[w];
    }
    __syncthreads();
    return result;
  }
};

// Threads of a team for so many things at a time: a warp, whose barriers cost next to nothing, where a few rounds do.
inline unsigned team_threads(std::int64_t things) { return things <= 2 * kWarp ? kWarp : kMostTeam; }

}  // namespace packed_ss::cuda
