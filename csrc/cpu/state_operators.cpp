#include "cpu/state_operators.h"

#include <cstring>
#include <vector>

#include "packed_ss/advance_block.h"
#include "packed_ss/advance_ordered.h"
#include "packed_ss/pack_ordered.h"

namespace packed_ss::cpu {
namespace {

// Calls body(i, scratch) for every sequence, on scratch memory that its thread keeps.
template <class Value, class Body>
void each_sequence(const AdvanceOrdered& call, Body body) {
  static thread_local std::vector<std::int32_t> numbers;
  static thread_local std::vector<Value> scores;
  const std::int64_t width = call.state.width;
  numbers.resize(2 * width);
  scores.resize(width);
  std::uint32_t drafted[kWindowWords];
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    body(i, OrderedScratch<Value>{numbers.data(), numbers.data() + width, scores.data(), drafted});
  }
}

}  // namespace

void pack_block(const PackBlock& call) {
  for (std::int64_t i = 0; i < call.state.sequences; ++i) pack_block_sequence(call.state, call.rows, i, false, OneLane{});
}

void pack_ordered(const PackOrdered& call) {
  std::uint32_t drafted[kWindowWords];
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    pack_ordered_sequence(call.state, call.rows, i, false, drafted, OneLane{});
  }
}

void advance_block(const AdvanceBlock& call) {
  for (std::int64_t i = 0; i < call.state.sequences; ++i) advance_block_sequence(call, i, OneLane{});
}

void advance_ordered(const AdvanceOrdered& call) {
  const auto advance = [&](std::int64_t i, auto scratch) { advance_ordered_sequence(call, i, scratch, OneLane{}); };
  call.wide ? each_sequence<double>(call, advance) : each_sequence<float>(call, advance);
}

void advance_native(const AdvanceOrdered& call) {
  const auto advance = [&](std::int64_t i, auto scratch) { advance_native_sequence(call, i, scratch, OneLane{}); };
  call.wide ? each_sequence<double>(call, advance) : each_sequence<float>(call, advance);
}

void compact_cache(const CompactCache& call, const Workers& workers) {
  constexpr std::int64_t kWorthSharingBytes = 1 << 20;
  std::int64_t slots = 0;
  for (std::int64_t i = 0; i < call.sequences; ++i) {
    if (call.end(i) > call.begin(i)) slots += call.end(i) - call.begin(i);
  }
  if (slots == 0) return;
  const auto move = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t layer = begin; layer < end; ++layer) {
      for (std::int64_t i = 0; i < call.sequences; ++i) {
        for (std::int64_t slot = call.begin(i); slot < call.end(i); ++slot) {
          const std::int64_t from = call.from(i, slot);
          if (from < 0) continue;
          const std::int64_t at = layer * call.layer_stride + i * call.sequence_stride;
          for (void* const cache : {call.keys, call.values}) {
            char* const sequence = static_cast<char*>(cache) + at;
            std::memcpy(sequence + slot * call.slot_stride, sequence + from * call.slot_stride, call.slot_bytes);
          }
        }
      }
    }
  };
  if (2 * slots * call.layers * call.slot_bytes < kWorthSharingBytes) return move(0, call.layers);
  workers.share(call.layers, move);
}

}  // namespace packed_ss::cpu
