// The operands of the states and of the rows of a call, in the order in which operators take them. Structs, checks and info() are
// made from these lists; the Python package has the same ones (state.py, ordered_state.py), which a test compares.
//
//   FIELD(name, type, shape)   `type` is const where operators only read it; all are int32 and contiguous
// Sizes: N sequences, T token capacity, W draft entries, P waiting tokens, S stops of M tokens, R rows of a call.
#pragma once

#define PACKED_SS_BLOCK_STATE(FIELD)            \
  FIELD(tokens, std::int32_t, "N T")            \
  FIELD(length, std::int32_t, "N")              \
  FIELD(cache_len, std::int32_t, "N")           \
  FIELD(draft, std::int32_t, "N W")             \
  FIELD(retained, std::int32_t, "N W")          \
  FIELD(order, std::int32_t, "N W")             \
  FIELD(finish_reason, std::int32_t, "N")       \
  FIELD(nfe, std::int32_t, "N")                 \
  FIELD(advances, std::int32_t, "N calls")      \
  FIELD(limit, const std::int32_t, "N")         \
  FIELD(prompt_length, const std::int32_t, "N") \
  FIELD(stops, const std::int32_t, "N S M")

#define PACKED_SS_ORDERED_STATE(FIELD)          \
  FIELD(tokens, std::int32_t, "N T")            \
  FIELD(length, std::int32_t, "N")              \
  FIELD(cache_len, std::int32_t, "N")           \
  FIELD(finish_reason, std::int32_t, "N")       \
  FIELD(nfe, std::int32_t, "N")                 \
  FIELD(advances, std::int32_t, "N calls")      \
  FIELD(end, std::int32_t, "N")                 \
  FIELD(stopped, std::int32_t, "N")             \
  FIELD(prompt_length, const std::int32_t, "N") \
  FIELD(stops, const std::int32_t, "N S M")     \
  FIELD(order, std::int32_t, "N W")             \
  FIELD(draft, std::int32_t, "N W")             \
  FIELD(waiting, std::int32_t, "N P")           \
  FIELD(cached, std::int32_t, "N T")            \
  FIELD(moved_from, std::int32_t, "N T")        \
  FIELD(first_moved, std::int32_t, "N")         \
  FIELD(retained, std::int32_t, "N W")

#define PACKED_SS_BLOCK_ROWS(FIELD)     \
  FIELD(ids, std::int32_t, "N R")       \
  FIELD(positions, std::int32_t, "N R") \
  FIELD(slots, std::int32_t, "N R")     \
  FIELD(predicts, std::int32_t, "N R")

#define PACKED_SS_ORDERED_ROWS(FIELD) \
  PACKED_SS_BLOCK_ROWS(FIELD)         \
  FIELD(tail_mask, std::int32_t, "N R words")
