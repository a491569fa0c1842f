// Plain views of what the operators of the ordered layout are given. The caller has checked shapes, and owns the memory.
#pragma once

#include <cstdint>

#include "packed_ss/ordered.h"
#include "packed_ss/ordered_pack.h"
#include "packed_ss/views.h"

namespace packed_ss {

// Rows of logits that a range on the device names, and how to draw from them.
struct ChosenRows {
  Logits logits;
  std::int64_t sequences;         // N
  std::int64_t rows;              // of the logits
  std::int64_t width;             // W, the most rows that are looked at
  const std::int32_t* range;      // [N, 2], the first row and how many
  const std::int32_t* positions;  // [N, W], of these rows' tokens
  Sampling sampling;
};

// What resolve_ordered and resolve_native are given.
struct OrderedCall {
  OrderedState state;
  OrderedShape shape;
  const std::int32_t* ids;
  std::int64_t columns;
  const void* probability;  // float, or double where `wide`; null where nobody asks
  bool wide;
  const std::int32_t* accepted;
  bool by_confidence;
  double threshold;

  template <class Value>
  PACKED_SS_HOST_DEVICE OrderedResults<Value> results() const {
    return {ids, columns, static_cast<const Value*>(probability), accepted};
  }
};

// What pack_ordered is given; of the state only what OrderedRows names.
struct PackOrderedCall {
  OrderedState state;
  OrderedRows rows;
};

// Cached keys and values [layers, N or more, C, Hkv, D]; slots of `slot_bytes` contiguous bytes, strides in bytes.
struct CompactCall {
  std::int64_t layers;
  std::int64_t sequences;  // N, of the state
  std::int64_t slots;      // C
  std::int64_t columns;    // of source
  std::int64_t layer_stride;
  std::int64_t sequence_stride;
  std::int64_t slot_stride;
  std::int64_t slot_bytes;
  void* keys;
  void* values;
  const std::int32_t* cache_len;  // [N]
  const std::int32_t* source;     // [N, columns]
  const std::int32_t* moved;      // [N]

  // The slots moved ... end - 1 of a sequence take others'.
  PACKED_SS_HOST_DEVICE std::int64_t end(std::int64_t i) const {
    const std::int64_t most = slots < columns ? slots : columns;
    return cache_len[i] < most ? cache_len[i] : most;
  }
  PACKED_SS_HOST_DEVICE std::int64_t begin(std::int64_t i) const { return moved[i] > 0 ? moved[i] : 0; }
  // The slot to take from, or -1 for none. Slots ascend, so that they can be moved in turn.
  PACKED_SS_HOST_DEVICE std::int64_t from(std::int64_t i, std::int64_t slot) const {
    const std::int64_t other = source[i * columns + slot];
    return other > slot && other < slots ? other : -1;
  }
};

}  // namespace packed_ss
