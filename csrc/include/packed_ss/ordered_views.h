// Plain views of the ordered layout: a generation's state, a call's shape, and what its rows say. The caller owns the memory.
//
// N sequences, R rows a call, W window, P waiting tokens, T token capacity. All state is int32 and contiguous; what the tensors
// mean is stated by OrderedState of the Python package. Positions are absolute.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"

namespace packed_ss {

// The most positions of a window.
constexpr std::int32_t kMostWindow = 1024;

// The state that a resolve advances.
struct OrderedState {
  std::int64_t sequences;             // N
  std::int64_t capacity;              // T
  std::int64_t width;                 // W, at most kMostWindow
  std::int64_t waiting_width;         // P
  std::int64_t calls;                 // columns of advances
  std::int64_t stop_count;            // S, may be 0
  std::int64_t stop_length;           // M
  std::int32_t* tokens;               // [N, T], by position, -1 where open
  std::int32_t* length;               // [N], the leftmost open position
  std::int32_t* cache_len;            // [N]
  std::int32_t* finish_reason;        // [N], FinishReason
  std::int32_t* nfe;                  // [N]
  std::int32_t* advances;             // [N, calls]
  std::int32_t* end;                  // [N], E + 1
  std::int32_t* stopped;              // [N], whether a stop has set `end`
  const std::int32_t* prompt_length;  // [N]
  const std::int32_t* stops;          // [S, M], right-aligned, padded with -1
  std::int32_t* order;                // [N, W], the window's open positions by rank, -1 beyond
  std::int32_t* draft;                // [N, W], by rank, -1 where there is none
  std::int32_t* waiting;              // [N, P], accepted positions whose rows are due, -1 beyond
  std::int32_t* cached;               // [N, T], positions by cache slot
  std::int32_t* source;               // [N, T], of moved slots
  std::int32_t* moved;                // [N], the first slot that takes another's pair
  std::int32_t* retained;             // [N, 2], first logits row and number of the rows to draw the next draft from
};

// The shape of a call: rows [N | O | M | R]. Passed by value, so that a kernel has it without a read.
struct OrderedShape {
  std::int32_t waiting_rows;       // of N
  std::int32_t window;             // ranks, 1 ... W
  std::int32_t drafts;             // 1 with O, else 0
  std::int32_t verifies;           // 1 with M, else 0
  std::int32_t cut_count;          // regions of R
  std::int16_t cuts[kMostWindow];  // ascending, the first is 0

  PACKED_SS_HOST_DEVICE std::int64_t rows() const {
    return waiting_rows + static_cast<std::int64_t>(drafts + verifies + cut_count) * window;
  }
  // M and R, which have logits.
  PACKED_SS_HOST_DEVICE std::int64_t head_rows() const { return static_cast<std::int64_t>(verifies + cut_count) * window; }
};

// What the rows of a call say. Value: float, or double of float64 logits.
template <class Value>
struct OrderedResults {
  const std::int32_t* ids;  // [N, columns], tokens of the rows of M and R, or of M alone; -1 where a row has none
  std::int64_t columns;
  const Value* probability;      // [N, columns], of these tokens; null where nobody asks
  const std::int32_t* accepted;  // [N, W], whether each draft token is; null: where it is the verifier's
};

// Scratch memory of a team, W entries each; `score` is for an order by confidence alone.
template <class Value>
struct OrderedScratch {
  std::int32_t* positions;
  std::int32_t* rank;
  Value* score;
};

}  // namespace packed_ss
