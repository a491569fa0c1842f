"""Statistics of rows of logits, from those of their splits.

Of a split kernels keep the key of its largest logit, the sum of exp(score) and the packed argmax of score, or of score + G.
Scores are relative to the split's maximum; whoever needs a row's result combines its first ``used`` splits.  A filtered row has
one, the whole row, since its filters have found the row's maximum already.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .scores import INF, NOTHING, exp_of_negative, is_finite, key_score, log, order_key, pack, packed_id, packed_key, scaled

#: Splits of a row that are combined at a time.
COLUMNS = tl.constexpr(16)


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
def best_packed(best_ptr, at, exists, splits, used, ROWS: tl.constexpr):
    """The largest of packed results [.., splits] at ``at`` [ROWS]."""
    column = tl.arange(0, COLUMNS)
    best = tl.full([ROWS, COLUMNS], NOTHING, tl.int64)
    for start in range(0, used, COLUMNS):
        inside = exists[:, None] & (start + column < used)[None, :]
        found = tl.load(best_ptr + (at * splits)[:, None] + (start + column)[None, :], mask=inside, other=NOTHING)
        best = tl.maximum(best, found)
    return tl.max(best, 1)


@triton.jit
def row_keys(key_ptr, at, exists, splits, used, ROWS: tl.constexpr):
    """int32 [ROWS]: keys of the largest logits of the rows whose splits lie at ``at`` [ROWS]."""
    column = tl.arange(0, COLUMNS)
    key = tl.full([ROWS, COLUMNS], -INF, tl.int32)
    for start in range(0, used, COLUMNS):
        inside = exists[:, None] & (start + column < used)[None, :]
        key = tl.maximum(key, tl.load(key_ptr + (at * splits)[:, None] + (start + column)[None, :], mask=inside, other=-INF))
    return tl.max(key, 1)


@triton.jit
def _below(split_key, key, temperature):
    """Scores of the largest logits of splits [ROWS, COLUMNS], relative to those of their rows [ROWS]."""
    return (key_score(split_key) - key_score(key)[:, None]) * (1.0 / temperature)


@triton.jit
def row_total(at, exists, key_ptr, sum_ptr, splits, used, temperature, ROWS: tl.constexpr):
    """(key of the maximum, sum of exp(score)) of rows; the sum is 1 where the maximum is not finite."""
    key = row_keys(key_ptr, at, exists, splits, used, ROWS)
    column = tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, used, COLUMNS):
        inside = exists[:, None] & (start + column < used)[None, :]
        where = (at * splits)[:, None] + (start + column)[None, :]
        split_key = tl.load(key_ptr + where, mask=inside, other=-INF)
        counts = inside & is_finite(split_key)
        share = exp_of_negative(_below(split_key, key, temperature))
        total += tl.where(counts, tl.load(sum_ptr + where, mask=counts, other=0.0) * share, 0.0)
    return key, tl.where(is_finite(key), tl.sum(total, 1), 1.0)


@triton.jit
def row_statistics(at, exists, key_ptr, sum_ptr, kept_ptr, splits, filtered, temperature, ROWS: tl.constexpr):
    """Of rows: the key of the maximum, the smallest score that is kept, and the log of the sum of exp(score), by which
    `log_weight` makes the processed distribution.  Whatever a row without a finite maximum has."""
    key, total = row_total(at, exists, key_ptr, sum_ptr, splits, tl.where(filtered, 1, splits), temperature, ROWS)
    return key, tl.load(kept_ptr + at, mask=exists & filtered, other=-float("inf")), log(total)


@triton.jit
def log_weight(x, maximum, kept, log_sum, temperature):
    """Log of the processed distribution at logits x, -inf where filters leave nothing."""
    score = scaled(x, maximum, temperature)
    return tl.where(score < kept, -float("inf"), score - log_sum)


@triton.jit
def row_best(at, exists, key_ptr, best_ptr, splits, used, temperature, ROWS: tl.constexpr):
    """The id of the best score of rows, -1 where the maximum is not finite."""
    key = row_keys(key_ptr, at, exists, splits, used, ROWS)
    column = tl.arange(0, COLUMNS)
    best = tl.full([ROWS, COLUMNS], NOTHING, tl.int64)
    for start in range(0, used, COLUMNS):
        inside = exists[:, None] & (start + column < used)[None, :]
        where = (at * splits)[:, None] + (start + column)[None, :]
        found = tl.load(best_ptr + where, mask=inside, other=NOTHING)
        score = key_score(packed_key(found)) + _below(tl.load(key_ptr + where, mask=inside, other=-INF), key, temperature)
        best = tl.maximum(best, tl.where(found == NOTHING, NOTHING, pack(order_key(score), packed_id(found))))
    result = tl.max(best, 1)
    return tl.where(exists & is_finite(key) & (result != NOTHING), packed_id(result), -1)
