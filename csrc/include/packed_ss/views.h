// Plain views of what the operators work on. The caller has checked shapes, and owns the memory.
//
// N sequences, R rows a call, V vocabulary, B block size, W draft entries, T token capacity. All state is int32 and contiguous;
// what its tensors mean is stated by BlockState of the Python package.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/state_fields.h"

namespace packed_ss {

enum class DType : std::int32_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

// finish_reason codes.
enum FinishReason : std::int32_t { kRunning = 0, kStop = 1, kLength = 2, kError = 3 };

#define PACKED_SS_MEMBER(name, type, shape) type* name;

// Logits [N, R, V]; strides in elements, 1 along the vocabulary. Offsets are 64-bit: R * V alone may pass 2^31.
struct Logits {
  const void* data;
  DType dtype;
  std::int64_t sequence_stride;
  std::int64_t row_stride;
  std::int64_t vocab_size;

  // Element offset of a row.
  PACKED_SS_HOST_DEVICE std::int64_t offset(std::int64_t sequence, std::int64_t row) const {
    return sequence * sequence_stride + row * row_stride;
  }
};

// Temperatures below this are greedy: the processed distribution is one-hot at the argmax.
constexpr double kGreedyBelow = 1e-5;

// How one sequence's processed distribution is made and drawn from: temperature, then top-k, then top-p.
struct Settings {
  std::int64_t seed;
  double temperature;
  std::int64_t top_k;  // <= 0: every token
  double top_p;        // >= 1: every token

  PACKED_SS_HOST_DEVICE bool is_greedy() const { return !(temperature >= kGreedyBelow); }  // NaN included
  PACKED_SS_HOST_DEVICE bool filters(std::int64_t vocab_size) const {
    return !is_greedy() && ((top_k > 0 && top_k < vocab_size) || top_p < 1.0);
  }
};

// The settings of all sequences, [N] each: data, so that one captured launch serves any of them.
struct Sampling {
  const std::int64_t* seed;
  const double* temperature;
  const std::int64_t* top_k;
  const double* top_p;

  PACKED_SS_HOST_DEVICE Settings of(std::int64_t i) const { return {seed[i], temperature[i], top_k[i], top_p[i]}; }
};

// The rows of logits that a row operator looks at, by entry, and what it draws from them with.
struct RowList {
  Logits logits;
  std::int64_t sequences;         // N
  std::int64_t logit_rows;        // R
  std::int64_t entries;           // M, of each sequence
  const std::int32_t* rows;       // [N, M], the row of an entry, < 0 for none; null: entry j is row j
  const std::int32_t* positions;  // of the tokens that entries predict, < 0: nobody asks; null: all are asked for
  std::int64_t position_stride;   // between sequences, of `positions`
  const std::int32_t* draft;      // draft token of each entry, -1 where there is none; null: none has one
  std::int64_t draft_stride;      // between sequences, of `draft`
  std::int64_t draft_width;       // entries that `draft` has
  Sampling sampling;              // null pointers where nothing is drawn

  // The row of entry j, -1 where nobody asks for it.
  PACKED_SS_HOST_DEVICE std::int64_t row(std::int64_t i, std::int64_t j) const {
    if (positions != nullptr && positions[i * position_stride + j] < 0) return -1;
    const std::int64_t row = rows != nullptr ? rows[i * entries + j] : j;
    return row < logit_rows ? row : -1;
  }
  PACKED_SS_HOST_DEVICE std::uint32_t position(std::int64_t i, std::int64_t j) const {
    return static_cast<std::uint32_t>(positions[i * position_stride + j]);
  }
  // The draft token of entry j, -1 where it has none.
  PACKED_SS_HOST_DEVICE std::int32_t draft_token(std::int64_t i, std::int64_t j) const {
    return draft != nullptr && j < draft_width ? draft[i * draft_stride + j] : -1;
  }
};

// The state of the block layout, written by advance_block.h alone.
struct BlockState {
  std::int64_t sequences;    // N
  std::int64_t capacity;     // T
  std::int64_t width;        // W
  std::int64_t calls;        // columns of advances
  std::int64_t stop_count;   // S, may be 0
  std::int64_t stop_length;  // M
  PACKED_SS_BLOCK_STATE(PACKED_SS_MEMBER)
};

// Most cuts of one call: a quadratic call of this many has 65,792 rows.
constexpr int kMaxCuts = 256;

// The shape of a call: verifier rows [last, d_1 ... d_{v-1}], then for each cut c a region [token at offset c, MASK^{B-1}].
// Passed by value, so that a kernel has it without a read.
struct BlockShape {
  std::int32_t verifier_rows;   // v, 0 ... B; with 0 the call only proposes
  std::int32_t block_size;      // B
  std::int32_t shift;           // 1 for the first call, whose region is all MASK and starts one position later; else 0
  std::int32_t cut_count;       // K
  std::int16_t cuts[kMaxCuts];  // ascending, the first is 0

  PACKED_SS_HOST_DEVICE std::int64_t rows() const { return verifier_rows + static_cast<std::int64_t>(cut_count) * block_size; }
};

// Where the rows of a call go, [N, shape.rows()] each; null where nobody wants them.
struct BlockRows {
  BlockShape shape;
  std::int32_t mask_token_id;
  PACKED_SS_BLOCK_ROWS(PACKED_SS_MEMBER)
};

// What pack_block is given. Of the state it reads tokens, length, cache_len, draft and finish_reason.
struct PackBlock {
  BlockState state;
  BlockRows rows;
};

// What advance_block is given.
struct AdvanceBlock {
  BlockState state;
  BlockShape shape;
  const std::int32_t* ids;       // [N, columns], the token of each row, -1 where it has none
  std::int64_t columns;          // all rows of the call, or its verifier rows: then the next draft is drawn later
  const std::int32_t* accepted;  // [N, verifier rows], whether each draft token is; null: where it is the verifier's
  BlockRows next;
};

}  // namespace packed_ss
