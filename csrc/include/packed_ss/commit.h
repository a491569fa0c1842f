// What follows a verdict, for one sequence at a time: accept, truncate, append, retain, and the next call's rows.
//
// A resolve does, for every sequence i that is running:
//   calls that verify:   drafts = verified_drafts(...);  find h (matches) and the token of row h, or that the row failed
//                        a = commit(state, i, h, token, failed)
//                        if still running and the call has cuts: draft the rows of retained_rows(shape, h, a), store_draft
//   calls that propose:  propose_only(state, i);  draft the rows of open_rows(shape), store_draft
// and store_draft_length for every sequence, 0 where it has finished or the call has no cuts. Then write_row for all rows.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/views.h"

namespace packed_ss {

PACKED_SS_HOST_DEVICE bool is_running(const DecodeState& state, std::int64_t i) { return state.finish_reason[i] == kRunning; }

// Draft tokens that a call of v >= 1 verifier rows can verify: min(|D|, v - 1). Its rows 0 ... that may be consulted.
PACKED_SS_HOST_DEVICE std::int32_t verified_drafts(const DecodeState& state, const CallShape& shape, std::int64_t i) {
  const std::int32_t most = shape.verifier_rows - 1;
  const std::int32_t drafts = state.draft_len[i] < 0 ? 0 : state.draft_len[i];
  return drafts < most ? drafts : most;
}

// Whether the tokens before `end` of sequence i (prompt excluded) end with stop s.
PACKED_SS_HOST_DEVICE bool ends_with_stop(const DecodeState& state, std::int64_t i, std::int32_t end, std::int64_t s) {
  const std::int32_t* tokens = state.tokens + i * state.capacity;
  const std::int32_t* stop = state.stops + s * state.stop_length;
  for (std::int64_t m = state.stop_length - 1, t = end - 1; m >= 0 && stop[m] >= 0; --m, --t) {
    if (t < state.prompt_length[i] || tokens[t] != stop[m]) return false;
  }
  return true;
}

// Appends the first a of the A accepted tokens d_1 ... d_h, `token` (Algorithm 1, lines 7-9); `failed`: the row after d_h had no
// finite maximum, so that A = h and the sequence ends with an error unless a stop or the limit comes first.
// a = min(A, tokens left to the limit, first stop). Advances tokens, length, cache_len, nfe, advances and finish_reason.
// Must be called for running sequences only, and before the draft is overwritten. Returns a.
PACKED_SS_HOST_DEVICE std::int32_t commit(const DecodeState& state, std::int64_t i, std::int32_t matches, std::int32_t token,
                                          bool failed) {
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

// Counts a call that only proposes (v = 0). Must be called for running sequences only.
PACKED_SS_HOST_DEVICE void propose_only(const DecodeState& state, std::int64_t i) { ++state.nfe[i]; }

// Rows first ... first + count - 1 of the call propose the draft for positions n, n + 1, ... of the advanced sequence.
struct ProposalRows {
  std::int64_t first;
  std::int32_t count;
};

// After a call that only proposed: every position after the last token, W of them.
PACKED_SS_HOST_DEVICE ProposalRows open_rows(const CallShape& shape) { return {1, shape.block_size - 1}; }

// After h matches and an advance of h + 1: the branch with the largest cut c <= h, and in it the positions still open,
// W - 1 - (h - c) of them (one more in the first call, whose region starts later).
PACKED_SS_HOST_DEVICE ProposalRows retained_rows(const CallShape& shape, std::int32_t matches, std::int32_t advance) {
  std::int32_t branch = 0;
  while (branch + 1 < shape.cut_count && shape.cuts[branch + 1] <= matches) ++branch;
  const std::int32_t inside = advance - shape.cuts[branch] + 1 - shape.shift;
  const std::int32_t count = shape.block_size - inside;
  return {shape.verifier_rows + static_cast<std::int64_t>(branch) * shape.block_size + inside, count > 0 ? count : 0};
}

PACKED_SS_HOST_DEVICE void store_draft(const DecodeState& state, std::int64_t i, std::int32_t j, std::int32_t token) {
  state.draft[i * state.width + j] = token;
}

PACKED_SS_HOST_DEVICE void store_draft_length(const DecodeState& state, std::int64_t i, std::int32_t count) {
  state.draft_len[i] = count;
}

// Writes row r of sequence i of the next call: its token, position and cache slot. State as it is after the call.
PACKED_SS_HOST_DEVICE void write_row(const DecodeState& state, const NextRows& next, std::int64_t i, std::int64_t r) {
  const std::int64_t v = next.shape.verifier_rows;
  const std::int64_t b = next.shape.block_size;
  std::int64_t offset = r;  // position less that of the last token
  std::int64_t source = r;  // 0: the last token, k: d_k
  bool is_mask = false;
  if (r >= v) {
    const std::int64_t inside = (r - v) % b;
    source = next.shape.cuts[(r - v) / b];
    offset = source + inside;
    is_mask = inside > 0;
  }
  const std::int32_t last = state.length[i] - 1;
  std::int32_t id = next.mask_token_id;
  if (!is_mask && source == 0) {
    if (last >= 0 && last < state.capacity) id = state.tokens[i * state.capacity + last];
  } else if (!is_mask && source <= state.draft_len[i] && source <= state.width) {
    id = state.draft[i * state.width + source - 1];
  }
  const std::int64_t at = i * next.shape.rows() + r;
  next.ids[at] = id;
  next.positions[at] = last + static_cast<std::int32_t>(offset);
  next.slots[at] = state.cache_len[i] + static_cast<std::int32_t>(r);
}

}  // namespace packed_ss
