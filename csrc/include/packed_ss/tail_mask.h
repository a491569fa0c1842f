// Who sees whom among the rows of one call; the prefix, which every row sees, has no mask.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/views.h"

namespace packed_ss {

// Whether row r sees row s: verifier rows are causal; a region sees the verifier rows before its cut's offset and all of itself.
PACKED_SS_HOST_DEVICE bool sees(const BlockShape& shape, std::int64_t r, std::int64_t s) {
  const std::int64_t v = shape.verifier_rows;
  const std::int64_t b = shape.block_size;
  if (r < v) return s <= r;
  const std::int64_t region = (r - v) / b;
  if (s < v) return s < shape.cuts[region];
  return s < shape.rows() && (s - v) / b == region;
}

// Word w of row r's bitmask: bit k is set iff row r sees row 32 w + k. Pad bits are zero.
PACKED_SS_HOST_DEVICE std::int32_t tail_mask_word(const BlockShape& shape, std::int64_t r, std::int64_t w) {
  std::uint32_t word = 0;
  for (std::int64_t k = 0; k < 32; ++k) {
    if (sees(shape, r, 32 * w + k)) word |= std::uint32_t{1} << k;
  }
  return static_cast<std::int32_t>(word);
}

// What a bitmask [..., ceil(slots / 32)] says about one row.
PACKED_SS_HOST_DEVICE bool is_visible(const std::int32_t* row_words, std::int64_t slot) {
  return (static_cast<std::uint32_t>(row_words[slot / 32]) >> (slot % 32)) & 1u;
}

}  // namespace packed_ss
