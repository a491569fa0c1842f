"""argmax_rows as Triton kernels (packed_ss/ops/row_operators.py): two launches."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops import checks

from . import tiles
from .checks import check_logits
from .row_lists import load_split, locate, programs, row_operands, split_tile, task_of_program
from .scores import NOTHING, is_finite, key_score, order_key
from .statistics import best_of, row_best, row_total, top_of

#: Entries that a program combines.
_ROWS = 8


@triton.jit(do_not_specialize=["rows_in_call", "position_stride", "entries", "splits"])
def scan_argmax(logits_ptr, stride_n, stride_r, vocab_size, rows_in_call, rows_ptr, positions_ptr, position_stride,
                key_ptr, sum_ptr, best_ptr, entries, splits, SPLIT: tl.constexpr):
    """Program (sequence, entry, split).

    Reads the split, sizeof(logit) * V bytes a row that is asked for; writes 16 bytes a split (`statistics`).
    """
    i, j, split = task_of_program(entries, splits)
    asked, row, _position = locate(i, j, entries, rows_in_call, rows_ptr, positions_ptr, position_stride)
    if asked:
        ids, x = load_split(logits_ptr + i * stride_n + row.to(tl.int64) * stride_r, split, vocab_size, SPLIT)
        at = (i * entries + j) * splits + split
        key = order_key(top_of(x))
        score = x - key_score(key)  # of no use where the key is not finite
        if sum_ptr is not None:
            tl.store(sum_ptr + at, tl.sum(tl.exp(score), 0))
        tl.store(key_ptr + at, key)
        tl.store(best_ptr + at, tl.where(is_finite(key), best_of(score, ids), NOTHING))


@triton.jit(do_not_specialize=["rows_in_call", "position_stride", "count", "entries", "splits"])
def combine_argmax(rows_in_call, rows_ptr, positions_ptr, position_stride, key_ptr, sum_ptr, best_ptr, ids_ptr, probability_ptr,
                   count, entries, splits, ROWS: tl.constexpr):
    """Program (ROWS of all entries): reads 12 or 16 bytes a split; writes ids, and probability = 1 / sum where it is wanted."""
    at = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = at < count
    near = tl.minimum(at, count - 1)
    asked, _row, _position = locate(near // entries, near % entries, entries, rows_in_call, rows_ptr, positions_ptr,
                                    position_stride)
    asked = asked & exists
    token = row_best(at, asked, key_ptr, best_ptr, splits, splits, 1.0, ROWS)
    tl.store(ids_ptr + at, token, mask=exists)
    if probability_ptr is not None:
        _key, total = row_total(at, asked, key_ptr, sum_ptr, splits, splits, 1.0, ROWS)
        tl.store(probability_ptr + at, tl.where(token >= 0, tl.div_rn(1.0, total), 0.0), mask=exists)


def argmax_rows(logits: Tensor, rows: Tensor | None, positions: Tensor | None, draft: Tensor | None, ids: Tensor,
                probability: Tensor | None) -> None:
    """`packed_ss.ops.row_operators.argmax_rows`: ids [N, M], and probability [N, M] float32 where it is given.

    logits [N, R, V] in float32, bfloat16 or float16, any strides but along V.  Every entry that is asked for is looked at,
    whatever ``draft`` says: rows are read side by side.
    """
    checks.check_argmax_rows(logits, rows, positions, draft, ids, probability)
    check_logits("argmax_rows", logits)
    if ids.numel():
        tile, splits = split_tile(logits.shape[2])
        entries = ids.shape[1]
        grid = programs("argmax_rows", ids.numel() * splits)
        key, best = (torch.empty((*ids.shape, splits), dtype=dtype, device=ids.device) for dtype in (torch.int32, torch.int64))
        total = None if probability is None else torch.empty_like(key, dtype=torch.float32)
        operands = row_operands(logits, rows, positions)
        with tiles.on(ids.device):
            scan_argmax[grid](*operands, key, total, best, entries, splits, SPLIT=tile.ids, num_warps=tile.warps)
            combine_argmax[(triton.cdiv(ids.numel(), _ROWS),)](
                *operands[4:], key, total, best, ids, probability, ids.numel(), entries, splits, ROWS=_ROWS, num_warps=4,
                maxnreg=tiles.REGISTERS)
