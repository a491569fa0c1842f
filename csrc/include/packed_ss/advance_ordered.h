// What follows a call's tokens in the ordered layout, for one sequence at a time: accept, truncate, retain, and the next call's
// rows (Algorithm 3, lines 9-15). A team (team.h) works on a sequence; all of its lanes make the same calls.
#pragma once

#include <cstdint>

#include "packed_ss/host_device.h"
#include "packed_ss/ordered_views.h"
#include "packed_ss/pack_ordered.h"
#include "packed_ss/scores.h"
#include "packed_ss/team.h"

namespace packed_ss {

// A sequence's numbers while it is advanced; every lane has them.
struct OrderedNumbers {
  std::int32_t length;
  std::int32_t cache_len;
  std::int32_t end;
  std::int32_t stopped;
  std::int32_t first_moved;
  std::int32_t finish_reason;
};

PACKED_SS_HOST_DEVICE void store_token(const OrderedState& s, std::int64_t i, std::int64_t position, std::int32_t token) {
  if (position >= 0 && position < s.capacity - 1) s.tokens[i * s.capacity + position] = token;  // the last column is spare
}

PACKED_SS_HOST_DEVICE void store_cached(const OrderedState& s, std::int64_t i, std::int64_t slot, std::int32_t position) {
  if (slot >= 0 && slot < s.capacity - 1) s.cached[i * s.capacity + slot] = position;
}

// Whether a stop's last token is at `last`, the others right before it, none of them in the prompt or from `end` on.
PACKED_SS_HOST_DEVICE bool is_stop_end(const OrderedState& s, std::int64_t i, std::int64_t last, std::int32_t end) {
  if (last >= end) return false;
  for (std::int64_t k = 0; k < s.stop_count; ++k) {
    const std::int32_t* stop = s.stops + (i * s.stop_count + k) * s.stop_length;
    bool matches = true;
    std::int64_t t = last;
    for (std::int64_t m = s.stop_length - 1; matches && m >= 0 && stop[m] >= 0; --m, --t) {
      matches = t >= s.prompt_length[i] && token_at(s, i, t) == stop[m];
    }
    if (matches) return true;
  }
  return false;
}

// Moves the values from `begin` on that `keeps` keeps to the front, in their order; `moves(to, from)` is told of each. Returns
// the end of what is left.
template <class Team, class Keeps, class Moves>
PACKED_SS_HOST_DEVICE std::int32_t compact(std::int32_t* values, std::int32_t begin, std::int32_t end, Keeps keeps, Moves moves,
                                           const Team& team) {
  std::int32_t kept = begin;
  for (std::int32_t base = begin; base < end; base += team.lanes()) {
    const std::int32_t from = base + team.lane();
    const std::int32_t value = from < end ? values[from] : -1;
    const bool keep = from < end && keeps(value);
    const Counted counted = team.count(keep);
    if (keep) {
      values[kept + counted.before] = value;
      moves(kept + counted.before, from);
    }
    kept += counted.total;
  }
  return kept;
}

// The rows of N were part of the call: appends their positions to the cache's order. Nothing waits then.
template <class Team>
PACKED_SS_HOST_DEVICE void cache_waiting(const OrderedState& s, std::int64_t i, OrderedNumbers& now, const Team& team) {
  std::int32_t* waiting = s.waiting + i * s.waiting_width;
  const auto most = static_cast<std::int32_t>(s.waiting_width);
  std::int32_t count = most;
  for (std::int32_t k = team.lane(); k < most; k += team.lanes()) {
    if (waiting[k] < 0 && k < count) count = k;
  }
  count = team.min(count);
  for (std::int32_t k = team.lane(); k < most; k += team.lanes()) {
    if (k < count) store_cached(s, i, std::int64_t{now.cache_len} + k, waiting[k]);
    waiting[k] = -1;
  }
  now.cache_len += count;
}

// Remembers the window before the call: positions by rank, and ranks by position less `length`, which all are W apart at most.
// Returns u.
template <class Value, class Team>
PACKED_SS_HOST_DEVICE std::int32_t open_window(const OrderedState& s, std::int64_t i, std::int32_t window, std::int32_t length,
                                               OrderedScratch<Value> scratch, const Team& team) {
  for (std::int64_t k = team.lane(); k < s.width; k += team.lanes()) scratch.rank[k] = -1;
  team.sync();
  std::int32_t u = window;
  for (std::int32_t r = team.lane(); r < window; r += team.lanes()) {
    const std::int32_t position = s.order[i * s.width + r];
    scratch.positions[r] = position;
    const std::int64_t offset = std::int64_t{position} - length;
    if (position < 0) {
      u = r < u ? r : u;
    } else if (offset >= 0 && offset < s.width) {
      scratch.rank[offset] = r;
    }
  }
  return team.min(u);
}

// The rank of a position in the window before the call, which started at `length`; -1 where it was not in it.
template <class Value>
PACKED_SS_HOST_DEVICE std::int32_t rank_before(const OrderedState& s, OrderedScratch<Value> scratch, std::int32_t length,
                                               std::int32_t position) {
  const std::int64_t offset = std::int64_t{position} - length;
  return offset >= 0 && offset < s.width ? scratch.rank[offset] : -1;
}

// Counts a call of a running sequence.
template <class Team>
PACKED_SS_HOST_DEVICE void count_call(const OrderedState& s, std::int64_t i, std::int32_t advance, const Team& team) {
  if (team.lane() != 0) return;
  const std::int32_t nfe = s.nfe[i];
  if (nfe >= 0 && nfe < s.calls) s.advances[i * s.calls + nfe] = advance;
  s.nfe[i] = nfe + 1;
}

// Line 12: the positions from `now.end` on, which has been less than `end` before, are open again and out of the cache's order.
// All of them are in the last 2 W slots: what was accepted after such a position is less than W to its left or right.
template <class Team>
PACKED_SS_HOST_DEVICE void drop_beyond(const OrderedState& s, std::int64_t i, std::int32_t end, OrderedNumbers& now,
                                       const Team& team) {
  for (std::int64_t t = (now.end > 0 ? now.end : 0) + team.lane(); t < end && t < s.capacity; t += team.lanes()) {
    store_token(s, i, t, -1);
  }
  const std::int32_t new_end = now.end;
  const auto before_end = [new_end](std::int32_t position) { return position < new_end; };
  const auto slots = static_cast<std::int32_t>(now.cache_len < s.capacity ? now.cache_len : s.capacity);
  const std::int64_t recent = slots - 2 * s.width;
  const auto first = static_cast<std::int32_t>(recent > 0 ? recent : 0);
  std::int32_t* moved_from = s.moved_from + i * s.capacity;
  std::int32_t dropped = slots;
  for (std::int32_t slot = first + team.lane(); slot < slots; slot += team.lanes()) {
    if (!before_end(s.cached[i * s.capacity + slot]) && slot < dropped) dropped = slot;
  }
  dropped = team.min(dropped);
  now.cache_len = compact(
      s.cached + i * s.capacity, first, slots, before_end,
      [moved_from](std::int32_t to, std::int32_t from) { moved_from[to] = from; }, team);
  now.first_moved = dropped < now.cache_len ? dropped : now.cache_len;

  std::int32_t* waiting = s.waiting + i * s.waiting_width;
  const auto most = static_cast<std::int32_t>(s.waiting_width);
  const std::int32_t left = compact(
      waiting, 0, most, [new_end](std::int32_t p) { return p >= 0 && p < new_end; }, [](std::int32_t, std::int32_t) {}, team);
  for (std::int32_t k = left + team.lane(); k < most; k += team.lanes()) waiting[k] = -1;
  team.sync();
}

// Lines 11 to 13: stores the tokens of the ranks that are `taken`, moves `end` to the earliest stop, drops what lies beyond,
// counts the call, and finds the leftmost open position and whether the sequence is finished. `failed`: the position whose row
// was consulted and has no finite maximum, or -1. The window is in scratch.positions.
template <class Value, class Taken, class Token, class Team>
PACKED_SS_HOST_DEVICE void commit_ordered(const OrderedState& s, std::int64_t i, std::int32_t window,
                                          OrderedScratch<Value> scratch, std::int32_t failed, Taken taken, Token token,
                                          OrderedNumbers& now, const Team& team) {
  for (std::int32_t r = team.lane(); r < window; r += team.lanes()) {
    if (taken(r)) store_token(s, i, scratch.positions[r], token(r));
  }
  team.sync();
  const std::int32_t end = now.end;
  if (s.stop_count > 0) {
    const std::int64_t after = now.length + s.width + s.stop_length - 1;
    std::int32_t found = INT32_MAX;
    for (std::int64_t last = std::int64_t{now.length} + team.lane(); last < after && last < end && found == INT32_MAX;
         last += team.lanes()) {
      if (is_stop_end(s, i, last, end)) found = static_cast<std::int32_t>(last) + 1;
    }
    found = team.min(found);
    if (found <= end) {
      now.stopped = 1;
      now.end = found;
    }
  }
  std::int32_t advance = 0;
  for (std::int32_t base = 0; base < window; base += team.lanes()) {
    const std::int32_t r = base + team.lane();
    advance += team.count(r < window && taken(r) && scratch.positions[r] < now.end).total;
  }
  count_call(s, i, advance, team);
  now.first_moved = now.cache_len;
  if (now.end < end) drop_beyond(s, i, end, now, team);

  const std::int64_t reach = now.length + s.width + 1;
  std::int64_t open = reach;
  for (std::int64_t t = std::int64_t{now.length} + team.lane(); t < open; t += team.lanes()) {
    if (t >= now.end || token_at(s, i, t) < 0) open = t;
  }
  now.length = static_cast<std::int32_t>(team.min(open));
  now.finish_reason = now.length < now.end ? kRunning : now.stopped > 0 ? kStop : kLength;
  if (failed >= 0 && failed < now.end) now.finish_reason = kError;
}

// What the call proposes for the window before it, by rank.
template <class Value>
struct OrderedProposal {
  const std::int32_t* tokens;  // null where there is none
  const Value* scores;         // null where there is none; those of `tokens` below 0 do not count
  bool drafts;                 // whether the tokens are the next draft
};

// Lines 3-5 and 14-15: the next window, its order, and the draft tokens of positions that stay open; -1 throughout where the
// sequence is finished. `length`: the leftmost open position before the call. `keeps_draft`: the draft is left as it is.
template <class Value, class Team>
PACKED_SS_HOST_DEVICE void next_window(const OrderedState& s, std::int64_t i, std::int32_t length, const OrderedNumbers& now,
                                       OrderedScratch<Value> scratch, OrderedProposal<Value> proposal, bool keeps_draft,
                                       bool by_confidence, const Team& team) {
  std::int32_t* order = s.order + i * s.width;
  std::int32_t* draft = s.draft + i * s.width;
  const auto width = static_cast<std::int32_t>(s.width);
  const auto drafted = [&](std::int32_t position) {
    const std::int32_t rank = rank_before(s, scratch, length, position);
    return proposal.drafts && rank >= 0 ? proposal.tokens[rank] : -1;
  };
  std::int32_t u = 0;
  for (std::int32_t base = 0; base < width; base += team.lanes()) {
    const std::int32_t k = base + team.lane();
    const std::int64_t t = std::int64_t{now.length} + k;
    const bool is_open = now.finish_reason == kRunning && k < width && t < now.end && token_at(s, i, t) < 0;
    const Counted counted = team.count(is_open);
    if (is_open) {
      const std::int32_t at = u + counted.before;
      const auto position = static_cast<std::int32_t>(t);
      if (by_confidence) {
        const std::int32_t rank = rank_before(s, scratch, length, position);
        const bool known = rank >= 0 && proposal.scores != nullptr && proposal.tokens[rank] >= 0;
        scratch.positions[at] = position;
        scratch.score[at] = known ? proposal.scores[rank] : Value{-1};
      } else {
        order[at] = position;
        if (!keeps_draft) draft[at] = drafted(position);
      }
    }
    u += counted.total;
  }
  for (std::int32_t k = u + team.lane(); k < width; k += team.lanes()) {
    order[k] = -1;
    if (!keeps_draft) draft[k] = -1;
  }
  if (!by_confidence) return;
  team.sync();
  for (std::int32_t k = team.lane(); k < u; k += team.lanes()) {
    const Value score = scratch.score[k];
    std::int32_t at = 0;
    for (std::int32_t j = 0; j < u; ++j) at += scratch.score[j] > score || (scratch.score[j] == score && j < k);
    order[at] = scratch.positions[k];
    draft[at] = drafted(scratch.positions[k]);
  }
}

PACKED_SS_HOST_DEVICE OrderedNumbers read_numbers(const OrderedState& s, std::int64_t i) {
  return {s.length[i], s.cache_len[i], s.end[i], s.stopped[i], s.cache_len[i], s.finish_reason[i]};
}

// Writes the numbers, and the next call's rows where they are wanted.
template <class Value, class Team>
PACKED_SS_HOST_DEVICE void finish_advance(const AdvanceOrdered& call, std::int64_t i, const OrderedNumbers& now,
                                          OrderedScratch<Value> scratch, const Team& team) {
  const OrderedState& s = call.state;
  if (team.lane() == 0) {
    s.length[i] = now.length;
    s.cache_len[i] = now.cache_len;
    s.end[i] = now.end;
    s.stopped[i] = now.stopped;
    s.first_moved[i] = now.first_moved;
    s.finish_reason[i] = now.finish_reason;
  }
  if (call.next.ids == nullptr) return;
  team.sync();
  pack_ordered_sequence(s, call.next, i, true, scratch.drafted, team);
}

// advance_ordered of one sequence. Of a finished one it only says that nothing has moved, and that there is nothing to draw.
template <class Value, class Team>
PACKED_SS_HOST_DEVICE void advance_ordered_sequence(const AdvanceOrdered& call, std::int64_t i, OrderedScratch<Value> scratch,
                                                    const Team& team) {
  const OrderedState& s = call.state;
  const OrderedShape& shape = call.shape;
  const std::int32_t window = shape.window;
  OrderedNumbers now = read_numbers(s, i);
  const bool running = now.finish_reason == kRunning;
  const std::int32_t length = now.length;
  const std::int32_t* ids = call.ids + i * call.columns;
  const Value* probability = call.template probability_of<Value>(i);
  const std::int32_t u = open_window(s, i, window, length, scratch, team);
  std::int32_t advance = 0;  // before the stopping rule
  std::int32_t first = shape.verifier_rows();
  if (running && shape.waiting_rows > 0) cache_waiting(s, i, now, team);
  now.first_moved = now.cache_len;
  if (running && shape.verifies) {
    const std::int32_t* draft = s.draft + i * s.width;
    const std::int32_t* accepted = call.accepted == nullptr ? nullptr : call.accepted + i * std::int64_t{window};
    std::int32_t h = window;
    for (std::int32_t r = team.lane(); r < h; r += team.lanes()) {
      const bool same = accepted != nullptr ? accepted[r] > 0 : draft[r] == ids[r];
      if (!same || draft[r] < 0 || scratch.positions[r] < 0) h = r;
    }
    h = team.min(h);
    const bool consults = h < u;
    const bool corrects = consults && ids[h] >= 0;
    const std::int32_t position = consults ? scratch.positions[h] : -1;
    for (std::int32_t r = team.lane(); r < h; r += team.lanes()) {
      store_cached(s, i, std::int64_t{now.cache_len} + r, scratch.positions[r]);
    }
    now.cache_len += h;
    if (corrects && s.waiting_width > 0 && team.lane() == 0) s.waiting[i * s.waiting_width] = position;
    commit_ordered(
        s, i, window, scratch, corrects ? -1 : position, [=](std::int32_t r) { return r < h || (r == h && corrects); },
        [=](std::int32_t r) { return r < h ? draft[r] : ids[r]; }, now, team);
    advance = h < u ? h + 1 : u;
    std::int32_t branch = 0;
    while (branch + 1 < shape.cut_count && shape.cuts[branch + 1] <= h) ++branch;
    first += branch * window;
  } else if (running) {
    count_call(s, i, 0, team);
  }
  const bool proposes = shape.cut_count > 0 && !call.is_drawn_later();
  const bool retains = shape.cut_count > 0 && !proposes && now.finish_reason == kRunning;
  for (std::int32_t k = team.lane(); k < s.width; k += team.lanes()) {
    s.retained[i * s.width + k] = retains && k < u - advance ? first + advance + k : -1;
  }
  if (shape.verifies) {
    OrderedProposal<Value> proposal{nullptr, nullptr, false};
    if (proposes) {
      proposal = {ids + first, probability == nullptr ? nullptr : probability + first, true};
    } else if (shape.cut_count == 0) {
      proposal = {ids, probability, false};
    }
    next_window(s, i, length, now, scratch, proposal, false, call.by_confidence, team);
  } else if (shape.cut_count > 0) {
    for (std::int32_t r = team.lane(); r < window; r += team.lanes()) {
      s.draft[i * s.width + r] = proposes && scratch.positions[r] >= 0 ? ids[r] : -1;
    }
  }
  finish_advance(call, i, now, scratch, team);
}

// advance_native of one sequence: ids and probability [N, window] are of the window in textual order.
template <class Value, class Team>
PACKED_SS_HOST_DEVICE void advance_native_sequence(const AdvanceOrdered& call, std::int64_t i, OrderedScratch<Value> scratch,
                                                   const Team& team) {
  const OrderedState& s = call.state;
  const std::int32_t window = call.shape.window;
  OrderedNumbers now = read_numbers(s, i);
  const bool running = now.finish_reason == kRunning;
  const std::int32_t length = now.length;
  const std::int32_t* ids = call.ids + i * call.columns;
  const Value* probability = call.template probability_of<Value>(i);
  const auto threshold = static_cast<Value>(call.threshold);
  open_window(s, i, window, length, scratch, team);
  if (running) {
    cache_waiting(s, i, now, team);
    std::uint64_t most = ~std::uint64_t{0};  // complements of keys, whose least is the likeliest's
    std::int32_t failed = INT32_MAX;
    for (std::int32_t r = team.lane(); r < window; r += team.lanes()) {
      const std::int32_t position = scratch.positions[r];
      const std::uint64_t key = ~std::uint64_t{order_key(probability[r])};
      if (position >= 0 && ids[r] >= 0 && key < most) most = key;
      if (position >= 0 && ids[r] < 0 && position < failed) failed = position;
    }
    most = team.min(most);
    failed = team.min(failed);
    std::int32_t likeliest = window;
    for (std::int32_t r = team.lane(); r < likeliest; r += team.lanes()) {
      if (scratch.positions[r] >= 0 && ids[r] >= 0 && ~std::uint64_t{order_key(probability[r])} == most) likeliest = r;
    }
    likeliest = team.min(likeliest);
    const auto taken = [=](std::int32_t r) {
      return scratch.positions[r] >= 0 && ids[r] >= 0 && (probability[r] >= threshold || r == likeliest);
    };
    std::int32_t waits = 0;
    for (std::int32_t base = 0; base < window; base += team.lanes()) {
      const std::int32_t r = base + team.lane();
      const bool takes = r < window && taken(r);
      const Counted counted = team.count(takes);
      const std::int32_t at = waits + counted.before;
      if (takes && at < s.waiting_width) s.waiting[i * s.waiting_width + at] = scratch.positions[r];
      waits += counted.total;
    }
    commit_ordered(
        s, i, window, scratch, failed == INT32_MAX ? -1 : failed, taken, [=](std::int32_t r) { return ids[r]; }, now, team);
  }
  for (std::int64_t k = team.lane(); k < s.width; k += team.lanes()) s.retained[i * s.width + k] = -1;
  next_window(s, i, length, now, scratch, OrderedProposal<Value>{nullptr, nullptr, false}, true, false, team);
  finish_advance(call, i, now, scratch, team);
}

}  // namespace packed_ss
