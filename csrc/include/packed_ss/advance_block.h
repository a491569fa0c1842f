// What follows a call's tokens in the block layout, for one sequence at a time: accept, truncate, append, retain, and the next
// call's rows (Algorithm 1, lines 6-10). A team (team.h) works on a sequence; all of its lanes make the same calls.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/team.h"
#include "packed_ss/views.h"

namespace packed_ss {

// Whether the tokens before `end` of sequence i (prompt excluded) end with stop s.
PACKED_SS_HOST_DEVICE bool ends_with_stop(const BlockState& state, std::int64_t i, std::int32_t end, std::int64_t s) {
  const std::int32_t* tokens = state.tokens + i * state.capacity;
  const std::int32_t* stop = state.stops + (i * state.stop_count + s) * state.stop_length;
  for (std::int64_t m = state.stop_length - 1, t = end - 1; m >= 0 && stop[m] >= 0; --m, --t) {
    if (t < state.prompt_length[i] || tokens[t] != stop[m]) return false;
  }
  return true;
}

// Appends the first a of the A accepted tokens d_1 ... d_h, `token` (lines 7-9); `failed`: the row after d_h had no finite
// maximum, so that A = h and the sequence ends with an error unless a stop or the limit comes first. a = min(A, tokens left to
// the limit, first stop). One lane calls it, for a running sequence, before the draft is overwritten. Returns a.
PACKED_SS_HOST_DEVICE std::int32_t commit(const BlockState& state, std::int64_t i, std::int32_t matches, std::int32_t token) {
  const bool failed = token < 0;
  const std::int32_t n = state.length[i];
  const std::int32_t end = state.limit[i] < state.capacity ? state.limit[i] : static_cast<std::int32_t>(state.capacity);
  const std::int32_t room = end > n ? end - n : 0;
  const std::int32_t accepted = failed ? matches : matches + 1;
  const std::int32_t most = accepted < room ? accepted : room;
  std::int32_t* tokens = state.tokens + i * state.capacity;

  std::int32_t advance = 0;
  bool stopped = false;
  while (advance < most && !stopped) {
    tokens[n + advance] = advance < matches ? state.draft[i * state.width + advance] : token;
    ++advance;
    for (std::int64_t s = 0; s < state.stop_count && !stopped; ++s) stopped = ends_with_stop(state, i, n + advance, s);
  }

  if (stopped) {
    state.finish_reason[i] = kStop;
  } else if (advance == room) {
    state.finish_reason[i] = kLength;
  } else if (failed) {
    state.finish_reason[i] = kError;
  }
  if (state.nfe[i] < state.calls) state.advances[i * state.calls + state.nfe[i]] = advance;
  state.length[i] = n + advance;
  state.cache_len[i] += advance;
  ++state.nfe[i];
  return advance;
}

// Rows first ... first + count - 1 of the call propose the draft for positions n, n + 1, ... of the advanced sequence.
struct ProposalRows {
  std::int64_t first;
  std::int32_t count;
};

// The branch with the largest cut c <= h, and in it the positions still open after an advance of a = h + 1: W - 1 - (h - c) of
// them (one more in the first call, whose region starts later). A call that only proposes has a = 0: every position after the
// last token.
PACKED_SS_HOST_DEVICE ProposalRows retained_rows(const BlockShape& shape, std::int32_t matches, std::int32_t advance) {
  std::int32_t branch = 0;
  while (branch + 1 < shape.cut_count && shape.cuts[branch + 1] <= matches) ++branch;
  const std::int32_t inside = advance - shape.cuts[branch] + 1 - shape.shift;
  const std::int32_t count = shape.block_size - inside;
  return {shape.verifier_rows + static_cast<std::int64_t>(branch) * shape.block_size + inside, count > 0 ? count : 0};
}

// kappa: leading entries of the draft that are there; with `pending` also those that are still to be drawn.
template <class Team>
PACKED_SS_HOST_DEVICE std::int32_t draft_length(const BlockState& state, std::int64_t i, bool pending, const Team& team) {
  auto kappa = static_cast<std::int32_t>(state.width);
  for (std::int32_t j = team.lane(); j < kappa; j += team.lanes()) {
    const std::int64_t at = i * state.width + j;
    if (state.draft[at] < 0 && !(pending && state.retained[at] >= 0)) kappa = j;
  }
  return team.min(kappa);
}

// Writes row r of sequence i of a call: its token, position, cache slot and what it predicts.
PACKED_SS_HOST_DEVICE void write_block_row(const BlockState& state, const BlockRows& rows, std::int64_t i, std::int64_t r,
                                           std::int32_t kappa) {
  const std::int64_t v = rows.shape.verifier_rows;
  const std::int64_t b = rows.shape.block_size;
  std::int64_t offset = r;         // position less that of the last token
  std::int64_t entry = r;          // 0: the last token, k: d_k
  std::int64_t predicted = r + 1;  // the same of the token that the row predicts
  bool is_mask = false;
  bool is_asked = r <= kappa;
  if (r >= v) {
    const std::int64_t inside = (r - v) % b;
    entry = rows.shape.cuts[(r - v) / b];
    offset = predicted = entry + inside;
    is_mask = inside > 0;
    // The first row of a region has no use; after an advance of at least one, neither has the one that predicts the next token.
    is_asked = entry <= kappa && inside >= (v > 0 ? 2 : 1);
  }
  const std::int32_t last = state.length[i] - 1;
  std::int32_t id = rows.mask_token_id;
  if (!is_mask && entry == 0) {
    if (last >= 0 && last < state.capacity) id = state.tokens[i * state.capacity + last];
  } else if (!is_mask && entry <= state.width && state.draft[i * state.width + entry - 1] >= 0) {
    id = state.draft[i * state.width + entry - 1];
  }
  const std::int64_t at = i * rows.shape.rows() + r;
  rows.ids[at] = id;
  rows.positions[at] = last + static_cast<std::int32_t>(offset);
  rows.slots[at] = state.cache_len[i] + static_cast<std::int32_t>(r);
  rows.predicts[at] = is_asked && state.finish_reason[i] == kRunning ? last + static_cast<std::int32_t>(predicted) : -1;
}

// pack_block of one sequence, `pending` as draft_length has it.
template <class Team>
PACKED_SS_HOST_DEVICE void pack_block_sequence(const BlockState& state, const BlockRows& rows, std::int64_t i, bool pending,
                                               const Team& team) {
  const std::int32_t kappa = draft_length(state, i, pending, team);
  for (std::int64_t r = team.lane(); r < rows.shape.rows(); r += team.lanes()) write_block_row(state, rows, i, r, kappa);
}

// advance_block of one sequence.
template <class Team>
PACKED_SS_HOST_DEVICE void advance_block_sequence(const AdvanceBlock& call, std::int64_t i, const Team& team) {
  const BlockState& state = call.state;
  const BlockShape& shape = call.shape;
  const std::int32_t* ids = call.ids + i * call.columns;
  const std::int32_t v = shape.verifier_rows;
  const bool was_running = state.finish_reason[i] == kRunning;
  std::int32_t matches = 0;
  std::int32_t advance = 0;
  if (was_running && v > 0) {
    const std::int32_t* draft = state.draft + i * state.width;
    const std::int32_t* accepted = call.accepted == nullptr ? nullptr : call.accepted + i * v;
    std::int32_t h = v - 1 < state.width ? v - 1 : static_cast<std::int32_t>(state.width);
    for (std::int32_t j = team.lane(); j < h; j += team.lanes()) {
      if (draft[j] < 0 || !(accepted != nullptr ? accepted[j] > 0 : ids[j] == draft[j])) h = j;
    }
    matches = team.min(h);
    advance = matches + 1;
  }
  team.sync();  // every lane has read what it needs of the state before any of it changes
  if (was_running && team.lane() == 0) {
    if (v > 0) {
      commit(state, i, matches, ids[matches]);
    } else {
      ++state.nfe[i];
    }
  }
  team.sync();
  const bool goes_on = was_running && state.finish_reason[i] == kRunning;
  const ProposalRows open = goes_on && shape.cut_count > 0 ? retained_rows(shape, matches, advance) : ProposalRows{0, 0};
  const bool drawn_later = call.columns < shape.rows();
  for (std::int32_t j = team.lane(); j < state.width; j += team.lanes()) {
    const std::int64_t at = i * state.width + j;
    const bool is_open = j < open.count;
    state.draft[at] = is_open && !drawn_later ? ids[open.first + j] : -1;
    state.retained[at] = is_open && drawn_later ? static_cast<std::int32_t>(open.first) + j : -1;
    if (was_running) state.order[at] = state.length[i] + j;
  }
  if (call.next.ids == nullptr) return;
  team.sync();
  pack_block_sequence(state, call.next, i, true, team);
}

}  // namespace packed_ss
