// What the row operators are given. Scores are float, or double of float64 logits. The caller has checked shapes, and owns the
// memory.
#pragma once

#include <cstdint>

#include "packed_ss/views.h"

namespace packed_ss {

struct ArgmaxCall {
  RowList list;
  std::int32_t* ids;  // [N, M]
  void* probability;  // [N, M], null where nobody wants it
};

struct DrawCall {
  RowList list;
  std::uint32_t stream;    // packed_ss::Stream
  std::int32_t* ids;       // [N, M]
  void* log_q;             // [N, M, V], null where nobody wants it
  std::int32_t* next_ids;  // [N, next_stride], where tokens go too, from `next_column` on; null where nobody wants them there
  std::int64_t next_stride;
  std::int64_t next_column;
};

struct VerifyCall {
  RowList list;
  const void* draft_log_q;  // [N, draft_width, V]
  std::int32_t* ids;        // [N, M]
  std::int32_t* accepted;   // [N, M]
};

}  // namespace packed_ss
