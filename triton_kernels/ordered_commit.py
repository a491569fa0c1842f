"""What follows a call's tokens in the ordered layout, one program for each sequence (Algorithm 3, lines 9-15).

`packed_ss.ops.ordered` is the specification.  A program works on vectors over the ranks of a window, which is a power of two
of them in registers, and exchanges values between ranks and positions through the state, with a barrier in between: every
thread has read what another will overwrite, and sees what others have written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .commit import ERROR, LENGTH, STOP
from .rows import RUNNING

#: Scores that are compared with all others at a time.
PARTS = tl.constexpr(16)
#: Below the score of every open position, -1 without one.
CLOSED = tl.constexpr(-2.0)


@triton.jit
def _marker_end(n, end, prompt_length, tokens_ptr, stops_ptr, stop_count, stop_length, capacity, WIDTH: tl.constexpr,
                STOPS: tl.constexpr):
    """One more than the earliest last position from n on of an end marker whose tokens are all there; capacity without one."""
    place = n + tl.arange(0, WIDTH)
    s = tl.arange(0, STOPS)
    whole = (place < end)[:, None] & (s < stop_count)[None, :]
    for back in range(stop_length):
        wanted = tl.load(stops_ptr + s * stop_length + (stop_length - 1 - back), mask=s < stop_count, other=-1)
        at = place - back
        there = tl.load(tokens_ptr + at, mask=(at >= prompt_length) & (at < end), other=-2)
        whole = whole & ((there[:, None] == wanted[None, :]) | (wanted < 0)[None, :])
    return tl.min(tl.where(tl.max(whole.to(tl.int32), 1) > 0, place + 1, capacity), 0)


@triton.jit
def _keep(ptr, k, values, kept, size):
    """Moves kept values to the front of a row of ``size``, in order, and -1 behind them."""
    count = tl.sum(kept.to(tl.int32), 0)
    tl.store(ptr + tl.cumsum(kept.to(tl.int32), 0) - 1, values, mask=kept)
    tl.store(ptr + k, -1, mask=(k >= count) & (k < size))


@triton.jit
def _commit(i, n, cache_len, nfe, end, stopped, prompt_length, positions, tokens, taken, failed, due, is_due,
            tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr, stopped_ptr, stops_ptr,
            waiting_ptr, cached_ptr, source_ptr, moved_ptr, capacity, calls, stop_count, stop_length, width, most,
            WIDTH: tl.constexpr, MOST: tl.constexpr, STOPS: tl.constexpr):
    """Lines 11 to 13: stores the taken tokens, moves E to the earliest end, drops what lies beyond, and counts the call.

    failed: the position whose consulted row has no finite maximum, or -1; due [MOST] where is_due: what waits for its rows.
    tokens_ptr, waiting_ptr, cached_ptr and source_ptr are those of this sequence.  Every thread has read them before.
    Returns the leftmost open position, one more than E, and whether the sequence goes on.
    """
    rank = tl.arange(0, WIDTH)
    place = n + rank
    tl.store(tokens_ptr + positions, tokens, mask=taken & (positions >= 0) & (positions < capacity))
    tl.debug_barrier()  # tokens, and what callers have stored
    before = end
    if STOPS > 0:
        found = _marker_end(n, end, prompt_length, tokens_ptr, stops_ptr, stop_count, stop_length, capacity, WIDTH, STOPS)
        stopped = tl.where(found <= end, 1, stopped)
        end = tl.minimum(end, found)
    known = tl.load(tokens_ptr + place, mask=(rank < width) & (place < end), other=-1) >= 0
    advance = tl.sum((taken & (positions < end)).to(tl.int32), 0)
    leftmost = n + tl.min(tl.where(known, WIDTH, rank), 0)
    moved = cache_len
    if end < before:
        # What has been accepted after a pair beyond E is less than W to its left or right: all are in the last 2 W slots.
        first = tl.maximum(cache_len - 2 * width, 0)
        slot = first + tl.arange(0, 2 * WIDTH)
        inside = slot < cache_len
        position = tl.load(cached_ptr + slot, mask=inside, other=0)
        kept = inside & (position < end)
        to = first + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.debug_barrier()  # every thread has read tokens and cached
        tl.store(tokens_ptr + place, -1, mask=(rank < width) & (place >= end) & (place < capacity))
        tl.store(cached_ptr + to, position, mask=kept)
        tl.store(source_ptr + to, slot, mask=kept)
        moved = tl.min(tl.where(inside & (position >= end), slot, cache_len), 0)
        cache_len = first + tl.sum(kept.to(tl.int32), 0)
        moved = tl.minimum(moved, cache_len)
    _keep(waiting_ptr, tl.arange(0, MOST), due, is_due & (due < end), most)
    reason = tl.where(leftmost >= end, tl.where(stopped > 0, STOP, LENGTH), RUNNING)
    reason = tl.where((failed >= 0) & (failed < end), ERROR, reason)
    tl.store(advances_ptr + i * calls + nfe, advance, mask=nfe < calls)
    tl.store(nfe_ptr + i, nfe + 1)
    tl.store(length_ptr + i, leftmost)
    tl.store(cache_len_ptr + i, cache_len)
    tl.store(moved_ptr + i, moved)
    tl.store(end_ptr + i, end)
    tl.store(stopped_ptr + i, stopped)
    tl.store(finish_reason_ptr + i, reason)
    return leftmost, end, reason == RUNNING


@triton.jit
def _next_window(n, end, goes_on, positions, tokens, scores, tokens_ptr, order_ptr, draft_ptr, scores_ptr, width,
                 DRAFTS: tl.constexpr, BY_CONFIDENCE: tl.constexpr, WIDTH: tl.constexpr):
    """Lines 3-5 and 14-15: the next window from n on, its order, and the draft tokens of positions that stay open.

    tokens and scores: what was proposed for ``positions``, by rank, -1 beyond.  Pointers are to the rows of this sequence.  With
    DRAFTS draft, and with BY_CONFIDENCE the scratch of scores, hold -1, as every thread sees: there they are put by position.
    """
    rank = tl.arange(0, WIDTH)
    place = n + rank
    offset = positions - n
    stays = (positions >= 0) & (offset >= 0) & (offset < width)
    if DRAFTS:
        tl.store(draft_ptr + offset, tokens, mask=stays)
    if BY_CONFIDENCE:
        tl.store(scores_ptr + offset, scores, mask=stays)
    inside = goes_on & (rank < width) & (place < end)
    is_open = inside & (tl.load(tokens_ptr + place, mask=inside, other=0) < 0)
    count = tl.sum(is_open.to(tl.int32), 0)
    tl.debug_barrier()
    draft = rank
    if DRAFTS:
        draft = tl.load(draft_ptr + rank, mask=is_open, other=-1)
    if BY_CONFIDENCE:
        score = tl.load(scores_ptr + rank, mask=is_open, other=CLOSED)
        tl.debug_barrier()
        tl.store(scores_ptr + rank, score, mask=rank < width)
        tl.debug_barrier()
        to = tl.zeros([WIDTH], tl.int32)
        for start in range(0, width, PARTS):
            other = start + tl.arange(0, PARTS)
            against = tl.load(scores_ptr + other, mask=other < width, other=CLOSED)
            tied = (against[None, :] == score[:, None]) & (other[None, :] < rank[:, None])
            to += tl.sum(((against[None, :] > score[:, None]) | tied).to(tl.int32), 1)
    else:
        to = tl.cumsum(is_open.to(tl.int32), 0) - 1
        tl.debug_barrier()
    tl.store(order_ptr + to, place, mask=is_open)
    tl.store(order_ptr + rank, -1, mask=(rank >= count) & (rank < width))
    if DRAFTS:
        tl.store(draft_ptr + to, draft, mask=is_open)
        tl.store(draft_ptr + rank, -1, mask=(rank >= count) & (rank < width))


_SMALL = ["capacity", "calls", "stop_count", "stop_length", "width", "most", "window"]


@triton.jit(do_not_specialize=[*_SMALL, "columns"])
def resolve_sequence(ids_ptr, probability_ptr, accepted_ptr, scores_ptr,
                     tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr, stopped_ptr,
                     prompt_length_ptr, stops_ptr, order_ptr, draft_ptr, waiting_ptr, cached_ptr, source_ptr, moved_ptr,
                     retained_ptr, capacity, calls, stop_count, stop_length, width, most, window, columns,
                     CUTS: tl.constexpr, WAITING: tl.constexpr, VERIFIES: tl.constexpr, PROPOSED: tl.constexpr,
                     GIVEN: tl.constexpr, BY_CONFIDENCE: tl.constexpr,
                     WIDTH: tl.constexpr, MOST: tl.constexpr, STOPS: tl.constexpr):
    """Program (sequence): `packed_ss.ops.ordered.resolve_ordered`.

    Reads what the call has of its window, 16 to 24 bytes a rank, and the tokens from n on; writes the state, about 12 bytes a
    rank.  PROPOSED: ids have the columns of R; GIVEN: accepted is there.
    """
    i = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, WIDTH)
    k = tl.arange(0, MOST)
    ids_ptr += i * columns
    probability_ptr += i * columns
    scores_ptr += i * width
    tokens_ptr += i * capacity
    cached_ptr += i * capacity
    source_ptr += i * capacity
    order_ptr += i * width
    draft_ptr += i * width
    waiting_ptr += i * most
    n, cache_len, nfe = tl.load(length_ptr + i), tl.load(cache_len_ptr + i), tl.load(nfe_ptr + i)
    end, stopped, prompt_length = tl.load(end_ptr + i), tl.load(stopped_ptr + i), tl.load(prompt_length_ptr + i)
    positions = tl.load(order_ptr + rank, mask=rank < window, other=-1)
    due = tl.load(waiting_ptr + k, mask=k < most, other=-1)
    drafted = tl.load(draft_ptr + rank, mask=rank < window, other=-1)
    exists = positions >= 0
    first = tl.full([], 0, tl.int32)
    count = first
    if tl.load(finish_reason_ptr + i) == RUNNING:
        p = first
        if WAITING:
            p = tl.sum((due >= 0).to(tl.int32), 0)
        u = tl.sum(exists.to(tl.int32), 0)
        advance = first
        if VERIFIES:
            target = tl.load(ids_ptr + rank, mask=rank < window, other=-1)
            same = tl.load(accepted_ptr + i * width + rank, mask=rank < window, other=0) > 0 if GIVEN else target == drafted
            h = tl.minimum(tl.min(tl.where(same & exists & (drafted >= 0), WIDTH, rank), 0), window)
            token = tl.sum(tl.where((rank == h) & exists, target, 0), 0)
            place = tl.max(tl.where((rank == h) & exists, positions, -1), 0)
            corrects = (h < u) & (token >= 0)
            advance = tl.minimum(h + 1, u)
            if len(CUTS) > 0:
                branch = first
                for c in tl.static_range(1, len(CUTS)):
                    branch += (h >= CUTS[c]).to(tl.int32)
                first = window * (1 + branch)
        tl.debug_barrier()  # every thread has read what it needs of the state before any of it changes
        if WAITING:
            tl.store(cached_ptr + cache_len + k, due, mask=(due >= 0) & (cache_len + k < capacity))
            cache_len += p
            due = k * 0 - 1
        if VERIFIES:
            tl.store(cached_ptr + cache_len + rank, positions, mask=(rank < h) & (cache_len + rank < capacity))
            tl.store(draft_ptr + rank, -1, mask=rank < width)
            if BY_CONFIDENCE:
                tl.store(scores_ptr + rank, -1.0, mask=rank < width)
            due = tl.where((k == 0) & corrects, place, due)
            taken = exists & ((rank < h) | ((rank == h) & corrects))
            failed = tl.where((h < u) & (token < 0), place, -1)
            n, end, goes_on = _commit(
                i, n, cache_len + h, nfe, end, stopped, prompt_length, positions, tl.where(rank < h, drafted, token), taken,
                failed, due, due >= 0, tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr,
                stopped_ptr, stops_ptr, waiting_ptr, cached_ptr, source_ptr, moved_ptr, capacity, calls, stop_count, stop_length,
                width, most, WIDTH, MOST, STOPS)
            proposed = rank * 0 - 1
            score = proposed.to(tl.float32)
            if PROPOSED:
                proposed = tl.load(ids_ptr + first + rank, mask=rank < window, other=-1)
            if BY_CONFIDENCE:
                at = first + rank if PROPOSED else rank  # without a proposal, of the verifier's token
                score = tl.load(probability_ptr + at, mask=rank < window, other=-1.0)
                found = proposed if PROPOSED else target
                score = tl.where((found >= 0) & (score == score), score, -1.0)
            _next_window(n, end, goes_on, positions, proposed, score, tokens_ptr, order_ptr, draft_ptr, scores_ptr, width,
                         PROPOSED, BY_CONFIDENCE, WIDTH)
            count = tl.where(goes_on, u - advance, 0)
        else:
            if WAITING:
                tl.store(waiting_ptr + k, -1, mask=k < most)
            tl.store(advances_ptr + i * calls + nfe, 0, mask=nfe < calls)
            tl.store(nfe_ptr + i, nfe + 1)
            tl.store(cache_len_ptr + i, cache_len)
            tl.store(moved_ptr + i, cache_len)
            if len(CUTS) > 0:
                proposed = rank * 0 - 1
                if PROPOSED:
                    proposed = tl.load(ids_ptr + rank, mask=exists, other=-1)
                tl.store(draft_ptr + rank, proposed, mask=rank < window)
            count = u
        first += advance
    else:
        tl.store(moved_ptr + i, cache_len)
        if VERIFIES:
            tl.store(order_ptr + rank, -1, mask=rank < width)
            tl.store(draft_ptr + rank, -1, mask=rank < width)
    tl.store(retained_ptr + 2 * i, first if len(CUTS) > 0 else 0)
    tl.store(retained_ptr + 2 * i + 1, count if len(CUTS) > 0 else 0)


@triton.jit(do_not_specialize=_SMALL)
def resolve_sequence_native(ids_ptr, probability_ptr, tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr,
                            advances_ptr, end_ptr, stopped_ptr, prompt_length_ptr, stops_ptr, order_ptr, draft_ptr, waiting_ptr,
                            cached_ptr, source_ptr, moved_ptr, capacity, calls, stop_count, stop_length, width, most, window,
                            threshold_high, threshold_low, WIDTH: tl.constexpr, MOST: tl.constexpr, STOPS: tl.constexpr,
                            DOUBLE: tl.constexpr):
    """Program (sequence): `packed_ss.ops.ordered.resolve_native`.

    Reads what the call has of its window, 12 bytes a rank, and the tokens from n on; writes the state, about 12 bytes a rank.
    The threshold is the sum of two float32 numbers where probabilities are DOUBLE, else the first of them.
    """
    i = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, WIDTH)
    k = tl.arange(0, MOST)
    tokens_ptr += i * capacity
    cached_ptr += i * capacity
    order_ptr += i * width
    waiting_ptr += i * most
    n, cache_len, nfe = tl.load(length_ptr + i), tl.load(cache_len_ptr + i), tl.load(nfe_ptr + i)
    end, stopped, prompt_length = tl.load(end_ptr + i), tl.load(stopped_ptr + i), tl.load(prompt_length_ptr + i)
    positions = tl.load(order_ptr + rank, mask=rank < window, other=-1)
    due = tl.load(waiting_ptr + k, mask=k < most, other=-1)
    tokens = tl.load(ids_ptr + i * window + rank, mask=rank < window, other=-1)
    probability = tl.load(probability_ptr + i * window + rank, mask=rank < window, other=-1.0)
    exists = positions >= 0
    if tl.load(finish_reason_ptr + i) == RUNNING:
        usable = exists & (tokens >= 0)
        probability = tl.where(usable & (probability == probability), probability, -1.0)
        likeliest = tl.min(tl.where(probability == tl.max(probability, 0), rank, WIDTH), 0)
        threshold = threshold_high
        if DOUBLE:
            threshold = tl.full([], 0.0, tl.float64) + threshold_high + threshold_low
        taken = usable & ((probability >= threshold) | (rank == likeliest))
        fails = tl.min(tl.where(exists & (tokens < 0), positions, capacity), 0)
        tl.debug_barrier()  # every thread has read what it needs of the state before any of it changes
        tl.store(cached_ptr + cache_len + k, due, mask=(due >= 0) & (cache_len + k < capacity))
        cache_len += tl.sum((due >= 0).to(tl.int32), 0)
        tl.store(waiting_ptr + k, -1, mask=k < most)
        n, end, goes_on = _commit(
            i, n, cache_len, nfe, end, stopped, prompt_length, positions, tokens, taken, tl.where(fails < capacity, fails, -1),
            positions, taken, tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr,
            stopped_ptr, stops_ptr, waiting_ptr, cached_ptr, source_ptr + i * capacity, moved_ptr, capacity, calls, stop_count,
            stop_length, width, window, WIDTH, WIDTH, STOPS)
        _next_window(n, end, goes_on, positions, tokens, tokens, tokens_ptr, order_ptr, draft_ptr, draft_ptr, width, False, False,
                     WIDTH)
    else:
        tl.store(moved_ptr + i, cache_len)
        tl.store(order_ptr + rank, -1, mask=rank < width)
