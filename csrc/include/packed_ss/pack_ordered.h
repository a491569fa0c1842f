// The rows of a call of the ordered layout, [N | O | M | R], and who sees whom among them (App. D.2); the prefix has no mask.
//
// A sequence's DraftBits are found first, by a team, in scratch memory; every row and every word of the mask is then written by
// itself.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/ordered_views.h"
#include "packed_ss/team.h"

namespace packed_ss {

// The token at a position, -1 where it is open and outside of the buffer.
PACKED_SS_HOST_DEVICE std::int32_t token_at(const OrderedState& s, std::int64_t i, std::int64_t position) {
  return position >= 0 && position < s.capacity ? s.tokens[i * s.capacity + position] : -1;
}

// What the rows of a sequence have in common.
struct DraftBits {
  const std::uint32_t* drafted;  // bit r % 32 of word r / 32: rank r has a draft token; ceil(window / 32) words
  std::int32_t leading;          // kappa, ranks before the first that has none; -1 where the sequence is finished
  std::int32_t waiting;          // p, rows of N that are there
};

// Finds them, in `words` [kWindowWords]. `pending`: tokens that are still to be drawn count too.
template <class Team>
PACKED_SS_HOST_DEVICE DraftBits find_draft_bits(const OrderedState& s, const OrderedShape& shape, std::int64_t i, bool pending,
                                                std::uint32_t* words, const Team& team) {
  const std::int64_t base = i * s.width;
  std::int32_t leading = shape.window;
  for (std::int32_t w = team.lane(); 32 * w < shape.window; w += team.lanes()) {
    std::uint32_t word = 0;
    for (std::int32_t r = 32 * w; r < 32 * w + 32 && r < shape.window; ++r) {
      if (s.order[base + r] >= 0 && (s.draft[base + r] >= 0 || (pending && s.retained[base + r] >= 0))) {
        word |= std::uint32_t{1} << (r % 32);
      } else if (r < leading) {
        leading = r;
      }
    }
    words[w] = word;
  }
  std::int32_t p = shape.waiting_rows;
  for (std::int32_t k = team.lane(); k < p; k += team.lanes()) {
    if (s.waiting[i * s.waiting_width + k] < 0) p = k;
  }
  if (s.finish_reason[i] != kRunning) leading = -1;
  leading = team.min(leading);
  return {words, leading, team.min(p)};
}

// The position that a row stands for, -1 where for nothing, and its slot behind the cache.
struct RowTarget {
  std::int32_t position;
  std::int64_t tail_slot;
};

PACKED_SS_HOST_DEVICE RowTarget target_of_row(const OrderedState& s, const OrderedShape& shape, std::int64_t i, std::int64_t r,
                                              std::int32_t p) {
  if (r < shape.waiting_rows) return {s.waiting[i * s.waiting_width + r], r};
  return {s.order[i * s.width + (r - shape.waiting_rows) % shape.window], r - shape.waiting_rows + p};
}

// Writes the token, position and slot of row r of sequence i, and what it predicts.
PACKED_SS_HOST_DEVICE void write_ordered_row(const OrderedState& s, const OrderedRows& rows, std::int64_t i, std::int64_t r,
                                             DraftBits bits) {
  const OrderedShape& shape = rows.shape;
  const RowTarget target = target_of_row(s, shape, i, r, bits.waiting);
  const std::int64_t inside = r - shape.waiting_rows;
  std::int32_t id = rows.mask_token_id;
  std::int32_t predicts = -1;
  if (inside < 0) {
    if (target.position >= 0) id = token_at(s, i, target.position);
  } else {
    const std::int64_t rank = inside % shape.window;
    const std::int64_t region = inside / shape.window - shape.drafts;  // -1: O, 0: M where the call verifies
    if (region < 0) {
      if (target.position >= 0 && s.draft[i * s.width + rank] >= 0) id = s.draft[i * s.width + rank];
    } else if (region < shape.verifies) {
      if (rank <= bits.leading) predicts = target.position;
    } else {
      // With verifier rows the token at the cut itself is theirs.
      const std::int32_t cut = shape.cuts[region - shape.verifies];
      if (cut <= bits.leading && rank >= cut + shape.verifies) predicts = target.position;
    }
  }
  const std::int64_t at = i * shape.rows() + r;
  rows.ids[at] = id;
  rows.positions[at] = target.position < 0 ? 0 : target.position;
  rows.slots[at] = target.position < 0 ? rows.spare_slot : s.cache_len[i] + static_cast<std::int32_t>(target.tail_slot);
  rows.predicts[at] = predicts;
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
  const RowTarget target = target_of_row(s, shape, i, r, bits.waiting);
  std::uint32_t word = 0;
  if (target.position >= 0) {
    const std::int64_t first = 32 * w;
    const std::int64_t p = bits.waiting;
    const std::int64_t inside = r - shape.waiting_rows;
    word = low_bits((inside < 0 && r < p ? r + 1 : p) - first);
    if (inside >= 0 && shape.drafts) {
      const std::int64_t branch = inside / shape.window - shape.drafts - shape.verifies;
      const std::int64_t before = branch < 0 ? inside % shape.window : shape.cuts[branch];
      word |= bits_from(bits.drafted, (shape.window + 31) / 32, first - p) & low_bits(p + before - first);
    }
    if (target.tail_slot >= first && target.tail_slot < first + 32) word |= std::uint32_t{1} << (target.tail_slot - first);
  }
  rows.tail_mask[(i * shape.rows() + r) * rows.mask_words() + w] = static_cast<std::int32_t>(word);
}

// What there is to write for one sequence: its rows, and the words of their masks.
PACKED_SS_HOST_DEVICE std::int64_t ordered_items(const OrderedRows& rows) { return rows.shape.rows() * (1 + rows.mask_words()); }

PACKED_SS_HOST_DEVICE void write_ordered_item(const OrderedState& s, const OrderedRows& rows, std::int64_t i, std::int64_t item,
                                              DraftBits bits) {
  const std::int64_t row_count = rows.shape.rows();
  if (item < row_count) {
    write_ordered_row(s, rows, i, item, bits);
  } else {
    write_mask_word(s, rows, i, (item - row_count) / rows.mask_words(), (item - row_count) % rows.mask_words(), bits);
  }
}

// pack_ordered of one sequence; `pending` and `words` as find_draft_bits has them.
template <class Team>
PACKED_SS_HOST_DEVICE void pack_ordered_sequence(const OrderedState& s, const OrderedRows& rows, std::int64_t i, bool pending,
                                                 std::uint32_t* words, const Team& team) {
  const DraftBits bits = find_draft_bits(s, rows.shape, i, pending, words, team);
  for (std::int64_t item = team.lane(); item < ordered_items(rows); item += team.lanes()) {
    write_ordered_item(s, rows, i, item, bits);
  }
}

}  // namespace packed_ss
