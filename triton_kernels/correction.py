"""The verdict and the correction of rejection sampling (Algorithm 2, lines 5-8)."""

from __future__ import annotations

import triton
import triton.language as tl

from .draws import best_of, log_weight, row_statistics
from .philox import ACCEPT, TARGET, philox, to_gumbel, to_uniform, uniform_tile
from .rows import FAILED, FINISHED, GOES_ON, RUNNING, load_slice, task_of_program, verified_drafts
from .scores import NOTHING, exp_of_negative, is_finite, key_score, log, log1p_of_minus


@triton.jit
def accepts(d, log_q_at, place, exists, row_ptr, draft_log_q_ptr, position, seed, vocab_size, row_key_ptr, row_kept_ptr,
            row_sum_ptr, slice_key_ptr, slice_sum_ptr, slices, temperature,
            FILTERED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr):
    """Whether drafts d [ROWS] at ``position`` pass log u < log p(d) - log Q(d).  A d outside the vocabulary or a row of NaN does
    not.  row_ptr [ROWS]: the logits of their rows; log_q_at [ROWS]: where log Q of their rows lies."""
    key, kept, log_sum = row_statistics(place, exists, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr,
                                        slices, temperature, FILTERED, ROWS)
    known = exists & (d >= 0) & (d < vocab_size)
    x = tl.load(row_ptr + d, mask=known, other=0.0).to(tl.float32)
    log_p = log_weight(x, key_score(key), kept, log_sum, temperature, UNIT)
    log_q = tl.load(draft_log_q_ptr + log_q_at + d, mask=known, other=0.0)
    word, _, _, _ = philox(seed, position, d * 0, ACCEPT)
    return known & is_finite(key) & (log(to_uniform(word)) < log_p - log_q)


@triton.jit
def _matches(i, drafts, logits_ptr, stride_n, stride_r, vocab_size, length_ptr, draft_ptr, seed_ptr, draft_log_q_ptr,
             row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, width, places, slices, temperature,
             FILTERED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr):
    """h: how many leading drafts pass."""
    h = drafts
    for start in range(0, drafts, ROWS):
        row = start + tl.arange(0, ROWS)
        exists = row < drafts
        d = tl.load(draft_ptr + i * width + row, mask=exists, other=-1)
        accepted = accepts(d, (i * width + row) * vocab_size, i * places + row, exists,
                           logits_ptr + i * stride_n + row.to(tl.int64) * stride_r, draft_log_q_ptr,
                           tl.load(length_ptr + i) + row, tl.load(seed_ptr + i), vocab_size, row_key_ptr, row_kept_ptr,
                           row_sum_ptr, slice_key_ptr, slice_sum_ptr, slices, temperature, FILTERED, UNIT, ROWS)
        h = tl.minimum(h, tl.min(tl.where(exists & (accepted == 0), row, drafts), 0))
    return h


@triton.jit
def _residual(log_p, log_q):
    """log [p - Q]+, not normalised: log p + log1p(-Q/p) where p > Q, else -inf."""
    positive = log_q < log_p
    ratio = exp_of_negative(tl.where(positive, log_q - log_p, 0.0))
    return tl.where(positive, log_p + log1p_of_minus(ratio), -float("inf"))


@triton.jit
def correct_slice(logits_ptr, stride_n, stride_r, vocab_size, i, row, split, key, kept, log_sum, drafted, draft_log_q_ptr, seed,
                  position, corrected_ptr, slices, temperature, UNIT: tl.constexpr, SLICE: tl.constexpr):
    """Writes the packed argmax of log [p - Q]+ + G and of log p + G of a slice of a row of logits; not ``drafted``: Q is 0.

    key, kept and log_sum [1] are the row's `row_statistics`; draft_log_q_ptr points to log Q of the row."""
    ids, x = load_slice(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE)
    log_p = log_weight(x, key_score(key), kept, log_sum, temperature, UNIT)
    log_q = tl.load(draft_log_q_ptr + ids, mask=(ids < vocab_size) & drafted, other=-float("inf"))
    left = tl.full([], NOTHING, tl.int64)
    whole = tl.full([], NOTHING, tl.int64)
    if tl.max(log_p, 0) > -float("inf"):
        gumbel = to_gumbel(uniform_tile(seed, position, split * SLICE, TARGET, SLICE))
        left = best_of(_residual(log_p, log_q) + gumbel, ids)
        whole = best_of(log_p + gumbel, ids)
    tl.store(corrected_ptr + 2 * i * slices + split, left)
    tl.store(corrected_ptr + (2 * i + 1) * slices + split, whole)


@triton.jit(do_not_specialize=["verifier_rows", "width", "places", "slices"])
def correct_rows(logits_ptr, stride_n, stride_r, vocab_size, finish_reason_ptr, length_ptr, draft_ptr, draft_len_ptr, seed_ptr,
                 draft_log_q_ptr, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, verdict_ptr,
                 corrected_ptr, verifier_rows, width, places, slices, temperature,
                 FILTERED: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, slice of row h).

    Reads that row and its log Q, (sizeof(logit) + 4) * V bytes a sequence, and in each program the statistics of all verifier
    rows, 8 bytes a slice; writes verdict [N, 2] int32 (h, and what follows) and corrected [N, 2, slices] int64, the packed argmax
    of log [p - Q]+ + G and of log p + G.
    """
    i, _, split = task_of_program(1, slices)
    if tl.load(finish_reason_ptr + i) == RUNNING:
        drafts = verified_drafts(draft_len_ptr, i, verifier_rows)
        h = _matches(i, drafts, logits_ptr, stride_n, stride_r, vocab_size, length_ptr, draft_ptr, seed_ptr, draft_log_q_ptr,
                     row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, width, places, slices, temperature,
                     FILTERED, UNIT, ROWS)
        one = tl.arange(0, 1)
        key, kept, log_sum = row_statistics(i * places + h + one, one == 0, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr,
                                            slice_sum_ptr, slices, temperature, FILTERED, 1)
        finite = tl.sum(is_finite(key).to(tl.int32), 0)
        if split == 0:
            tl.store(verdict_ptr + 2 * i, h)
            tl.store(verdict_ptr + 2 * i + 1, tl.where(finite != 0, GOES_ON, FAILED))
        if finite != 0:
            correct_slice(logits_ptr, stride_n, stride_r, vocab_size, i, h, split, key, kept, log_sum, h < drafts,
                          draft_log_q_ptr + (i * width + h) * vocab_size, tl.load(seed_ptr + i), tl.load(length_ptr + i) + h,
                          corrected_ptr, slices, temperature, UNIT, SLICE)
    elif split == 0:
        tl.store(verdict_ptr + 2 * i + 1, FINISHED)
