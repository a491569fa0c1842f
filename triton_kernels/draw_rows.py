"""draw_rows as Triton kernels (packed_ss/ops/row_operators.py): two launches, whatever the settings, data on the device.

The first looks at splits of rows.  Where a sequence filters, the program of a row's first split does the row's search and draws
from the whole row, and the programs of its other splits leave at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops import checks

from . import tiles
from .checks import check_logits
from .filters import draw_filtered, filter_row
from .philox import to_gumbel, uniform_tile
from .row_lists import load_settings, load_split, locate, programs, row_operands, split_tile, task_of_program
from .scores import NOTHING, is_finite, key_score, order_key, scaled
from .statistics import best_of, log_weight, row_best, row_statistics, top_of


@triton.jit(do_not_specialize=["rows_in_call", "position_stride", "entries", "splits", "stream"])
def scan_rows(logits_ptr, stride_n, stride_r, vocab_size, rows_in_call, rows_ptr, positions_ptr, position_stride,
              seed_ptr, temperature_ptr, top_k_ptr, top_p_ptr, key_ptr, sum_ptr, best_ptr, kept_ptr, set_ptr,
              entries, splits, stream, unit, DRAWS: tl.constexpr, SPLIT: tl.constexpr,
              ROOM: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Program (sequence, entry, split).

    Reads the split, sizeof(logit) * V bytes a row that is asked for, of a filtered row three or four times, mostly from the L2
    cache (a dozen times more if its bracket has no room).  Writes 16 bytes a split (`statistics`), of a filtered row 20 bytes.
    Without DRAWS no noise is added: of use where a sequence is greedy.  set [programs / splits, room] is scratch.
    """
    i, j, split = task_of_program(entries, splits)
    asked, row, position = locate(i, j, entries, rows_in_call, rows_ptr, positions_ptr, position_stride)
    if asked:
        temperature, greedy, by_k, by_p = load_settings(i, temperature_ptr, top_k_ptr, top_p_ptr, vocab_size)
        row_ptr = logits_ptr + i * stride_n + row.to(tl.int64) * stride_r
        entry = i * entries + j
        at = entry * splits + split
        if by_k | by_p:
            if split == 0:
                key, kept, total = filter_row(row_ptr, set_ptr + entry * max(ROOM, GROUPS), vocab_size, temperature, by_k, by_p,
                                              tl.load(top_k_ptr + i), tl.load(top_p_ptr + i), unit, ROOM, GROUPS, WIDTH, SIZE)
                tl.store(key_ptr + at, key)
                tl.store(sum_ptr + at, total)
                tl.store(kept_ptr + entry, kept)
                if DRAWS:
                    tl.store(best_ptr + at, draw_filtered(row_ptr, vocab_size, key, kept, temperature, tl.load(seed_ptr + i),
                                                          position, stream, GROUPS))
        else:
            ids, x = load_split(row_ptr, split, vocab_size, SPLIT)
            key = order_key(top_of(x))
            best = tl.full([], NOTHING, tl.int64)
            total = tl.full([], 0.0, tl.float32)
            if is_finite(key):
                score = scaled(x, key_score(key), temperature)
                total = tl.sum(tl.exp(score), 0)
                if DRAWS:  # noqa: SIM102  (known when it is compiled)
                    if greedy == 0:
                        score += to_gumbel(uniform_tile(tl.load(seed_ptr + i), position, split * SPLIT, stream, SPLIT))
                best = best_of(score, ids)
            tl.store(key_ptr + at, key)
            tl.store(sum_ptr + at, total)
            tl.store(best_ptr + at, best)


class Scan:
    """The launch that looks at rows, for draw_rows and verify_rows: scratch, and what it leaves there."""

    def __init__(self, op: str, logits: Tensor, rows: Tensor | None, positions: Tensor, sampling: tuple[Tensor, ...],
                 entries: int) -> None:
        n, _, vocab = logits.shape
        self.rows, self.sampling = row_operands(logits, rows, positions), sampling
        self.tile, self.splits = split_tile(vocab)
        self.count, self.entries = n * entries, entries
        self.grid = programs(op, self.count * self.splits)
        self.filter = tiles.filter_tile(vocab, tiles.device(logits.device).capability)
        # Masses as integers, of which those of a row add up to less than 2^62.
        self.unit = float(1 << (62 - vocab.bit_length()))

        def scratch(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty((self.count, *shape), dtype=dtype, device=logits.device)

        self.key, self.sum = scratch(torch.int32, self.splits), scratch(torch.float32, self.splits)
        self.best, self.kept = scratch(torch.int64, self.splits), scratch(torch.float32)
        self.set = scratch(torch.float32, max(self.filter.room, self.filter.groups))

    @property
    def constants(self) -> dict[str, Any]:
        return {"SPLIT": self.tile.ids, "num_warps": self.tile.warps, "maxnreg": tiles.REGISTERS}

    def launch(self, stream: int, draws: bool) -> None:
        scan_rows[self.grid](
            *self.rows, *self.sampling, self.key, self.sum, self.best, self.kept, self.set, self.entries, self.splits, stream,
            self.unit, DRAWS=draws, ROOM=self.filter.room, GROUPS=self.filter.groups, WIDTH=self.filter.width,
            SIZE=self.filter.ids, **self.constants)


@triton.jit(do_not_specialize=["rows_in_call", "position_stride", "entries", "splits", "programs", "next_width", "next_column"])
def store_draws(logits_ptr, stride_n, stride_r, vocab_size, rows_in_call, rows_ptr, positions_ptr, position_stride,
                temperature_ptr, top_k_ptr, top_p_ptr, key_ptr, sum_ptr, best_ptr, kept_ptr, ids_ptr, log_q_ptr, next_ids_ptr,
                entries, splits, programs, next_width, next_column, SPLIT: tl.constexpr):
    """Program (sequence, entry), of ``programs`` that share its row: one, or with log_q one a split.

    Reads the results of the row, 12 bytes a split, and writes its token, to the next call's ids too; with log_q, reads the split
    again and writes its log Q, 4 V bytes a row.
    """
    i, j, split = task_of_program(entries, programs)
    asked, row, _position = locate(i, j, entries, rows_in_call, rows_ptr, positions_ptr, position_stride)
    temperature, greedy, by_k, by_p = load_settings(i, temperature_ptr, top_k_ptr, top_p_ptr, vocab_size)
    one = tl.arange(0, 1)
    at = i * entries + j + one
    exists = (one == 0) & asked
    token = row_best(at, exists, key_ptr, best_ptr, splits, tl.where(by_k | by_p, 1, splits), temperature, 1)
    if split == 0:
        tl.store(ids_ptr + at, token)
        if next_ids_ptr is not None:
            tl.store(next_ids_ptr + i * next_width + next_column + j + one, token, mask=token >= 0)
    if log_q_ptr is not None:  # noqa: SIM102  (known when it is compiled)
        if asked:
            ids, x = load_split(logits_ptr + i * stride_n + row.to(tl.int64) * stride_r, split, vocab_size, SPLIT)
            if greedy:
                log_q = tl.where(ids == token, 0.0, -float("inf"))
            else:
                key, kept, log_sum = row_statistics(at, exists, key_ptr, sum_ptr, kept_ptr, splits, by_k | by_p, temperature, 1)
                maximum = tl.where(is_finite(key), key_score(key), float("nan"))
                log_q = log_weight(x, maximum, kept, log_sum, temperature)
            tl.store(log_q_ptr + (i * entries + j) * vocab_size + ids, log_q, mask=ids < vocab_size)


def draw_rows(logits: Tensor, rows: Tensor | None, positions: Tensor, draft: Tensor | None, seed: Tensor, temperature: Tensor,
              top_k: Tensor, top_p: Tensor, stream: int, ids: Tensor, log_q: Tensor | None, next_ids: Tensor | None,
              next_column: int) -> None:
    """`packed_ss.ops.row_operators.draw_rows`: argmax(log p + G) of entries into ids [N, M], log_q [N, M, V] and next_ids.

    logits as in `argmax_rows`, where ``draft`` is left aside too.
    """
    checks.check_draw_rows(logits, rows, positions, draft, seed, temperature, top_k, top_p, stream, ids, log_q, next_ids,
                           next_column)
    check_logits("draw_rows", logits)
    if ids.numel():
        scan = Scan("draw_rows", logits, rows, positions, (seed, temperature, top_k, top_p), ids.shape[1])
        sharing = 1 if log_q is None else scan.splits
        with tiles.on(logits.device):
            scan.launch(stream, draws=True)
            store_draws[(scan.count * sharing,)](
                *scan.rows, *scan.sampling[1:], scan.key, scan.sum, scan.best, scan.kept, ids, log_q, next_ids, scan.entries,
                scan.splits, sharing, 0 if next_ids is None else next_ids.shape[1], next_column, **scan.constants)
