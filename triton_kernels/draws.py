"""Kernels over slices of rows: the argmax, or statistics of the processed distribution and a draw from it.

A slice is as long whatever the number of rows, so that a draw is a function of its row, seed and position alone, whatever the
schedule.  Within a slice scores are relative to the slice's maximum (to the row's where filters have found it already); whoever
needs a row's result puts the slices together with `row_statistics` and `drawn`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .philox import to_gumbel, uniform_tile
from .rows import load_slice, locate, task_of_program
from .scores import INF, NAN, NOTHING, exp_of_negative, is_finite, key_score, log, order_key, pack, packed_id, packed_key, scaled

#: Slices of a row that are put together at a time.
PARTS = tl.constexpr(16)


@triton.jit
def top_of(x):
    """The largest of logits, +inf where one is NaN, for `is_finite` of its key; a number where that is so."""
    return tl.max(tl.where(x == x, x, float("inf")), 0)


@triton.jit
def best_of(x, ids):
    """The packed result of numbers, none of them NaN, and their ascending ids."""
    top = tl.max(x, 0)
    return pack(order_key(top), tl.min(tl.where(x == top, ids, 0x7FFFFFFF), 0))


@triton.jit
def slice_argmax(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE: tl.constexpr):
    """The packed result of a slice of a row of logits: the largest and its lowest id, a NaN above all others."""
    ids, x = load_slice(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE)
    best = best_of(tl.where(x == x, x, float("inf")), ids)
    if packed_key(best) == INF:  # looked at again in this case alone
        ids, x = load_slice(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE)
        first = tl.min(tl.where(x == x, 0x7FFFFFFF, ids), 0)
        best = pack(tl.where(first < vocab_size, NAN, INF), tl.where(first < vocab_size, first, packed_id(best)))
    return best


@triton.jit
def sample_slice(logits_ptr, stride_n, stride_r, vocab_size, i, row, position, split, at_row, seed_ptr, row_key_ptr, row_kept_ptr,
                 slice_key_ptr, slice_sum_ptr, drawn_ptr, slices, temperature, stream,
                 FILTERED: tl.constexpr, SUMS: tl.constexpr, DRAWS: tl.constexpr, UNIT: tl.constexpr, SLICE: tl.constexpr):
    """Writes statistics of a slice of a row of logits, and a draw from it, to where ``at_row`` says that the row's results lie:
    the key of the largest logit (with FILTERED, of the row), the packed argmax of score + G, and the sum of exp(score)."""
    ids, x = load_slice(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE)
    at = at_row * slices + split
    key = tl.load(row_key_ptr + at_row) if FILTERED else order_key(top_of(x))
    tl.store(slice_key_ptr + at, key)
    best = tl.full([], NOTHING, tl.int64)
    if is_finite(key):
        score = scaled(x, key_score(key), temperature, UNIT)
        if SUMS:
            tl.store(slice_sum_ptr + at, tl.sum(tl.exp(score), 0))
        if FILTERED:
            score = tl.where(score < tl.load(row_kept_ptr + at_row), -float("inf"), score)
        if DRAWS:  # noqa: SIM102  (known when it is compiled)
            # Few slices hold a token that filters have left.
            if tl.max(score, 0) > -float("inf"):
                gumbel = to_gumbel(uniform_tile(tl.load(seed_ptr + i), position, split * SLICE, stream, SLICE))
                best = best_of(score + gumbel, ids)
    if DRAWS:
        tl.store(drawn_ptr + at, best)


_SMALL = ["verifier_rows", "block_size", "shift", "by_row", "rows", "places", "slices"]


@triton.jit(do_not_specialize=_SMALL)
def argmax_rows(logits_ptr, stride_n, stride_r, vocab_size, finish_reason_ptr, length_ptr, draft_len_ptr, verdict_ptr, best_ptr,
                verifier_rows, block_size, shift, by_row, rows, places, slices,
                CUTS: tl.constexpr, RETAINED: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, row, slice).

    Reads the slice of every row that may be asked for, sizeof(logit) * V bytes a row; writes 8 bytes a slice: best [N, places,
    slices] int64, packed.
    """
    i, slot, split = task_of_program(rows, slices)
    wanted, row, _, place = locate(i, slot, finish_reason_ptr, length_ptr, draft_len_ptr, verdict_ptr, verifier_rows, block_size,
                                   shift, by_row, CUTS, RETAINED)
    if wanted:
        best = slice_argmax(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE)
        tl.store(best_ptr + (i * places + place) * slices + split, best)


@triton.jit(do_not_specialize=_SMALL)
def sample_rows(logits_ptr, stride_n, stride_r, vocab_size, finish_reason_ptr, length_ptr, draft_len_ptr, verdict_ptr, seed_ptr,
                row_key_ptr, row_kept_ptr, slice_key_ptr, slice_sum_ptr, drawn_ptr,
                verifier_rows, block_size, shift, by_row, rows, places, slices, temperature, stream,
                CUTS: tl.constexpr, RETAINED: tl.constexpr, FILTERED: tl.constexpr, SUMS: tl.constexpr, DRAWS: tl.constexpr,
                UNIT: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, row, slice).

    Reads the slice of every row that may be asked for, sizeof(logit) * V bytes a row, and with FILTERED 8 bytes of the row's
    statistics; writes for a slice slice_key int32, with DRAWS drawn int64 and with SUMS slice_sum float32, all [N, places,
    slices] (`sample_slice`).
    """
    i, slot, split = task_of_program(rows, slices)
    wanted, row, position, place = locate(i, slot, finish_reason_ptr, length_ptr, draft_len_ptr, verdict_ptr, verifier_rows,
                                          block_size, shift, by_row, CUTS, RETAINED)
    if wanted:
        sample_slice(logits_ptr, stride_n, stride_r, vocab_size, i, row, position, split, i * places + place, seed_ptr,
                     row_key_ptr, row_kept_ptr, slice_key_ptr, slice_sum_ptr, drawn_ptr, slices, temperature, stream,
                     FILTERED, SUMS, DRAWS, UNIT, SLICE)


@triton.jit
def row_keys(key_ptr, place, exists, slices, ROWS: tl.constexpr):
    """int32 [ROWS]: keys of the largest logits of rows at ``place`` [ROWS], from those of their slices."""
    part = tl.arange(0, PARTS)
    key = tl.full([ROWS, PARTS], -INF, tl.int32)
    for start in range(0, slices, PARTS):
        inside = exists[:, None] & (start + part < slices)[None, :]
        key = tl.maximum(key, tl.load(key_ptr + (place * slices)[:, None] + (start + part)[None, :], mask=inside, other=-INF))
    return tl.max(key, 1)


@triton.jit
def _below(slice_key, key, temperature):
    """Scores of the largest logits of slices [ROWS, PARTS], relative to those of their rows [ROWS]."""
    return (key_score(slice_key) - key_score(key)[:, None]) * (1.0 / temperature)


@triton.jit
def row_total(place, exists, slice_key_ptr, slice_sum_ptr, slices, temperature, ROWS: tl.constexpr):
    """(key of the maximum, sum of exp(score)) of rows at ``place`` [ROWS], from those of their slices."""
    key = row_keys(slice_key_ptr, place, exists, slices, ROWS)
    part = tl.arange(0, PARTS)
    sums = tl.zeros([ROWS, PARTS], tl.float32)
    for start in range(0, slices, PARTS):
        inside = exists[:, None] & (start + part < slices)[None, :]
        at = (place * slices)[:, None] + (start + part)[None, :]
        slice_key = tl.load(slice_key_ptr + at, mask=inside, other=-INF)
        counts = inside & is_finite(slice_key)
        share = exp_of_negative(_below(slice_key, key, temperature))
        sums += tl.where(counts, tl.load(slice_sum_ptr + at, mask=counts, other=0.0) * share, 0.0)
    return key, tl.sum(sums, 1)


@triton.jit
def row_statistics(place, exists, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, slices, temperature,
                   FILTERED: tl.constexpr, ROWS: tl.constexpr):
    """Of rows at ``place`` [ROWS]: the key of the maximum, the smallest score that is kept, and the log of the sum of
    exp(score), by which `log_weight` makes the processed distribution.  Whatever a row without a finite maximum has."""
    if FILTERED:
        key = tl.load(row_key_ptr + place, mask=exists, other=0)
        kept = tl.load(row_kept_ptr + place, mask=exists, other=0.0)
        total = tl.load(row_sum_ptr + place, mask=exists, other=1.0)
    else:
        kept = tl.full([ROWS], -float("inf"), tl.float32)
        key, total = row_total(place, exists, slice_key_ptr, slice_sum_ptr, slices, temperature, ROWS)
    return key, kept, log(tl.where(is_finite(key), total, 1.0))


@triton.jit
def log_weight(x, maximum, kept, log_sum, temperature, UNIT: tl.constexpr):
    """Log of the processed distribution at logits x, -inf where filters leave nothing."""
    score = scaled(x, maximum, temperature, UNIT)
    return tl.where(score < kept, -float("inf"), score - log_sum)


@triton.jit
def drawn(slice_key_ptr, drawn_ptr, place, exists, slices, temperature, ROWS: tl.constexpr):
    """(key of the maximum, id drawn) of rows at ``place`` [ROWS]; a row without a finite maximum has some id in range."""
    key = row_keys(slice_key_ptr, place, exists, slices, ROWS)
    part = tl.arange(0, PARTS)
    best = tl.full([ROWS, PARTS], NOTHING, tl.int64)
    for start in range(0, slices, PARTS):
        inside = exists[:, None] & (start + part < slices)[None, :]
        at = (place * slices)[:, None] + (start + part)[None, :]
        found = tl.load(drawn_ptr + at, mask=inside, other=NOTHING)
        score = key_score(packed_key(found)) + _below(tl.load(slice_key_ptr + at, mask=inside, other=-INF), key, temperature)
        best = tl.maximum(best, tl.where(found == NOTHING, NOTHING, pack(order_key(score), packed_id(found))))
    result = tl.max(best, 1)
    return key, tl.where(is_finite(key) & (result != NOTHING), packed_id(result), 0)
