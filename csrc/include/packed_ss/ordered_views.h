// Plain views of what the operators of the ordered layout work on. The caller has checked shapes, and owns the memory.
//
// N sequences, R rows a call, W window, P waiting tokens, T token capacity. All state is int32 and contiguous; what its tensors
// mean is stated by OrderedState of the Python package. Positions are absolute.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/views.h"

namespace packed_ss {

// The most positions of a window, and the words of a bitmask over them.
constexpr std::int32_t kMostWindow = 1024;
constexpr int kWindowWords = kMostWindow / 32;

// The state of the ordered layout, written by advance_ordered.h alone.
struct OrderedState {
  std::int64_t sequences;      // N
  std::int64_t capacity;       // T
  std::int64_t width;          // W, at most kMostWindow
  std::int64_t waiting_width;  // P
  std::int64_t calls;          // columns of advances
  std::int64_t stop_count;     // S, may be 0
  std::int64_t stop_length;    // M
  PACKED_SS_ORDERED_STATE(PACKED_SS_MEMBER)
};

// The shape of a call: rows [N | O | M | R]. Passed by value, so that a kernel has it without a read.
struct OrderedShape {
  std::int32_t waiting_rows;    // of N
  std::int32_t window;          // ranks, 1 ... W
  std::int32_t drafts;          // 1 with O, else 0
  std::int32_t verifies;        // 1 with M, else 0
  std::int32_t cut_count;       // regions of R
  std::int16_t cuts[kMaxCuts];  // ascending, the first is 0

  PACKED_SS_HOST_DEVICE std::int64_t rows() const {
    return waiting_rows + static_cast<std::int64_t>(drafts + verifies + cut_count) * window;
  }
  PACKED_SS_HOST_DEVICE std::int32_t verifier_rows() const { return verifies ? window : 0; }
  // M and R, which have logits.
  PACKED_SS_HOST_DEVICE std::int64_t head_rows() const { return static_cast<std::int64_t>(verifies + cut_count) * window; }
};

// Where the rows of a call go, [N, shape.rows()] each and tail_mask [N, R, ceil(R / 32)]; null where nobody wants them.
struct OrderedRows {
  OrderedShape shape;
  std::int32_t mask_token_id;
  std::int32_t spare_slot;  // of rows that stand for nothing
  PACKED_SS_ORDERED_ROWS(PACKED_SS_MEMBER)

  PACKED_SS_HOST_DEVICE std::int64_t mask_words() const { return (shape.rows() + 31) / 32; }
};

// What pack_ordered is given. Of the state it reads tokens, cache_len, finish_reason, order, draft and waiting.
struct PackOrdered {
  OrderedState state;
  OrderedRows rows;
};

// What advance_ordered and advance_native are given.
struct AdvanceOrdered {
  OrderedState state;
  OrderedShape shape;
  const std::int32_t* ids;       // [N, columns], tokens of the rows of M and R, or of M alone; -1 where a row has none
  std::int64_t columns;          // with those of M alone the next draft is drawn later
  const void* probability;       // [N, columns] of these tokens; null where nobody asks
  bool wide;                     // whether it is of doubles, else of floats
  const std::int32_t* accepted;  // [N, window], whether each draft token is; null: where it is the verifier's
  bool by_confidence;            // of advance_ordered
  double threshold;              // of advance_native
  OrderedRows next;

  PACKED_SS_HOST_DEVICE bool is_drawn_later() const { return columns <= shape.verifier_rows(); }
  template <class Value>
  PACKED_SS_HOST_DEVICE const Value* probability_of(std::int64_t i) const {
    return probability == nullptr ? nullptr : static_cast<const Value*>(probability) + i * columns;
  }
};

// Scratch memory of a team. Value: float, or double where `wide`.
template <class Value>
struct OrderedScratch {
  std::int32_t* positions;  // [W]
  std::int32_t* rank;       // [W]
  Value* score;             // [W], for an order by confidence alone
  std::uint32_t* drafted;   // [kWindowWords], for the next rows alone
};

// Cached keys and values [layers, N or more, C, Hkv, D]; slots of `slot_bytes` contiguous bytes, strides in bytes.
struct CompactCache {
  std::int64_t layers;
  std::int64_t sequences;  // N, of the state
  std::int64_t slots;      // C
  std::int64_t columns;    // of moved_from
  std::int64_t layer_stride;
  std::int64_t sequence_stride;
  std::int64_t slot_stride;
  std::int64_t slot_bytes;
  void* keys;
  void* values;
  const std::int32_t* cache_len;    // [N]
  const std::int32_t* first_moved;  // [N]
  const std::int32_t* moved_from;   // [N, columns]

  // Slots begin ... end - 1 of a sequence take others' pairs.
  PACKED_SS_HOST_DEVICE std::int64_t end(std::int64_t i) const {
    const std::int64_t most = slots < columns ? slots : columns;
    return cache_len[i] < most ? cache_len[i] : most;
  }
  PACKED_SS_HOST_DEVICE std::int64_t begin(std::int64_t i) const { return first_moved[i] > 0 ? first_moved[i] : 0; }
  // The slot to take from, or -1 for none. Slots ascend, so that they can be moved in turn.
  PACKED_SS_HOST_DEVICE std::int64_t from(std::int64_t i, std::int64_t slot) const {
    const std::int64_t other = moved_from[i * columns + slot];
    return other > slot && other < slots ? other : -1;
  }
};

}  // namespace packed_ss
