// Plain views of what the resolve and pack operators work on. The caller has checked shapes, and owns the memory.
//
// N sequences, R rows a call, V vocabulary, B block size, W = B - 1, T token capacity. All state is int32 and contiguous.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"

namespace packed_ss {

enum class DType : std::int32_t { kFloat32, kBFloat16, kFloat16, kFloat64 };

// finish_reason codes.
enum FinishReason : std::int32_t { kRunning = 0, kStop = 1, kLength = 2, kError = 3 };

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

// The state that a resolve advances. It is written by `commit`, `propose_only` and `store_draft` (commit.h) alone.
struct DecodeState {
  std::int64_t sequences;             // N
  std::int64_t capacity;              // T
  std::int64_t width;                 // W
  std::int64_t calls;                 // columns of advances
  std::int64_t stop_count;            // S, may be 0
  std::int64_t stop_length;           // M
  std::int32_t* tokens;               // [N, T]
  std::int32_t* length;               // [N], n
  std::int32_t* cache_len;            // [N]
  std::int32_t* draft;                // [N, W]
  std::int32_t* draft_len;            // [N]
  std::int32_t* finish_reason;        // [N], FinishReason
  std::int32_t* nfe;                  // [N]
  std::int32_t* advances;             // [N, calls]
  const std::int32_t* limit;          // [N], length at which the output must end
  const std::int32_t* prompt_length;  // [N]
  const std::int32_t* stops;          // [S, M], right-aligned, padded with -1
};

// Most cuts of one call: a quadratic call of this many has 65,792 rows.
constexpr int kMaxCuts = 256;

// The shape of a call: verifier rows [last, d_1 ... d_{v-1}], then for each cut c a region [token at offset c, MASK^{B-1}].
// Passed by value, so that a kernel has it without a read.
struct CallShape {
  std::int32_t verifier_rows;   // v, 0 ... B; with 0 the call only proposes
  std::int32_t block_size;      // B
  std::int32_t shift;           // 1 for the first call, whose region is all MASK and starts one position later; else 0
  std::int32_t cut_count;       // K
  std::int16_t cuts[kMaxCuts];  // ascending, the first is 0

  PACKED_SS_HOST_DEVICE std::int64_t rows() const { return verifier_rows + static_cast<std::int64_t>(cut_count) * block_size; }
};

// Where the next call's rows go, and its shape; `ids` is null where nobody wants them.
struct NextRows {
  CallShape shape;
  std::int32_t mask_token_id;
  std::int32_t* ids;        // [N, shape.rows()]
  std::int32_t* positions;  // [N, shape.rows()]
  std::int32_t* slots;      // [N, shape.rows()]
};

// What every resolve is given.
struct ResolveCall {
  Logits logits;
  DecodeState state;
  CallShape shape;
  NextRows next;
};

// How the processed distribution is made and drawn from: temperature, then top-k, then top-p.
struct Sampling {
  const std::int64_t* seed;  // [N]
  double temperature;        // > 0
  std::int64_t top_k;        // 0: every token
  double top_p;              // 1: every token
};

}  // namespace packed_ss
