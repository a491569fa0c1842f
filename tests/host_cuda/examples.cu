#include "examples.h"

#include "../../csrc/cuda/launch.h"

namespace packed_ss::examples {
namespace {

constexpr int kThreads = 64;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;

// Order of the float and, below it, the complement of the index: the maximum is the argmax, and the first of equals.
__device__ unsigned long long key_of(float score, std::int64_t index) {
  const unsigned bits = __float_as_uint(score);
  const unsigned order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (static_cast<unsigned long long>(order) << 32) | ~static_cast<unsigned>(index);
}

template <Mistake kMistake>
__device__ unsigned long long warp_max(unsigned long long key) {
  if (kMistake == Mistake::kShuffle) {
    PACKED_SS_SHARED(mailbox, unsigned long long[kThreads]);
    const unsigned neighbour = threadIdx.x ^ 1u;
    mailbox[threadIdx.x] = key;
    __shfl_sync(kAll, 0, 0);
    key = max(key, mailbox[neighbour]);
  }
  for (int offset = 16; offset > 0; offset /= 2) key = max(key, __shfl_xor_sync(kAll, key, offset));
  return key;
}

template <Mistake kMistake, bool kOne>
__global__ void __launch_bounds__(kThreads) argmax_kernel(Argmax args) {
  PACKED_SS_SHARED(of_warp, unsigned long long[kWarps]);
  PACKED_SS_SHARED(is_last, bool);
  PACKED_SS_DYNAMIC_SHARED(of_thread, unsigned long long);

  const std::int64_t row = blockIdx.y;
  const float* scores = args.scores + row * args.size;
  const std::int64_t share = (args.size + args.splits - 1) / args.splits;
  const std::int64_t begin = blockIdx.x * share;
  const std::int64_t end = min(args.size, begin + share) + (kMistake == Mistake::kGlobalOverrun ? 1 : 0);
  unsigned long long best = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) best = max(best, key_of(scores[i], i));

  of_thread[threadIdx.x + (kMistake == Mistake::kDynamicOverrun ? 1 : 0)] = best;
  best = warp_max<kMistake>(of_thread[threadIdx.x]);
  unsigned long long* slot = of_warp + threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) slot[kMistake == Mistake::kSharedOverrun ? 1 : 0] = best;
  if (kMistake != Mistake::kNoBarrier) __syncthreads();
  if (kMistake == Mistake::kOverflow) args.id[row] = static_cast<int>(threadIdx.x) + 0x7fffffff;

  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) best = max(best, of_warp[warp]);
    args.partial[row * args.splits + blockIdx.x] = best;
    if (kMistake != Mistake::kNoReleaseFence) __threadfence();
    unsigned ticket = 0;
    if (kMistake == Mistake::kPlainTicket) {
      ticket = args.ticket[row]++;
    } else {
      ticket = atomicAdd(&args.ticket[row], 1u);
    }
    // By the thread that took the ticket: a fence of the others would not follow their own atomic.
    if (kMistake != Mistake::kNoAcquireFence) __threadfence();
    is_last = ticket == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;

  best = 0;
  for (std::int64_t i = threadIdx.x; i < args.splits; i += kThreads) best = max(best, args.partial[row * args.splits + i]);
  best = warp_max<Mistake::kNone>(best);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kWarps; ++warp) best = max(best, of_warp[warp]);
    args.id[row] = static_cast<int>(~static_cast<unsigned>(best));
    atomicExch(&args.ticket[row], 0u);
  }
}

// Mistakes up to kMistake, one of which is chosen at run time.
template <Mistake kMistake>
void choose_argmax(const Argmax& args, dim3 grid, CUstream_st* stream) {
  if (args.mistake == kMistake) {
    const std::size_t bytes = kThreads * sizeof(unsigned long long);
    PACKED_SS_LAUNCH((argmax_kernel<kMistake, true>), grid, kThreads, bytes, stream, args);
  } else if constexpr (kMistake != Mistake::kNone) {
    choose_argmax<static_cast<Mistake>(static_cast<int>(kMistake) - 1)>(args, grid, stream);
  }
}

__global__ void meet_kernel(Meet args) {
  PACKED_SS_SHARED(flag, unsigned);
  const bool low = threadIdx.x < 16;
  int result = 0;
  switch (args.meeting) {
    case Meeting::kEverybody:
      __syncthreads();
      result = __syncthreads_count(low);
      break;
    case Meeting::kSomeSkipBarrier:
      if (low) __syncthreads();
      break;
    case Meeting::kTwoBarriers:
      if (low) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case Meeting::kExitedLane:
      if (!low) return;
      result = __shfl_sync(kAll, 1, 0);
      break;
    case Meeting::kMissingLane: __syncwarp(); break;
    case Meeting::kOutsideMask:
      if (low) result = __shfl_down_sync(0xffffu, 1, 1);
      break;
    case Meeting::kNotInMask: __syncwarp(0xffffu); break;
    case Meeting::kDifferentCollectives: result = low ? __shfl_sync(kAll, 1, 0) : __any_sync(kAll, 1); break;
    case Meeting::kDeadlock:
      if (threadIdx.x == 3) {
        __syncthreads();
      } else {
        __syncwarp();
      }
      break;
    case Meeting::kSpin:
      if (threadIdx.x == 0) atomicExch(&flag, 0u);
      __syncthreads();
      while (threadIdx.x == 0 && atomicAdd(&flag, 0u) == 0) {
      }
      break;
    case Meeting::kTrap:
      if (threadIdx.x == 7) __trap();
      break;
    default: break;
  }
  args.out[threadIdx.x] = result;
}

__global__ void warp_kernel(Warp args) {
  const int x = args.in[threadIdx.x];
  const unsigned half = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  std::int32_t* out = args.out + threadIdx.x;
  int row = 0;
  const auto put = [&](int value) { out[args.threads * row++] = value; };
  put(__shfl_sync(kAll, x, static_cast<int>(threadIdx.x * 7)));
  put(__shfl_sync(kAll, x, 5, 8));
  put(__shfl_up_sync(kAll, x, 3));
  put(__shfl_up_sync(kAll, x, 3, 16));
  put(__shfl_down_sync(kAll, x, 3));
  put(__shfl_down_sync(kAll, x, 3, 16));
  put(__shfl_xor_sync(kAll, x, 5));
  put(__shfl_xor_sync(kAll, x, 12, 8));
  put(__float_as_int(__shfl_xor_sync(kAll, __int_as_float(x), 1)));
  put(static_cast<int>(__ballot_sync(half, x > 0)));
  put(__any_sync(half, x > 90));
  put(__all_sync(half, x > -90));
  put(__reduce_add_sync(half, x));
  put(__reduce_min_sync(half, x));
  put(__reduce_max_sync(half, x));
  put(static_cast<int>(__reduce_max_sync(half, static_cast<unsigned>(x))));
  put(__syncthreads_count(x > 0));
  put(__syncthreads_or(x == 17) * 2 + __syncthreads_and(x > -200));
}

}  // namespace

int launch_argmax(const Argmax& args, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(args.rows));
  choose_argmax<static_cast<Mistake>(static_cast<int>(Mistake::kCount) - 1)>(args, grid, stream);
  return cudaGetLastError();
}

int launch_meet(const Meet& args, CUstream_st* stream) {
  PACKED_SS_LAUNCH(meet_kernel, 1, args.threads, 0, stream, args);
  return cudaGetLastError();
}

int launch_warp(const Warp& args, CUstream_st* stream) {
  PACKED_SS_LAUNCH(warp_kernel, 1, args.threads, 0, stream, args);
  return cudaGetLastError();
}

}  // namespace packed_ss::examples
