"""Kernels of the row operators of the ordered layout: logits to tokens, -1 where a row has no finite maximum.

They share their inner functions with the kernels of the resolves; what differs is which rows they look at.  A row's results lie
at its rank, [N, W, slices] (`rows.listed`), or, where every row is looked at, at the row itself, [N, R, slices].
"""

from __future__ import annotations

import triton
import triton.language as tl

from .commit import best_packed
from .correction import accepts, correct_slice
from .draws import drawn, log_weight, row_statistics, row_total, sample_slice, slice_argmax, top_of
from .filters import filter_row
from .rows import listed, load_slice, task_of_program
from .scores import INF, NOTHING, is_finite, key_score, order_key, packed_id, packed_key

_SMALL = ["width", "most", "slices"]


@triton.jit(do_not_specialize=["rows", "slices"])
def scan_rows(logits_ptr, stride_n, stride_r, vocab_size, best_ptr, slice_key_ptr, slice_sum_ptr, rows, slices,
              SUMS: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, row, slice).

    Reads the slice, sizeof(logit) * V bytes a row; writes 8 bytes a slice: best int64, packed; with SUMS 8 more, the key of its
    largest logit and the sum of exp(x - largest).
    """
    i, row, split = task_of_program(rows, slices)
    at = (i * rows + row) * slices + split
    if SUMS:  # stores come last, so that the slice is loaded once
        _ids, x = load_slice(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE)
        key = order_key(top_of(x))
        total = tl.sum(tl.exp(x - key_score(key)), 0)  # of no use where the key is not finite
    tl.store(best_ptr + at, slice_argmax(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE))
    if SUMS:
        tl.store(slice_key_ptr + at, key)
        tl.store(slice_sum_ptr + at, total)


@triton.jit(do_not_specialize=["rows", "slices"])
def put_rows_together(best_ptr, slice_key_ptr, slice_sum_ptr, ids_ptr, probability_ptr, rows, slices,
                      SUMS: tl.constexpr, ROWS: tl.constexpr):
    """Program (ROWS of all rows): reads 8 bytes a slice, with SUMS 16; writes ids and, with SUMS, probability 1 / sum."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < rows
    best = best_packed(best_ptr, row, exists, slices, ROWS)
    finite = is_finite(packed_key(best))
    tl.store(ids_ptr + row, tl.where(finite, packed_id(best), -1), mask=exists)
    if SUMS:
        _key, total = row_total(row, exists, slice_key_ptr, slice_sum_ptr, slices, 1.0, ROWS)
        tl.store(probability_ptr + row, tl.where(finite, tl.div_rn(1.0, tl.where(finite, total, 1.0)), 0.0), mask=exists)


@triton.jit(do_not_specialize=[*_SMALL, "top_k"])
def filter_listed(logits_ptr, stride_n, stride_r, vocab_size, rows_ptr, positions_ptr, row_key_ptr, row_kept_ptr, row_sum_ptr,
                  groups_ptr, set_ptr, width, most, temperature, top_k, top_p_high, top_p_low, whole,
                  TOP_K: tl.constexpr, TOP_P: tl.constexpr, UNIT: tl.constexpr, ROOM: tl.constexpr, GROUPS: tl.constexpr,
                  WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Program (sequence, rank): `filters.filter_rows` of the rows that are listed."""
    i, rank, _split = task_of_program(width, 1)
    wanted, row, _position = listed(i, rank, rows_ptr, positions_ptr, width, most)
    if wanted:
        filter_row(logits_ptr + i * stride_n + row.to(tl.int64) * stride_r, i * width + rank, vocab_size, row_key_ptr,
                   row_kept_ptr, row_sum_ptr, groups_ptr, set_ptr, temperature, top_k, top_p_high, top_p_low, whole,
                   TOP_K, TOP_P, UNIT, ROOM, GROUPS, WIDTH, SIZE)


@triton.jit(do_not_specialize=[*_SMALL, "stream"])
def sample_listed(logits_ptr, stride_n, stride_r, vocab_size, rows_ptr, positions_ptr, seed_ptr, row_key_ptr, row_kept_ptr,
                  slice_key_ptr, slice_sum_ptr, drawn_ptr, width, most, slices, temperature, stream,
                  FILTERED: tl.constexpr, SUMS: tl.constexpr, DRAWS: tl.constexpr, UNIT: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, rank, slice): `draws.sample_rows` of the rows that are listed."""
    i, rank, split = task_of_program(width, slices)
    wanted, row, position = listed(i, rank, rows_ptr, positions_ptr, width, most)
    if wanted:
        sample_slice(logits_ptr, stride_n, stride_r, vocab_size, i, row, position, split, i * width + rank, seed_ptr,
                     row_key_ptr, row_kept_ptr, slice_key_ptr, slice_sum_ptr, drawn_ptr, slices, temperature, stream,
                     FILTERED, SUMS, DRAWS, UNIT, SLICE)


@triton.jit(do_not_specialize=[*_SMALL, "programs"])
def store_draws(logits_ptr, stride_n, stride_r, vocab_size, rows_ptr, positions_ptr, row_key_ptr, row_kept_ptr, row_sum_ptr,
                slice_key_ptr, slice_sum_ptr, drawn_ptr, ids_ptr, log_q_ptr, width, most, slices, programs, temperature,
                FILTERED: tl.constexpr, STORES: tl.constexpr, UNIT: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, rank), of ``programs`` that share its row: one, or with STORES one a slice.

    Reads the results of the row, 12 bytes a slice, and writes its id; with STORES, reads the slice again and writes its log Q,
    4 V bytes a row.
    """
    i, rank, split = task_of_program(width, programs)
    wanted, row, _position = listed(i, rank, rows_ptr, positions_ptr, width, most)
    one = tl.arange(0, 1)
    place = i * width + rank + one
    if split == 0:
        key, found = drawn(slice_key_ptr, drawn_ptr, place, (one == 0) & wanted, slices, temperature, 1)
        tl.store(ids_ptr + place, tl.where(is_finite(key) & wanted, found, -1))
    if STORES:  # noqa: SIM102  (known when it is compiled)
        if wanted:
            key, kept, log_sum = row_statistics(place, one == 0, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr,
                                                slice_sum_ptr, slices, temperature, FILTERED, 1)
            ids, x = load_slice(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE)
            maximum = tl.where(is_finite(key), key_score(key), float("nan"))
            log_q = log_weight(x, maximum, kept, log_sum, temperature, UNIT)
            tl.store(log_q_ptr + (i * width + rank) * vocab_size + ids, log_q, mask=ids < vocab_size)


@triton.jit
def _accepted(i, count, rows_ptr, positions_ptr, logits_ptr, stride_n, stride_r, vocab_size, draft_ptr, seed_ptr, draft_log_q_ptr,
              row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, width, most, slices, temperature,
              FILTERED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr):
    """h: how many leading drafts of ``count`` rows pass."""
    h = count
    first = tl.load(rows_ptr + 2 * i)
    for start in range(0, count, ROWS):
        rank = start + tl.arange(0, ROWS)
        exists = rank < count
        row = tl.maximum(tl.minimum(first + rank, most - 1), 0)
        d = tl.load(draft_ptr + i * width + rank, mask=exists, other=-1)
        position = tl.maximum(tl.load(positions_ptr + i * width + rank, mask=exists, other=0), 0)
        accepted = accepts(d, (i * width + rank) * vocab_size, i * width + rank, exists,
                           logits_ptr + i * stride_n + row.to(tl.int64) * stride_r, draft_log_q_ptr, position,
                           tl.load(seed_ptr + i), vocab_size, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr,
                           slice_sum_ptr, slices, temperature, FILTERED, UNIT, ROWS)
        h = tl.minimum(h, tl.min(tl.where(exists & (accepted == 0), rank, count), 0))
    return h


@triton.jit(do_not_specialize=_SMALL)
def correct_listed(logits_ptr, stride_n, stride_r, vocab_size, rows_ptr, positions_ptr, draft_ptr, seed_ptr, draft_log_q_ptr,
                   row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, verdict_ptr, corrected_ptr, width, most,
                   slices, temperature, FILTERED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, slice of row h): the verdict and the correction of rejection sampling.

    Reads that row and its log Q, (sizeof(logit) + 4) * V bytes a sequence, and in each program the statistics of all rows, 8
    bytes a slice; writes verdict [N, 2] int32, h and whether row h has a draw, and corrected [N, 2, slices] int64
    (`correct_slice`).
    """
    i, _rank, split = task_of_program(1, slices)
    count = tl.minimum(tl.load(rows_ptr + 2 * i + 1), width)
    h = _accepted(i, count, rows_ptr, positions_ptr, logits_ptr, stride_n, stride_r, vocab_size, draft_ptr, seed_ptr,
                  draft_log_q_ptr, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, width, most, slices,
                  temperature, FILTERED, UNIT, ROWS)
    draws = tl.full([], 0, tl.int32)
    if h < count:
        _asked, row, position = listed(i, h, rows_ptr, positions_ptr, width, most)
        one = tl.arange(0, 1)
        key, kept, log_sum = row_statistics(i * width + h + one, one == 0, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr,
                                            slice_sum_ptr, slices, temperature, FILTERED, 1)
        draws = tl.sum(is_finite(key).to(tl.int32), 0)
        if draws != 0:
            correct_slice(logits_ptr, stride_n, stride_r, vocab_size, i, row, split, key, kept, log_sum,
                          tl.load(draft_ptr + i * width + h) >= 0, draft_log_q_ptr + (i * width + h) * vocab_size,
                          tl.load(seed_ptr + i), position, corrected_ptr, slices, temperature, UNIT, SLICE)
    if split == 0:
        tl.store(verdict_ptr + 2 * i, h)
        tl.store(verdict_ptr + 2 * i + 1, draws)


@triton.jit(do_not_specialize=["width", "slices"])
def store_verified(draft_ptr, verdict_ptr, corrected_ptr, ids_ptr, accepted_ptr, width, slices, WIDTH: tl.constexpr):
    """Program (sequence): reads 16 bytes a slice, writes ids and accepted, 8 W bytes."""
    i = tl.program_id(0).to(tl.int64)
    h, draws = tl.load(verdict_ptr + 2 * i), tl.load(verdict_ptr + 2 * i + 1)
    rank = tl.arange(0, WIDTH)
    # The residual decides, and p where it is 0 throughout: that of p equal to Q.
    pair = tl.arange(0, 2)
    results = best_packed(corrected_ptr, 2 * i + pair, (pair < 2) & (draws != 0), slices, 2)
    left = tl.max(tl.where(pair == 0, results, NOTHING), 0)
    whole = tl.max(tl.where(pair == 1, results, NOTHING), 0)
    token = packed_id(tl.where(packed_key(left) > -INF, left, whole))
    draft = tl.load(draft_ptr + i * width + rank, mask=rank < h, other=-1)
    ids = tl.where((rank == h) & (draws != 0), token, draft)
    tl.store(ids_ptr + i * width + rank, ids, mask=rank < width)
    tl.store(accepted_ptr + i * width + rank, (rank < h).to(tl.int32), mask=rank < width)
