// The rows of a call of the ordered layout, [N | O | M | R], and who sees whom among them (App. D.2); the prefix has no mask.
//
// A sequence's DraftBits are found first, by a team, in scratch memory; every row and every word of the mask then stands for
// itself.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/ordered.h"

namespace packed_ss {

// Words of a bitmask over the ranks of a window.
constexpr int kWindowWords = kMostWindow / 32;

// Where the rows of a call go. Of the state only tokens, cache_len, order, draft and waiting are read.
struct OrderedRows {
  OrderedShape shape;
  std::int32_t mask_token_id;
  std::int32_t spare_slot;  // of rows that stand for nothing
  std::int32_t* ids;        // [N, R]
  std::int32_t* positions;  // [N, R]
  std::int32_t* slots;      // [N, R]
  std::int32_t* tail_mask;  // [N, R, ceil(R / 32)]: row r sees tail slot 32 w + k iff bit k of word w is set
  std::int32_t* consulted;  // [N, 2], first logits row and number of the verifier rows that may be consulted

  PACKED_SS_HOST_DEVICE std::int64_t mask_words() const { return (shape.rows() + 31) / 32; }
};

// What the rows of a sequence have in common.
struct DraftBits {
  const std::uint32_t* drafted;  // bit r % 32 of word r / 32: rank r has a draft token; ceil(window / 32) words
  std::int32_t waiting;          // p, rows of N that are there
};

// Finds them, in `words` [kWindowWords], and writes `consulted`.
template <class Team>
PACKED_SS_HOST_DEVICE DraftBits find_draft_bits(const OrderedState& s, const OrderedRows& rows, std::int64_t i,
                                                std::uint32_t* words, const Team& team) {
  const OrderedShape& shape = rows.shape;
  const std::int32_t* order = s.order + i * s.width;
  const std::int32_t* draft = s.draft + i * s.width;
  for (std::int32_t w = team.lane(); 32 * w < shape.window; w += team.lanes()) {
    std::uint32_t word = 0;
    for (std::int32_t k = 0; k < 32; ++k) {
      const std::int32_t r = 32 * w + k;
      if (r < shape.window && order[r] >= 0 && draft[r] >= 0) word |= std::uint32_t{1} << k;
    }
    words[w] = word;
  }
  std::int32_t p = shape.waiting_rows;
  for (std::int32_t k = team.lane(); k < p; k += team.lanes()) {
    if (s.waiting[i * s.waiting_width + k] < 0) p = k;
  }
  p = team.min(p);
  std::int32_t u = shape.window;
  std::int32_t leading = shape.window;  // kappa
  for (std::int32_t r = team.lane(); r < u; r += team.lanes()) {
    if (r < leading && (order[r] < 0 || draft[r] < 0)) leading = r;
    if (order[r] < 0) u = r;
  }
  u = team.min(u);
  leading = team.min(leading);
  if (team.lane() == 0) {
    rows.consulted[2 * i] = 0;
    rows.consulted[2 * i + 1] = shape.verifies == 0 ? 0 : leading + 1 < u ? leading + 1 : u;
  }
  return {words, p};
}

// What row r stands for: its position, -1 where for nothing, and its slot behind the cache.
struct OrderedPlace {
  std::int32_t position;
  std::int64_t tail;
};

PACKED_SS_HOST_DEVICE OrderedPlace place_of_row(const OrderedState& s, const OrderedShape& shape, std::int64_t i, std::int64_t r,
                                                std::int32_t p) {
  if (r < shape.waiting_rows) return {s.waiting[i * s.waiting_width + r], r};
  return {s.order[i * s.width + (r - shape.waiting_rows) % shape.window], r - shape.waiting_rows + p};
}

// Writes the token, position and slot of row r of sequence i.
PACKED_SS_HOST_DEVICE void write_ordered_row(const OrderedState& s, const OrderedRows& rows, std::int64_t i, std::int64_t r,
                                             DraftBits bits) {
  const OrderedShape& shape = rows.shape;
  const OrderedPlace place = place_of_row(s, shape, i, r, bits.waiting);
  std::int32_t id = rows.mask_token_id;
  if (r < shape.waiting_rows) {
    if (place.position >= 0) id = token_at(s, i, place.position);
  } else if (shape.drafts && r < shape.waiting_rows + shape.window) {
    const std::int64_t rank = r - shape.waiting_rows;
    if ((bits.drafted[rank / 32] >> (rank % 32)) & 1u) id = s.draft[i * s.width + rank];
  }
  const std::int64_t at = i * shape.rows() + r;
  rows.ids[at] = id;
  rows.positions[at] = place.position < 0 ? 0 : place.position;
  rows.slots[at] = place.position < 0 ? rows.spare_slot : s.cache_len[i] + static_cast<std::int32_t>(place.tail);
}

// A word whose lowest `count` bits are set.
PACKED_SS_HOST_DEVICE std::uint32_t low_bits(std::int64_t count) {
  return count <= 0 ? 0u : count >= 32 ? ~0u : (std::uint32_t{1} << count) - 1u;
}

// Bits offset ... offset + 31 of a bitmask of `words` words; zero outside of it.
PACKED_SS_HOST_DEVICE std::uint32_t bits_from(const std::uint32_t* mask, std::int64_t words, std::int64_t offset) {
  const std::int64_t word = offset >= 0 ? offset / 32 : -((31 - offset) / 32);
  const auto shift = static_cast<int>(offset - 32 * word);
  const std::uint32_t low = word >= 0 && word < words ? mask[word] : 0u;
  const std::uint32_t high = word + 1 >= 0 && word + 1 < words ? mask[word + 1] : 0u;
  return shift == 0 ? low : (low >> shift) | (high << (32 - shift));
}

// Writes word w of row r's mask: the waiting tokens before it and itself for a row of N; all of them, the draft tokens of earlier
// ranks (of a branch cut's first ranks) and itself for another.
PACKED_SS_HOST_DEVICE void write_mask_word(const OrderedState& s, const OrderedRows& rows, std::int64_t i, std::int64_t r,
                                           std::int64_t w, DraftBits bits) {
  const OrderedShape& shape = rows.shape;
  const OrderedPlace place = place_of_row(s, shape, i, r, bits.waiting);
  std::uint32_t word = 0;
  if (place.position >= 0) {
    const std::int64_t first = 32 * w;
    const std::int64_t p = bits.waiting;
    const std::int64_t inside = r - shape.waiting_rows;
    word = low_bits((inside < 0 && r < p ? r + 1 : p) - first);
    if (inside >= 0 && shape.drafts) {
      const std::int64_t branch = inside / shape.window - shape.drafts - shape.verifies;
      const std::int64_t before = branch < 0 ? inside % shape.window : shape.cuts[branch];
      word |= bits_from(bits.drafted, (shape.window + 31) / 32, first - p) & low_bits(p + before - first);
    }
    if (place.tail >= first && place.tail < first + 32) word |= std::uint32_t{1} << (place.tail - first);
  }
  rows.tail_mask[(i * shape.rows() + r) * rows.mask_words() + w] = static_cast<std::int32_t>(word);
}

}  // namespace packed_ss
