// CPU kernel of rope_store, free of torch.
#pragma once

#include <cstdint>

#include "packed_ss/views.h"

namespace packed_ss::cpu {

// Rows of one head: element (row, d) is at data[row * row_stride + d].
template <typename Pointer>
struct HeadRows {
  Pointer data;
  std::int64_t row_stride;
};

// Rotates `rows` rows of one head of `size` elements, pair (d, d + size / 2) by the angle of the row, times the row's scale where
// there are scales. cos and sin are [rows, size / 2], scale [rows]; all in `dtype`. Row r is written to row slots[r] of out, or
// to row r where slots is null. The arithmetic is that of the plain-torch version: after each operation one rounding to `dtype`,
// products with sin excepted, which a sum takes as they are.
void rotate_head(DType dtype, HeadRows<const void*> in, const void* cos, const void* sin, const void* scale,
                 const std::int32_t* slots, std::int64_t rows, std::int64_t size, HeadRows<void*> out);

// Copies rows of one head to rows slots[r] of out; `bytes` is the size of a row of the head, strides count bytes here.
void store_head(HeadRows<const void*> in, const std::int32_t* slots, std::int64_t rows, std::int64_t bytes, HeadRows<void*> out);

}  // namespace packed_ss::cpu
