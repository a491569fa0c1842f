// A block as the team that works on a sequence (packed_ss/team.h). Whole warps only.
#pragma once

#include <cstdint>

#include "packed_ss/team.h"
#include "row_passes.cuh"

namespace packed_ss::cuda {

constexpr int kMostTeam = 256;

struct BlockTeam {
  __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int lanes() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ void sync() const { __syncthreads(); }

  template <class T>
  __device__ __forceinline__ T min(T x) const {
    PACKED_SS_SHARED(of_warp, T[kMaxWarps]);
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const T other = __shfl_xor_sync(kAllLanes, x, offset);
      x = other < x ? other : x;
    }
    if (lane_id() == 0) of_warp[warp_id()] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < warp_count(); ++w) x = of_warp[w] < x ? of_warp[w] : x;
    __syncthreads();
    return x;
  }

  __device__ __forceinline__ Counted count(bool flag) const {
    PACKED_SS_SHARED(of_warp, std::int32_t[kMaxWarps]);
    const unsigned flags = __ballot_sync(kAllLanes, flag);
    if (lane_id() == 0) of_warp[warp_id()] = __popc(flags);
    __syncthreads();
    Counted result{__popc(flags & ((1u << lane_id()) - 1u)), 0};
    for (int w = 0; w < warp_count(); ++w) {
      if (w < warp_id()) result.before += of_warp[w];
      result.total += of_warp[w];
    }
    __syncthreads();
    return result;
  }
};

// Threads of a team for so many items: a warp, whose barriers cost next to nothing, where a few rounds do.
inline unsigned team_threads(std::int64_t items) { return items <= 2 * kWarp ? kWarp : kMostTeam; }

// Launches in which a few blocks write the items of each sequence, so many of them a thread.
constexpr std::int64_t kItemsPerThread = 4;

struct TeamGrid {
  unsigned threads;
  std::int64_t blocks;  // of each sequence
};

// The first item of a thread where `blocks` blocks are one sequence.
__device__ __forceinline__ std::int64_t first_item(unsigned blocks) {
  return std::int64_t{blockIdx.x % blocks} * blockDim.x + threadIdx.x;
}

inline TeamGrid team_grid(std::int64_t items) {
  const unsigned threads = team_threads(items / kItemsPerThread);
  const std::int64_t share = threads * kItemsPerThread;
  return {threads, items > share ? (items + share - 1) / share : 1};
}

}  // namespace packed_ss::cuda
