"""advance_ordered and advance_native as Triton kernels: one launch each, a program for each sequence (Algorithm 3, lines 9-15).

`packed_ss.ops.advance_ordered` is the specification.  A program works on vectors over the ranks of a window, which is a power of
two of them in registers, and exchanges values between ranks and positions through the state, with a barrier in between: every
thread has read what another will overwrite, and sees what others have written.  A window may have up to 1024 positions; what the
kernels are made for is up to 64 of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packed_ss.operands import named
from packed_ss.ops import checks
from packed_ss.ordered_state import ORDERED_STATE

from . import tiles
from .advance_block import ERROR, LENGTH, RUNNING, STOP
from .checks import check_on_device
from .pack_ordered import call_operands, write_rows

#: Scores that are compared with all others at a time.
_TOGETHER = tl.constexpr(16)
#: Below the score of every open position, -1 without one.
CLOSED = tl.constexpr(-2.0)


@triton.jit
def _stop_end(n, end, prompt_length, tokens_ptr, stops_ptr, stop_count, stop_length, capacity, WIDTH: tl.constexpr,
              STOPS: tl.constexpr):
    """One more than the earliest last position from n on of a stop whose tokens are all there; capacity without one."""
    position = n + tl.arange(0, WIDTH)
    s = tl.arange(0, STOPS)
    ends = (position < end)[:, None] & (s < stop_count)[None, :]
    for back in range(stop_length):
        wanted = tl.load(stops_ptr + s * stop_length + (stop_length - 1 - back), mask=s < stop_count, other=-1)
        at = position - back
        there = tl.load(tokens_ptr + at, mask=(at >= prompt_length) & (at < end), other=-2)
        ends = ends & ((there[:, None] == wanted[None, :]) | (wanted < 0)[None, :])
    return tl.min(tl.where(tl.max(ends.to(tl.int32), 1) > 0, position + 1, capacity), 0)


@triton.jit
def _keep(ptr, k, values, kept, size):
    """Moves kept values to the front of a row of ``size``, in order, and -1 behind them."""
    count = tl.sum(kept.to(tl.int32), 0)
    tl.store(ptr + tl.cumsum(kept.to(tl.int32), 0) - 1, values, mask=kept)
    tl.store(ptr + k, -1, mask=(k >= count) & (k < size))


@triton.jit
def _commit(i, n, cache_len, nfe, end, stopped, prompt_length, positions, tokens, taken, failed, due, is_due,
            tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr, stopped_ptr, stops_ptr,
            waiting_ptr, cached_ptr, moved_from_ptr, first_moved_ptr, capacity, calls, stop_count, stop_length, width,
            most_waiting, WIDTH: tl.constexpr, WAITING: tl.constexpr, STOPS: tl.constexpr):
    """Lines 11 to 13: stores the taken tokens, moves E to the earliest end, drops what lies beyond, and counts the call.

    failed: the position whose consulted row has no finite maximum, or -1; due [WAITING] where is_due: what waits for its rows.
    tokens_ptr, stops_ptr, waiting_ptr, cached_ptr and moved_from_ptr are those of this sequence, read by every thread before.
    Returns the leftmost open position, one more than E, and whether the sequence goes on.
    """
    rank = tl.arange(0, WIDTH)
    position = n + rank
    tl.store(tokens_ptr + positions, tokens, mask=taken & (positions >= 0) & (positions < capacity))
    tl.debug_barrier()  # tokens, and what callers have stored
    before = end
    if STOPS > 0:
        found = _stop_end(n, end, prompt_length, tokens_ptr, stops_ptr, stop_count, stop_length, capacity, WIDTH, STOPS)
        stopped = tl.where(found <= end, 1, stopped)
        end = tl.minimum(end, found)
    known = tl.load(tokens_ptr + position, mask=(rank < width) & (position < end), other=-1) >= 0
    advance = tl.sum((taken & (positions < end)).to(tl.int32), 0)
    leftmost = n + tl.min(tl.where(known, WIDTH, rank), 0)
    first_moved = cache_len
    if end < before:
        # What has been accepted after a pair beyond E is less than W to its left or right: all are in the last 2 W slots.
        first = tl.maximum(cache_len - 2 * width, 0)
        slot = first + tl.arange(0, 2 * WIDTH)
        inside = slot < cache_len
        cached = tl.load(cached_ptr + slot, mask=inside, other=0)
        kept = inside & (cached < end)
        to = first + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.debug_barrier()  # every thread has read tokens and cached
        tl.store(tokens_ptr + position, -1, mask=(rank < width) & (position >= end) & (position < capacity))
        tl.store(cached_ptr + to, cached, mask=kept)
        tl.store(moved_from_ptr + to, slot, mask=kept)
        first_moved = tl.min(tl.where(inside & (cached >= end), slot, cache_len), 0)
        cache_len = first + tl.sum(kept.to(tl.int32), 0)
        first_moved = tl.minimum(first_moved, cache_len)
    _keep(waiting_ptr, tl.arange(0, WAITING), due, is_due & (due < end), most_waiting)
    reason = tl.where(leftmost >= end, tl.where(stopped > 0, STOP, LENGTH), RUNNING)
    reason = tl.where((failed >= 0) & (failed < end), ERROR, reason)
    tl.store(advances_ptr + i * calls + nfe, advance, mask=nfe < calls)
    tl.store(nfe_ptr + i, nfe + 1)
    tl.store(length_ptr + i, leftmost)
    tl.store(cache_len_ptr + i, cache_len)
    tl.store(first_moved_ptr + i, first_moved)
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
    position = n + rank
    offset = positions - n
    stays = (positions >= 0) & (offset >= 0) & (offset < width)
    if DRAFTS:
        tl.store(draft_ptr + offset, tokens, mask=stays)
    if BY_CONFIDENCE:
        tl.store(scores_ptr + offset, scores, mask=stays)
    inside = goes_on & (rank < width) & (position < end)
    is_open = inside & (tl.load(tokens_ptr + position, mask=inside, other=0) < 0)
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
        for start in range(0, width, _TOGETHER):
            other = start + tl.arange(0, _TOGETHER)
            against = tl.load(scores_ptr + other, mask=other < width, other=CLOSED)
            tied = (against[None, :] == score[:, None]) & (other[None, :] < rank[:, None])
            to += tl.sum(((against[None, :] > score[:, None]) | tied).to(tl.int32), 1)
    else:
        to = tl.cumsum(is_open.to(tl.int32), 0) - 1
        tl.debug_barrier()
    tl.store(order_ptr + to, position, mask=is_open)
    tl.store(order_ptr + rank, -1, mask=(rank >= count) & (rank < width))
    if DRAFTS:
        tl.store(draft_ptr + to, draft, mask=is_open)
        tl.store(draft_ptr + rank, -1, mask=(rank >= count) & (rank < width))


@triton.jit
def _write_next(i, tokens_ptr, cache_len_ptr, finish_reason_ptr, order_ptr, draft_ptr, waiting_ptr, retained_ptr,
                ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr, capacity, width, most_waiting,
                mask_token_id, spare_slot, waiting_rows, window, rows, words,
                DRAFTS: tl.constexpr, VERIFIES: tl.constexpr, CUTS: tl.constexpr,
                WINDOW: tl.constexpr, WAITING: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """The next call's rows, where they are wanted, from the new state."""
    if ids_ptr is not None:
        tl.debug_barrier()
        for start in range(0, rows, ROWS):
            write_rows(i, start, tokens_ptr, cache_len_ptr, finish_reason_ptr, order_ptr, draft_ptr, waiting_ptr, retained_ptr,
                       ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr, capacity, width, most_waiting,
                       mask_token_id, spare_slot, waiting_rows, window, rows, words,
                       DRAFTS, VERIFIES, CUTS, True, WINDOW, WAITING, ROWS, WORDS)


_SMALL = ["capacity", "calls", "stop_count", "stop_length", "width", "most_waiting", "call_window", "mask_token_id", "spare_slot",
          "waiting_rows", "window", "rows", "words"]


@triton.jit(do_not_specialize=[*_SMALL, "columns"])
def advance_sequence(tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr, stopped_ptr,
                     prompt_length_ptr, stops_ptr, order_ptr, draft_ptr, waiting_ptr, cached_ptr, moved_from_ptr,
                     first_moved_ptr, retained_ptr, ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr,
                     call_ids_ptr, probability_ptr, accepted_ptr, scores_ptr,
                     capacity, calls, stop_count, stop_length, width, most_waiting, call_window,
                     mask_token_id, spare_slot, waiting_rows, window, rows, words, columns,
                     CALL_CUTS: tl.constexpr, CACHES: tl.constexpr, CALL_VERIFIES: tl.constexpr, PROPOSED: tl.constexpr,
                     WIDTH: tl.constexpr, MOST_WAITING: tl.constexpr, STOPS: tl.constexpr,
                     DRAFTS: tl.constexpr, VERIFIES: tl.constexpr, CUTS: tl.constexpr,
                     WINDOW: tl.constexpr, WAITING: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Program (sequence): `packed_ss.ops.advance_ordered.advance_ordered`.

    Reads what the call has of its window, 16 to 24 bytes a rank, and the tokens from n on; writes the state, about 16 bytes a
    rank, and the next call's rows.  CACHES: the call had rows of N; PROPOSED: its ids have the columns of R; scores [N, W] is
    scratch, for an order by confidence alone.
    """
    i = tl.program_id(0).to(tl.int64)
    BY_CONFIDENCE: tl.constexpr = scores_ptr is not None
    rank = tl.arange(0, WIDTH)
    k = tl.arange(0, MOST_WAITING)
    mine = rank < call_window
    tokens_row, cached_row, moved_from_row = (tokens_ptr + i * capacity, cached_ptr + i * capacity, moved_from_ptr + i * capacity)
    order_row, draft_row, waiting_row = order_ptr + i * width, draft_ptr + i * width, waiting_ptr + i * most_waiting
    call_ids_ptr += i * columns
    if BY_CONFIDENCE:
        probability_ptr += i * columns
        scores_ptr += i * width
    n, cache_len, nfe = tl.load(length_ptr + i), tl.load(cache_len_ptr + i), tl.load(nfe_ptr + i)
    end, stopped, prompt_length = tl.load(end_ptr + i), tl.load(stopped_ptr + i), tl.load(prompt_length_ptr + i)
    positions = tl.load(order_row + rank, mask=mine, other=-1)
    due = tl.load(waiting_row + k, mask=k < most_waiting, other=-1)
    drafted = tl.load(draft_row + rank, mask=mine, other=-1)
    exists = positions >= 0
    goes_on = tl.load(finish_reason_ptr + i) == RUNNING
    u = tl.sum(exists.to(tl.int32), 0)
    first = tl.full([], 0, tl.int32)
    advance = first
    tl.debug_barrier()  # every thread has read what it needs of the state before any of it changes
    if goes_on:
        if CACHES:
            tl.store(cached_row + cache_len + k, due, mask=(due >= 0) & (cache_len + k < capacity))
            cache_len += tl.sum((due >= 0).to(tl.int32), 0)
            due = k * 0 - 1
        if CALL_VERIFIES:
            target = tl.load(call_ids_ptr + rank, mask=mine, other=-1)
            if accepted_ptr is not None:
                same = tl.load(accepted_ptr + i * call_window + rank, mask=mine, other=0) > 0
            else:
                same = target == drafted
            h = tl.minimum(tl.min(tl.where(same & exists & (drafted >= 0), WIDTH, rank), 0), call_window)
            token = tl.sum(tl.where((rank == h) & exists, target, 0), 0)
            position = tl.max(tl.where((rank == h) & exists, positions, -1), 0)
            corrects = (h < u) & (token >= 0)
            advance = tl.minimum(h + 1, u)
            for c in tl.static_range(1, len(CALL_CUTS)):
                first += (h >= CALL_CUTS[c]).to(tl.int32)
            first = call_window * (1 + first)
            tl.store(cached_row + cache_len + rank, positions, mask=(rank < h) & (cache_len + rank < capacity))
            tl.store(draft_row + rank, -1, mask=rank < width)
            if BY_CONFIDENCE:
                tl.store(scores_ptr + rank, -1.0, mask=rank < width)
            due = tl.where((k == 0) & corrects, position, due)
            taken = exists & ((rank < h) | ((rank == h) & corrects))
            failed = tl.where((h < u) & (token < 0), position, -1)
            n, end, goes_on = _commit(
                i, n, cache_len + h, nfe, end, stopped, prompt_length, positions, tl.where(rank < h, drafted, token), taken,
                failed, due, due >= 0, tokens_row, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr,
                stopped_ptr, stops_ptr + i * stop_count * stop_length, waiting_row, cached_row, moved_from_row, first_moved_ptr,
                capacity, calls, stop_count, stop_length, width, most_waiting, WIDTH, MOST_WAITING, STOPS)
            proposed = rank * 0 - 1
            score = proposed.to(tl.float32)
            if PROPOSED:
                proposed = tl.load(call_ids_ptr + first + rank, mask=mine, other=-1)
            if BY_CONFIDENCE:
                at = first + rank if PROPOSED else rank  # without a proposal, of the verifier's token
                score = tl.load(probability_ptr + at, mask=mine, other=-1.0)
                found = proposed if PROPOSED else target
                score = tl.where((found >= 0) & (score == score), score, -1.0)
            _next_window(n, end, goes_on, positions, proposed, score, tokens_row, order_row, draft_row, scores_ptr, width,
                         PROPOSED, BY_CONFIDENCE, WIDTH)
        else:
            if CACHES:
                tl.store(waiting_row + k, -1, mask=k < most_waiting)
            tl.store(advances_ptr + i * calls + nfe, 0, mask=nfe < calls)
            tl.store(nfe_ptr + i, nfe + 1)
            tl.store(cache_len_ptr + i, cache_len)
            tl.store(first_moved_ptr + i, cache_len)
    else:
        tl.store(first_moved_ptr + i, cache_len)
        if CALL_VERIFIES:
            tl.store(order_row + rank, -1, mask=rank < width)
            tl.store(draft_row + rank, -1, mask=rank < width)
    if len(CALL_CUTS) > 0 and not CALL_VERIFIES:
        proposed = rank * 0 - 1
        if PROPOSED:
            proposed = tl.load(call_ids_ptr + rank, mask=exists, other=-1)
        tl.store(draft_row + rank, proposed, mask=mine)
    row = rank * 0 - 1
    if len(CALL_CUTS) > 0 and not PROPOSED:
        row = tl.where(goes_on & mine & (rank < u - advance), first + advance + rank, -1)
    tl.store(retained_ptr + i * width + rank, row, mask=rank < width)
    _write_next(i, tokens_ptr, cache_len_ptr, finish_reason_ptr, order_ptr, draft_ptr, waiting_ptr, retained_ptr,
                ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr, capacity, width, most_waiting,
                mask_token_id, spare_slot, waiting_rows, window, rows, words,
                DRAFTS, VERIFIES, CUTS, WINDOW, WAITING, ROWS, WORDS)


@triton.jit(do_not_specialize=_SMALL)
def advance_sequence_native(tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr, stopped_ptr,
                            prompt_length_ptr, stops_ptr, order_ptr, draft_ptr, waiting_ptr, cached_ptr, moved_from_ptr,
                            first_moved_ptr, retained_ptr, ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr,
                            call_ids_ptr, probability_ptr,
                            capacity, calls, stop_count, stop_length, width, most_waiting, call_window,
                            mask_token_id, spare_slot, waiting_rows, window, rows, words, threshold_high, threshold_low,
                            WIDTH: tl.constexpr, MOST_WAITING: tl.constexpr, STOPS: tl.constexpr,
                            DRAFTS: tl.constexpr, VERIFIES: tl.constexpr, CUTS: tl.constexpr,
                            WINDOW: tl.constexpr, WAITING: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Program (sequence): `packed_ss.ops.advance_ordered.advance_native`.

    Reads what the call has of its window, 12 bytes a rank, and the tokens from n on; writes the state, about 16 bytes a rank, and
    the next call's rows.  The threshold is the sum of two float32 numbers where probabilities are float64, else the first.
    """
    i = tl.program_id(0).to(tl.int64)
    rank = tl.arange(0, WIDTH)
    k = tl.arange(0, MOST_WAITING)
    mine = rank < call_window
    tokens_row, cached_row = tokens_ptr + i * capacity, cached_ptr + i * capacity
    order_row, waiting_row = order_ptr + i * width, waiting_ptr + i * most_waiting
    n, cache_len, nfe = tl.load(length_ptr + i), tl.load(cache_len_ptr + i), tl.load(nfe_ptr + i)
    end, stopped, prompt_length = tl.load(end_ptr + i), tl.load(stopped_ptr + i), tl.load(prompt_length_ptr + i)
    positions = tl.load(order_row + rank, mask=mine, other=-1)
    due = tl.load(waiting_row + k, mask=k < most_waiting, other=-1)
    tokens = tl.load(call_ids_ptr + i * call_window + rank, mask=mine, other=-1)
    probability = tl.load(probability_ptr + i * call_window + rank, mask=mine, other=-1.0)
    exists = positions >= 0
    running = tl.load(finish_reason_ptr + i) == RUNNING
    tl.debug_barrier()  # every thread has read what it needs of the state before any of it changes
    if running:
        usable = exists & (tokens >= 0)
        probability = tl.where(usable & (probability == probability), probability, -1.0)
        likeliest = tl.min(tl.where(probability == tl.max(probability, 0), rank, WIDTH), 0)
        threshold = tl.full([], 0.0, probability.dtype) + threshold_high
        if probability.dtype == tl.float64:
            threshold += threshold_low
        taken = usable & ((probability >= threshold) | (rank == likeliest))
        fails = tl.min(tl.where(exists & (tokens < 0), positions, capacity), 0)
        tl.store(cached_row + cache_len + k, due, mask=(due >= 0) & (cache_len + k < capacity))
        cache_len += tl.sum((due >= 0).to(tl.int32), 0)
        tl.store(waiting_row + k, -1, mask=k < most_waiting)
        n, end, goes_on = _commit(
            i, n, cache_len, nfe, end, stopped, prompt_length, positions, tokens, taken, tl.where(fails < capacity, fails, -1),
            positions, taken, tokens_row, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr,
            stopped_ptr, stops_ptr + i * stop_count * stop_length, waiting_row, cached_row, moved_from_ptr + i * capacity,
            first_moved_ptr, capacity, calls, stop_count, stop_length, width, call_window, WIDTH, WIDTH, STOPS)
        _next_window(n, end, goes_on, positions, tokens, tokens, tokens_row, order_row, draft_ptr, draft_ptr, width, False, False,
                     WIDTH)
    else:
        tl.store(first_moved_ptr + i, cache_len)
        tl.store(order_row + rank, -1, mask=rank < width)
    tl.store(retained_ptr + i * width + rank, -1, mask=rank < width)
    _write_next(i, tokens_ptr, cache_len_ptr, finish_reason_ptr, order_ptr, draft_ptr, waiting_ptr, retained_ptr,
                ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr, capacity, width, most_waiting,
                mask_token_id, spare_slot, waiting_rows, window, rows, words,
                DRAFTS, VERIFIES, CUTS, WINDOW, WAITING, ROWS, WORDS)


def advance_ordered(ids: Tensor, probability: Tensor | None, accepted: Tensor | None, state: Sequence[Tensor], waiting_rows: int,
                    window: int, verifies: bool, cuts: Sequence[int], by_confidence: bool, *following: Any) -> None:
    """`packed_ss.ops.advance_ordered.advance_ordered`: accept along the order, end, drop, retain by position, order the window.

    ``following``: the next call's rows (`packed_ss.ops.schema`).
    """
    checks.check_advance_ordered(ids, probability, accepted, state, waiting_rows, window, verifies, cuts, by_confidence,
                                 *following)
    check_on_device("advance_ordered", "ids", ids)
    if ids.shape[0]:
        by_confidence = bool(by_confidence and verifies)
        scores = torch.empty_like(named(ORDERED_STATE, state).draft, dtype=probability.dtype) if by_confidence else None
        sizes, rows, next_sizes, constants = _operands(named(ORDERED_STATE, state), following)
        with tiles.on(ids.device):
            advance_sequence[(ids.shape[0],)](
                *state, *rows, ids, probability if by_confidence else None, accepted, scores, *sizes, window, *next_sizes,
                ids.shape[1], CALL_CUTS=tuple(cuts), CACHES=waiting_rows > 0, CALL_VERIFIES=bool(verifies),
                PROPOSED=len(cuts) > 0 and ids.shape[1] > window * verifies, **constants)


def advance_native(ids: Tensor, probability: Tensor, state: Sequence[Tensor], window: int, threshold: float,
                   *following: Any) -> None:
    """`packed_ss.ops.advance_ordered.advance_native`: accept all tokens of probability ``threshold`` or more."""
    checks.check_advance_native(ids, probability, state, window, threshold, *following)
    check_on_device("advance_native", "ids", ids)
    if ids.shape[0]:
        high = ctypes.c_float(threshold).value
        sizes, rows, next_sizes, constants = _operands(named(ORDERED_STATE, state), following)
        with tiles.on(ids.device):
            advance_sequence_native[(ids.shape[0],)](*state, *rows, ids, probability, *sizes, window, *next_sizes, high,
                                                     threshold - high, **constants)


def _operands(s: SimpleNamespace,
              following: Sequence[Any]) -> tuple[tuple[int, ...], list[Any], tuple[int, ...], dict[str, Any]]:
    """Sizes of the state, the next rows, their sizes, and constants and options of a launch."""
    stop_count, width = s.stops.shape[1], tiles.padded(s.order.shape[1])
    constants = {"WIDTH": width, "MOST_WAITING": tiles.padded(s.waiting.shape[1]),
                 "STOPS": tiles.padded(stop_count, 1) if stop_count else 0}
    sizes = (s.tokens.shape[1], s.advances.shape[1], *s.stops.shape[1:], s.order.shape[1], s.waiting.shape[1])
    if not following[-1]:
        absent = {"DRAFTS": 0, "VERIFIES": 0, "CUTS": (), "WINDOW": 1, "WAITING": 1, "ROWS": 1, "WORDS": 1}
        return sizes, [None] * 5, (0,) * 6, constants | absent | {"num_warps": max(1, width // 64)}
    next_sizes, call = call_operands(*following)
    return sizes, list(following[-1]), next_sizes, constants | call | {"num_warps": max(4, width // 64)}
