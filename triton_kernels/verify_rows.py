"""verify_rows as Triton kernels: rejection sampling and its correction (Algorithm 2, lines 5-8).

Three launches: one looks at splits of all rows, one finds how many drafts pass and draws from splits of the row behind them, and
one combines the splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops import checks

from . import tiles
from .checks import check_logits
from .draw_rows import Scan
from .philox import ACCEPT, TARGET, philox, to_gumbel, to_uniform, uniform_tile
from .row_lists import load_settings, load_split, programs, task_of_program
from .scores import INF, NOTHING, exp_of_negative, is_finite, key_score, log, log1p_of_minus, packed_id, packed_key
from .statistics import best_of, best_packed, log_weight, row_best, row_statistics

#: Instead of the token of the row behind the accepted drafts: it is yet to be combined from splits.
_IN_SPLITS = tl.constexpr(-2)


@triton.jit
def _passes(i, start, logits_ptr, stride_n, stride_r, vocab_size, positions_ptr, position_stride, seed_ptr, key_ptr, sum_ptr,
            best_ptr, kept_ptr, draft_ptr, draft_stride, draft_log_q_ptr, entries, width, splits, temperature, greedy, filtered,
            ROWS: tl.constexpr):
    """Whether drafts of entries start ... start + ROWS - 1 pass: log u < log p(d) - log Q(d), or d is a greedy row's argmax.

    A d outside the vocabulary and a row without a finite maximum do not.
    """
    j = start + tl.arange(0, ROWS)
    exists = j < entries
    position = tl.load(positions_ptr + i * position_stride + j, mask=exists, other=-1)
    d = tl.load(draft_ptr + i * draft_stride + j, mask=exists & (j < width), other=-1)
    known = exists & (position >= 0) & (d >= 0) & (d < vocab_size)
    at = i * entries + j
    if greedy:
        passes = known & (row_best(at, known, key_ptr, best_ptr, splits, splits, temperature, ROWS) == d)
    else:
        key, kept, log_sum = row_statistics(at, known, key_ptr, sum_ptr, kept_ptr, splits, filtered, temperature, ROWS)
        x = tl.load(logits_ptr + i * stride_n + j.to(tl.int64) * stride_r + d, mask=known, other=0.0).to(tl.float32)
        log_p = log_weight(x, key_score(key), kept, log_sum, temperature)
        log_q = tl.load(draft_log_q_ptr + (i * width + j) * vocab_size + d, mask=known, other=0.0)
        word, _, _, _ = philox(tl.load(seed_ptr + i), position, d * 0, ACCEPT)
        passes = known & is_finite(key) & (log(to_uniform(word)) < log_p - log_q)
    return passes


@triton.jit
def _residual(log_p, log_q):
    """log [p - Q]+, not normalised: log p + log1p(-Q/p) where p > Q, else -inf."""
    positive = log_q < log_p
    ratio = exp_of_negative(tl.where(positive, log_q - log_p, 0.0))
    return tl.where(positive, log_p + log1p_of_minus(ratio), -float("inf"))


@triton.jit(do_not_specialize=["position_stride", "draft_stride", "entries", "width", "splits"])
def correct_rows(logits_ptr, stride_n, stride_r, vocab_size, positions_ptr, position_stride,
                 seed_ptr, temperature_ptr, top_k_ptr, top_p_ptr, key_ptr, sum_ptr, best_ptr, kept_ptr,
                 draft_ptr, draft_stride, draft_log_q_ptr, verdict_ptr, corrected_ptr, entries, width, splits,
                 ROWS: tl.constexpr, SPLIT: tl.constexpr):
    """Program (sequence, split of row h, the first whose draft does not pass).

    Reads that row and its log Q, (sizeof(logit) + 4) * V bytes a sequence, and in each program the results of all rows, 8 bytes
    a split; writes verdict [N, 2] int32 (h and its token, -1 for none) and corrected [N, 2, splits] int64, the packed argmax of
    log [p - Q]+ + G and of log p + G.
    """
    i, _entry, split = task_of_program(1, splits)
    temperature, greedy, by_k, by_p = load_settings(i, temperature_ptr, top_k_ptr, top_p_ptr, vocab_size)
    h = entries
    for start in range(0, entries, ROWS):
        passes = _passes(i, start, logits_ptr, stride_n, stride_r, vocab_size, positions_ptr, position_stride, seed_ptr, key_ptr,
                         sum_ptr, best_ptr, kept_ptr, draft_ptr, draft_stride, draft_log_q_ptr, entries, width, splits,
                         temperature, greedy, by_k | by_p, ROWS)
        h = tl.minimum(h, tl.min(tl.where(passes, entries, start + tl.arange(0, ROWS)), 0))
    token = tl.full([], -1, tl.int32)
    position = tl.load(positions_ptr + i * position_stride + h, mask=h < entries, other=-1)
    if position >= 0:
        one = tl.arange(0, 1)
        at = i * entries + h + one
        if greedy:
            token = tl.max(row_best(at, one == 0, key_ptr, best_ptr, splits, splits, temperature, 1), 0)
        else:
            key, kept, log_sum = row_statistics(at, one == 0, key_ptr, sum_ptr, kept_ptr, splits, by_k | by_p, temperature, 1)
            if tl.max(is_finite(key).to(tl.int32), 0) != 0:
                token = tl.full([], _IN_SPLITS, tl.int32)
                ids, x = load_split(logits_ptr + i * stride_n + h.to(tl.int64) * stride_r, split, vocab_size, SPLIT)
                log_p = log_weight(x, key_score(key), kept, log_sum, temperature)
                drafted = tl.load(draft_ptr + i * draft_stride + h, mask=h < width, other=-1) >= 0
                log_q = tl.load(draft_log_q_ptr + (i * width + h) * vocab_size + ids, mask=(ids < vocab_size) & drafted,
                                other=-float("inf"))
                left = tl.full([], NOTHING, tl.int64)
                best = left
                if tl.max(log_p, 0) > -float("inf"):  # few splits hold a token that filters have left
                    gumbel = to_gumbel(uniform_tile(tl.load(seed_ptr + i), position, split * SPLIT, TARGET, SPLIT))
                    left = best_of(_residual(log_p, log_q) + gumbel, ids)
                    best = best_of(log_p + gumbel, ids)
                tl.store(corrected_ptr + 2 * i * splits + split, left)
                tl.store(corrected_ptr + (2 * i + 1) * splits + split, best)
    if split == 0:
        tl.store(verdict_ptr + 2 * i, h)
        tl.store(verdict_ptr + 2 * i + 1, token)


@triton.jit(do_not_specialize=["draft_stride", "entries", "width", "splits"])
def store_verified(draft_ptr, draft_stride, verdict_ptr, corrected_ptr, ids_ptr, accepted_ptr, entries, width, splits,
                   SIZE: tl.constexpr):
    """Program (sequence): reads 16 bytes a split, writes ids and accepted, 8 M bytes."""
    i = tl.program_id(0).to(tl.int64)
    h, token = tl.load(verdict_ptr + 2 * i), tl.load(verdict_ptr + 2 * i + 1)
    if token == _IN_SPLITS:
        # The residual decides, and p where it is 0 throughout: that of p equal to Q.
        pair = tl.arange(0, 2)
        results = best_packed(corrected_ptr, 2 * i + pair, pair < 2, splits, splits, 2)
        left = tl.max(tl.where(pair == 0, results, NOTHING), 0)
        best = tl.max(tl.where(pair == 1, results, NOTHING), 0)
        token = packed_id(tl.where(packed_key(left) > -INF, left, best))
    j = tl.arange(0, SIZE)
    draft = tl.load(draft_ptr + i * draft_stride + j, mask=(j < h) & (j < width), other=-1)
    tl.store(ids_ptr + i * entries + j, tl.where(j == h, token, draft), mask=j < entries)
    tl.store(accepted_ptr + i * entries + j, (j < h).to(tl.int32), mask=j < entries)


def verify_rows(logits: Tensor, positions: Tensor, seed: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, draft: Tensor,
                draft_log_q: Tensor, ids: Tensor, accepted: Tensor) -> None:
    """`packed_ss.ops.row_operators.verify_rows`: accepted drafts, then a draw from [p - Q]+; ids and accepted [N, M].

    logits as in `argmax_rows`; draft_log_q [N, W, V] float32.
    """
    checks.check_verify_rows(logits, positions, seed, temperature, top_k, top_p, draft, draft_log_q, ids, accepted)
    check_logits("verify_rows", logits)
    n, entries = ids.shape
    if ids.numel():
        scan = Scan("verify_rows", logits, None, positions, (seed, temperature, top_k, top_p), entries)
        verdict = torch.empty((n, 2), dtype=torch.int32, device=ids.device)
        corrected = torch.empty((n, 2, scan.splits), dtype=torch.int64, device=ids.device)
        drafts, width = (draft, draft.stride(0)), draft.shape[1]
        with tiles.on(ids.device):
            scan.launch(TARGET.value, draws=False)
            correct_rows[programs("verify_rows", n * scan.splits)](
                *scan.rows[:4], *scan.rows[6:], *scan.sampling, scan.key, scan.sum, scan.best, scan.kept, *drafts, draft_log_q,
                verdict, corrected, entries, width, scan.splits, ROWS=min(32, tiles.padded(entries, 1)), **scan.constants)
            store_verified[(n,)](*drafts, verdict, corrected, ids, accepted, entries, width, scan.splits,
                                 SIZE=tiles.padded(entries, 1), num_warps=4)
