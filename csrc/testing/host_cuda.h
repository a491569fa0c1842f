// Lets a C++ compiler build the CUDA sources, so that kernels run on a CPU in tests and under sanitizers:
//   c++ -x c++ -std=c++17 -I csrc/testing/shim -I csrc/include csrc/cuda/<operator>.cu
//
// The threads of a block are fibers on the thread that launches; blocks run one after another; a launch returns when the
// grid is done. A kernel that breaks a rule of CUDA is not hung on: the launch throws a Fault that says which threads stand
// where.
//   * divergent barrier       not every thread of the block, some of them exited, reached the same __syncthreads
//   * exited lane             a mask names lanes that have exited or do not exist
//   * source lane             a shuffle reads a lane outside its mask
//   * different collectives   lanes that name each other wait in different warp operations
//   * deadlock                nobody can go on for another reason, or a thread spins on an atomic
//   * shared memory overrun   found when the block ends; under AddressSanitizer when it happens
// These are stricter than today's GPUs where CUDA's manual leaves it undefined: whatever passes is portable.
//
// Memory order, as ThreadSanitizer checks it: __syncthreads and __syncwarp order memory, shuffles and votes do not; atomics are
// relaxed, and order memory between threads only with a __threadfence before the writer's and after the reader's, by the very
// thread that does the atomic.
//
// Not covered: tensor cores, asynchronous copies, clusters, inline PTX, and bits of transcendental functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "host_cuda_math.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __shared__ PACKED_SS_declare_shared_memory_with_PACKED_SS_SHARED

// ---- The part of the runtime that launchers use --------------------------------------------------------------------------
struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };

cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);

namespace packed_ss::host_cuda {

// What a kernel did wrong, with a line for every group of threads that stand at one line.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The order of blocks, and of threads between two barriers, in the launches that follow: 0 is ascending, any other seed shuffles,
// and lets some warps get ahead of the others.
void set_order(std::uint64_t seed);

// Kernels launched so far.
std::uint64_t launches();

// ---- Launch ----------------------------------------------------------------------------------------------------------------
using Body = void (*)(const void* context);
void run_grid(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, Body body, const void* context);

template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t,
            Arguments&&... arguments) {
  using Call = std::pair<void (*)(Parameters...), std::tuple<std::decay_t<Parameters>...>>;
  const Call call(kernel, {std::forward<Arguments>(arguments)...});
  const Body body = [](const void* context) {
    const auto* c = static_cast<const Call*>(context);
    std::apply(c->first, c->second);
  };
  run_grid(name, grid, block, shared_bytes, body, &call);
}

// ---- The running thread ------------------------------------------------------------------------------------------------------
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

struct Where {
  const char* file;
  int line;
  static constexpr Where here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// ---- Shared memory: one exactly sized, poisoned allocation a block and variable -----------------------------------------------
void* static_shared(const void* key, const char* name, std::size_t bytes, std::size_t alignment);
void* dynamic_shared();

template <typename T>
T& shared_variable(const void* key, const char* name) {
  static_assert(std::is_trivially_default_constructible_v<T>, "shared memory is not initialised");
  return *static_cast<T*>(static_shared(key, name, sizeof(T), alignof(T)));
}

// ---- Barriers and warp operations
// ------------------------------------------------------------------------------------------------
enum class Op : std::uint8_t {
  kBarrier,
  kBarrierCount,
  kBarrierAnd,
  kBarrierOr,  // of the block
  kSyncWarp,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kAny,
  kAll,
  kReduceAdd,
  kReduceMin,
  kReduceMax,
  kReduceMinSigned,
  kReduceMaxSigned,
  kReduceAnd,
  kReduceOr,
  kReduceXor,
};

std::uint64_t collective(Op op, unsigned mask, std::uint64_t value, int operand, int width, Where where);

template <typename T>
T shuffle(Op op, unsigned mask, T value, int operand, int width, Where where) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "shuffles move 32 or 64 bits");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = collective(op, mask, bits, operand, width, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// ---- Atomics and fences
// ----------------------------------------------------------------------------------------------------------
void before_atomic(const void* address, Where where);
void fence();
[[noreturn]] void trap(Where where);

// Replaces *address by change(*address) and returns what was there.
template <typename T, typename Change>
T atomic_update(T* address, Where where, Change change) {
  before_atomic(address, where);
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  T next;
  do {
    next = change(old);
  } while (!__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

}  // namespace packed_ss::host_cuda

#define threadIdx (::packed_ss::host_cuda::thread_index)
#define blockIdx (::packed_ss::host_cuda::block_index)
#define blockDim (::packed_ss::host_cuda::block_size)
#define gridDim (::packed_ss::host_cuda::grid_size)
constexpr int warpSize = 32;

#define PACKED_SS_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  ::packed_ss::host_cuda::launch(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__)
#define PACKED_SS_SHARED(name, ...) \
  static char name##_key;           \
  auto& name = ::packed_ss::host_cuda::shared_variable<__VA_ARGS__>(&name##_key, #name)
#define PACKED_SS_DYNAMIC_SHARED(name, ...) \
  __VA_ARGS__* const name = static_cast<__VA_ARGS__*>(::packed_ss::host_cuda::dynamic_shared())

#define PACKED_SS_WHERE ::packed_ss::host_cuda::Where where = ::packed_ss::host_cuda::Where::here()
#define PACKED_SS_OP ::packed_ss::host_cuda::Op

inline void __syncthreads(PACKED_SS_WHERE) { packed_ss::host_cuda::collective(PACKED_SS_OP::kBarrier, 0, 0, 0, 32, where); }
inline void __syncwarp(unsigned mask = 0xffffffffu, PACKED_SS_WHERE) {
  packed_ss::host_cuda::collective(PACKED_SS_OP::kSyncWarp, mask, 0, 0, 32, where);
}

#define PACKED_SS_VOTE(name, op)                                                                                  \
  inline int name(int predicate, PACKED_SS_WHERE) {                                                               \
    return static_cast<int>(packed_ss::host_cuda::collective(PACKED_SS_OP::op, 0, predicate != 0, 0, 32, where)); \
  }
PACKED_SS_VOTE(__syncthreads_count, kBarrierCount)
PACKED_SS_VOTE(__syncthreads_and, kBarrierAnd)
PACKED_SS_VOTE(__syncthreads_or, kBarrierOr)
#undef PACKED_SS_VOTE

#define PACKED_SS_VOTE(name, op, type)                                                                                \
  inline type name(unsigned mask, int predicate, PACKED_SS_WHERE) {                                                   \
    return static_cast<type>(packed_ss::host_cuda::collective(PACKED_SS_OP::op, mask, predicate != 0, 0, 32, where)); \
  }
PACKED_SS_VOTE(__ballot_sync, kBallot, unsigned)
PACKED_SS_VOTE(__any_sync, kAny, int)
PACKED_SS_VOTE(__all_sync, kAll, int)
#undef PACKED_SS_VOTE

#define PACKED_SS_REDUCE(name, op, type)                                                                       \
  inline type name(unsigned mask, type value, PACKED_SS_WHERE) {                                               \
    return static_cast<type>(                                                                                  \
        packed_ss::host_cuda::collective(PACKED_SS_OP::op, mask, static_cast<unsigned>(value), 0, 32, where)); \
  }
PACKED_SS_REDUCE(__reduce_add_sync, kReduceAdd, unsigned)
PACKED_SS_REDUCE(__reduce_add_sync, kReduceAdd, int)
PACKED_SS_REDUCE(__reduce_min_sync, kReduceMin, unsigned)
PACKED_SS_REDUCE(__reduce_min_sync, kReduceMinSigned, int)
PACKED_SS_REDUCE(__reduce_max_sync, kReduceMax, unsigned)
PACKED_SS_REDUCE(__reduce_max_sync, kReduceMaxSigned, int)
PACKED_SS_REDUCE(__reduce_and_sync, kReduceAnd, unsigned)
PACKED_SS_REDUCE(__reduce_or_sync, kReduceOr, unsigned)
PACKED_SS_REDUCE(__reduce_xor_sync, kReduceXor, unsigned)
#undef PACKED_SS_REDUCE

#define PACKED_SS_SHUFFLE(name, op, operand_type)                                                                 \
  template <typename T>                                                                                           \
  T name(unsigned mask, T value, operand_type operand, int width = 32, PACKED_SS_WHERE) {                         \
    return packed_ss::host_cuda::shuffle(PACKED_SS_OP::op, mask, value, static_cast<int>(operand), width, where); \
  }
PACKED_SS_SHUFFLE(__shfl_sync, kShuffle, int)
PACKED_SS_SHUFFLE(__shfl_up_sync, kShuffleUp, unsigned)
PACKED_SS_SHUFFLE(__shfl_down_sync, kShuffleDown, unsigned)
PACKED_SS_SHUFFLE(__shfl_xor_sync, kShuffleXor, int)
#undef PACKED_SS_SHUFFLE

// The overloads that CUDA has, so that what compiles here compiles there. Integer sums wrap around.
#define PACKED_SS_ATOMIC(name, type, expression)                                           \
  inline type name(type* address, type value, PACKED_SS_WHERE) {                           \
    return packed_ss::host_cuda::atomic_update(address, where, [value](type old) -> type { \
      static_cast<void>(old);                                                              \
      return expression;                                                                   \
    });                                                                                    \
  }
#define PACKED_SS_INTEGER_ATOMICS(type)                                                                                         \
  PACKED_SS_ATOMIC(atomicExch, type, value)                                                                                     \
  PACKED_SS_ATOMIC(atomicMin, type, value < old ? value : old)                                                                  \
  PACKED_SS_ATOMIC(atomicMax, type, old < value ? value : old)                                                                  \
  PACKED_SS_ATOMIC(atomicAnd, type, old& value)                                                                                 \
  PACKED_SS_ATOMIC(atomicOr, type, old | value)                                                                                 \
  PACKED_SS_ATOMIC(atomicXor, type, old ^ value)                                                                                \
  inline type atomicCAS(type* address, type compare, type value, PACKED_SS_WHERE) {                                             \
    return packed_ss::host_cuda::atomic_update(address, where, [=](type old) -> type { return old == compare ? value : old; }); \
  }
PACKED_SS_INTEGER_ATOMICS(int)
PACKED_SS_INTEGER_ATOMICS(unsigned)
PACKED_SS_INTEGER_ATOMICS(unsigned long long)
PACKED_SS_ATOMIC(atomicMin, long long, value < old ? value : old)
PACKED_SS_ATOMIC(atomicMax, long long, old < value ? value : old)
PACKED_SS_ATOMIC(atomicAdd, int, static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
PACKED_SS_ATOMIC(atomicAdd, unsigned, old + value)
PACKED_SS_ATOMIC(atomicAdd, unsigned long long, old + value)
PACKED_SS_ATOMIC(atomicAdd, float, old + value)
PACKED_SS_ATOMIC(atomicAdd, double, old + value)
PACKED_SS_ATOMIC(atomicSub, int, static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(value)))
PACKED_SS_ATOMIC(atomicSub, unsigned, old - value)
PACKED_SS_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
PACKED_SS_ATOMIC(atomicExch, float, value)
#undef PACKED_SS_INTEGER_ATOMICS
#undef PACKED_SS_ATOMIC

// A handle is the address of its value.
using cudaGraphConditionalHandle = unsigned long long;
inline void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value) {
  *reinterpret_cast<unsigned*>(handle) = value;
}

inline void __threadfence() { packed_ss::host_cuda::fence(); }
[[noreturn]] inline void __trap(PACKED_SS_WHERE) { packed_ss::host_cuda::trap(where); }

#undef PACKED_SS_WHERE
#undef PACKED_SS_OP
