#include "cpu/ordered.h"

#include <cstring>
#include <vector>

namespace packed_ss::cpu {
namespace {

// Scratch memory for windows of W positions, kept by its thread.
template <class Value>
OrderedScratch<Value> scratch(std::int64_t width) {
  static thread_local std::vector<std::int32_t> numbers;
  static thread_local std::vector<Value> scores;
  numbers.resize(2 * width);
  scores.resize(width);
  return {numbers.data(), numbers.data() + width, scores.data()};
}

template <class Value>
void resolve_ordered_all(const OrderedCall& call) {
  const OrderedScratch<Value> memory = scratch<Value>(call.state.width);
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    resolve_ordered_sequence(call.state, call.shape, call.results<Value>(), call.by_confidence, i, memory, OneLane{});
  }
}

template <class Value>
void resolve_native_all(const OrderedCall& call) {
  const OrderedScratch<Value> memory = scratch<Value>(call.state.width);
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    resolve_native_sequence(call.state, call.shape.window, call.results<Value>(), static_cast<Value>(call.threshold), i, memory,
                            OneLane{});
  }
}

}  // namespace

void resolve_ordered(const OrderedCall& call) {
  call.wide ? resolve_ordered_all<double>(call) : resolve_ordered_all<float>(call);
}

void resolve_native(const OrderedCall& call) { call.wide ? resolve_native_all<double>(call) : resolve_native_all<float>(call); }

void compact_cache(const CompactCall& call, const Workers& workers) {
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

void pack_ordered(const PackOrderedCall& call) {
  const std::int64_t rows = call.rows.shape.rows();
  const std::int64_t words = call.rows.mask_words();
  std::uint32_t drafted[kWindowWords];
  for (std::int64_t i = 0; i < call.state.sequences; ++i) {
    const DraftBits bits = find_draft_bits(call.state, call.rows, i, drafted, OneLane{});
    for (std::int64_t r = 0; r < rows; ++r) {
      write_ordered_row(call.state, call.rows, i, r, bits);
      for (std::int64_t w = 0; w < words; ++w) write_mask_word(call.state, call.rows, i, r, w, bits);
    }
  }
}

}  // namespace packed_ss::cpu
