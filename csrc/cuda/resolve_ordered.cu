#include "block_team.cuh"
#include "launch.h"
#include "ordered.h"

// What follows the tokens of a call, for the ordered layout: accept, stop, drop, retain, order the next window.
namespace packed_ss::cuda {
namespace {

// A team's scratch memory, in the dynamic shared memory of its launch.
template <class Value>
__device__ __forceinline__ OrderedScratch<Value> scratch_of(double* shared, std::int64_t width) {
  OrderedScratch<Value> scratch;
  scratch.score = reinterpret_cast<Value*>(shared);
  scratch.positions = reinterpret_cast<std::int32_t*>(scratch.score + width);
  scratch.rank = scratch.positions + width;
  return scratch;
}

template <class Value>
std::size_t scratch_bytes(const OrderedState& state) {
  return static_cast<std::size_t>(state.width) * (sizeof(Value) + 2 * sizeof(std::int32_t));
}

// One block is one sequence. Reads its rows' tokens and scores, (4 + sizeof(Value)) * R bytes at most, and a few W of the state;
// writes as much of the state.
template <class Value>
__global__ void __launch_bounds__(kMostTeam) resolve_ordered_kernel(OrderedCall call) {
  PACKED_SS_DYNAMIC_SHARED(shared, double);
  resolve_ordered_sequence(call.state, call.shape, call.results<Value>(), call.by_confidence, blockIdx.x,
                           scratch_of<Value>(shared, call.state.width), BlockTeam{});
}

// The same of the native decoder.
template <class Value>
__global__ void __launch_bounds__(kMostTeam) resolve_native_kernel(OrderedCall call) {
  PACKED_SS_DYNAMIC_SHARED(shared, double);
  resolve_native_sequence(call.state, call.shape.window, call.results<Value>(), static_cast<Value>(call.threshold), blockIdx.x,
                          scratch_of<Value>(shared, call.state.width), BlockTeam{});
}

bool fits(const OrderedState& state) { return state.sequences <= INT32_MAX && state.width <= kMostWindow; }

template <class Value>
int launch_ordered(const OrderedCall& call, CUstream_st* stream) {
  PACKED_SS_LAUNCH(resolve_ordered_kernel<Value>, static_cast<unsigned>(call.state.sequences), team_threads(call.state.width),
                   scratch_bytes<Value>(call.state), stream, call);
  return cudaGetLastError();
}

template <class Value>
int launch_native(const OrderedCall& call, CUstream_st* stream) {
  PACKED_SS_LAUNCH(resolve_native_kernel<Value>, static_cast<unsigned>(call.state.sequences), team_threads(call.state.width),
                   scratch_bytes<Value>(call.state), stream, call);
  return cudaGetLastError();
}

}  // namespace

int launch_resolve_ordered(const OrderedCall& call, CUstream_st* stream) {
  if (call.state.sequences == 0) return cudaSuccess;
  if (!fits(call.state)) return cudaErrorInvalidValue;
  return call.wide ? launch_ordered<double>(call, stream) : launch_ordered<float>(call, stream);
}

int launch_resolve_native(const OrderedCall& call, CUstream_st* stream) {
  if (call.state.sequences == 0) return cudaSuccess;
  if (!fits(call.state)) return cudaErrorInvalidValue;
  return call.wide ? launch_native<double>(call, stream) : launch_native<float>(call, stream);
}

}  // namespace packed_ss::cuda
