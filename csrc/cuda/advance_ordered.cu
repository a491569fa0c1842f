#include "packed_ss/advance_ordered.h"

#include "block_team.cuh"
#include "launch.h"
#include "operators.h"

// What follows the tokens of a call in the ordered layout: accept, truncate, retain, order the next window, and the next call's
// rows.
namespace packed_ss::cuda {
namespace {

// A team's scratch memory, in the dynamic shared memory of its launch.
template <class Value>
__device__ __forceinline__ OrderedScratch<Value> scratch_of(double* shared, std::int64_t width) {
  OrderedScratch<Value> scratch;
  scratch.score = reinterpret_cast<Value*>(shared);
  scratch.positions = reinterpret_cast<std::int32_t*>(scratch.score + width);
  scratch.rank = scratch.positions + width;
  scratch.drafted = reinterpret_cast<std::uint32_t*>(scratch.rank + width);
  return scratch;
}

template <class Value>
std::size_t scratch_bytes(const OrderedState& state) {
  return static_cast<std::size_t>(state.width) * (sizeof(Value) + 2 * sizeof(std::int32_t)) +
         kWindowWords * sizeof(std::uint32_t);
}

// One block is one sequence. Reads the tokens and scores of its rows, (4 + sizeof(Value)) * R bytes at most, and a few W of the
// state; writes as much of the state, and of the next rows 16 bytes each and 4 for each word of their masks. kNative: of the
// native decoder, whose rows are the W of its window.
template <class Value, bool kNative>
__global__ void __launch_bounds__(kMostTeam, 1) advance_ordered_kernel(AdvanceOrdered args) {
  PACKED_SS_DYNAMIC_SHARED(shared, double);
  const OrderedScratch<Value> scratch = scratch_of<Value>(shared, args.state.width);
  if (kNative) {
    advance_native_sequence(args, blockIdx.x, scratch, BlockTeam{});
  } else {
    advance_ordered_sequence(args, blockIdx.x, scratch, BlockTeam{});
  }
}

template <class Value, bool kNative>
int launch(const AdvanceOrdered& args, CUstream_st* stream) {
  const OrderedState& state = args.state;
  if (state.sequences == 0) return cudaSuccess;
  if (state.sequences > INT32_MAX || state.width > kMostWindow) return cudaErrorInvalidValue;
  const std::int64_t next_items = args.next.ids == nullptr ? 0 : ordered_items(args.next);
  const unsigned threads = team_threads(next_items > state.width ? next_items : state.width);
  PACKED_SS_LAUNCH((advance_ordered_kernel<Value, kNative>), static_cast<unsigned>(state.sequences), threads,
                   scratch_bytes<Value>(state), stream, args);
  return cudaGetLastError();
}

}  // namespace

int launch_advance_ordered(const AdvanceOrdered& args, CUstream_st* stream) {
  return args.wide ? launch<double, false>(args, stream) : launch<float, false>(args, stream);
}

int launch_advance_native(const AdvanceOrdered& args, CUstream_st* stream) {
  return args.wide ? launch<double, true>(args, stream) : launch<float, true>(args, stream);
}

}  // namespace packed_ss::cuda
