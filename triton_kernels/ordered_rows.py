"""The row operators of the ordered layout as Triton kernels (packed_ss/ops/rows.py): logits of rows to tokens.

    operator       launches    with top-k or top-p
    argmax_rows       2
    draw_rows         2                3
    verify_rows       3                3

Every wrapper is safe to capture: grids and buffers follow from shapes, nothing on the device is read by the host, and only
torch.empty allocates.  Which rows are looked at is read on the device: programs of the others leave at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from packed_ss.ops import checks_ordered as checks

from . import ordered_draws as kernels
from . import tiles
from .checks import check_logits
from .launches import MOST_PROGRAMS, filtering

#: Rows that a program puts together.
_ROWS = 8


def argmax_rows(logits: Tensor, probability: bool) -> tuple[Tensor, Tensor]:
    """`packed_ss.ops.rows.argmax_rows`: ids [N, R] int32, and with ``probability`` that of each, [N, R] float32, else [N, 0].

    logits [N, R, V] in float32, bfloat16 or float16, any strides but along V.
    """
    checks.check_argmax_rows(logits, probability)
    check_logits("argmax_rows", logits)
    (n, rows, vocab), device = logits.shape, logits.device
    ids = torch.empty((n, rows), dtype=torch.int32, device=device)
    certainty = torch.empty((n, rows if probability else 0), dtype=torch.float32, device=device)
    if ids.numel():
        tile = tiles.resolve_tile(vocab)
        slices = -(-vocab // tile.ids)
        grid = _programs("argmax_rows", n * rows * slices)
        best = torch.empty((n, rows, slices), dtype=torch.int64, device=device)
        key = torch.empty((n, rows, slices), dtype=torch.int32, device=device) if probability else best
        total = torch.empty((n, rows, slices), dtype=torch.float32, device=device) if probability else best
        kernels.scan_rows[grid](logits, logits.stride(0), logits.stride(1), vocab, best, key, total, rows, slices,
                                SUMS=probability, SLICE=tile.ids, num_warps=tile.warps)
        kernels.put_rows_together[(triton.cdiv(n * rows, _ROWS),)](
            best, key, total, ids, certainty if probability else ids, n * rows, slices, SUMS=probability, ROWS=_ROWS, num_warps=4)
    return ids, certainty


def draw_rows(logits: Tensor, rows: Tensor, positions: Tensor, seed: Tensor, temperature: float, top_k: int, top_p: float,
              stream: int, ids: Tensor, log_q: Tensor | None) -> None:
    """`packed_ss.ops.rows.draw_rows`: argmax(log p + G) of the rows that ``rows`` names into ids [N, W] int32, -1 elsewhere.

    logits as in `argmax_rows`; log_q [N, W, V] float32 or None.
    """
    checks.check_draw_rows(logits, rows, positions, seed, temperature, top_k, top_p, stream, ids, log_q)
    check_logits("draw_rows", logits)
    if ids.numel():
        sample = _Rows("draw_rows", logits, rows, positions, seed, temperature, top_k, top_p, sums=log_q is not None)
        sample.scan(stream, draws=True)
        programs = 1 if log_q is None else sample.slices
        kernels.store_draws[_programs("draw_rows", ids.numel() * programs)](
            *sample.logits, rows, positions, *sample.statistics, sample.drawn, ids, sample.drawn if log_q is None else log_q,
            sample.width, sample.most, sample.slices, programs, sample.temperature, STORES=log_q is not None, **sample.constants)


def verify_rows(logits: Tensor, rows: Tensor, positions: Tensor, seed: Tensor, temperature: float, top_k: int, top_p: float,
                draft: Tensor, draft_log_q: Tensor) -> tuple[Tensor, Tensor]:
    """`packed_ss.ops.rows.verify_rows`: accepted drafts, then a draw from [p - Q]+; ids and accepted [N, W] int32.

    logits as in `argmax_rows`; draft_log_q [N, W, V] float32.
    """
    checks.check_verify_rows(logits, rows, positions, seed, temperature, top_k, top_p, draft, draft_log_q)
    check_logits("verify_rows", logits)
    ids, accepted = torch.empty_like(draft), torch.empty_like(draft)
    n, width = draft.shape
    if n:
        sample = _Rows("verify_rows", logits, rows, positions, seed, temperature, top_k, top_p, sums=True)
        sample.scan(0, draws=False)
        verdict = torch.empty((n, 2), dtype=torch.int32, device=draft.device)
        corrected = torch.empty((n, 2, sample.slices), dtype=torch.int64, device=draft.device)
        kernels.correct_listed[_programs("verify_rows", n * sample.slices)](
            *sample.logits, rows, positions, draft, seed, draft_log_q, *sample.statistics, verdict, corrected, width, sample.most,
            sample.slices, sample.temperature, ROWS=min(32, tiles.padded(width, 1)), **sample.constants)
        kernels.store_verified[(n,)](draft, verdict, corrected, ids, accepted, width, sample.slices,
                                     WIDTH=tiles.padded(width, 1), num_warps=4)
    return ids, accepted


class _Rows:
    """The processed distribution of the rows of a table, and draws from it: scratch, and the launches that fill it.

    Results of slices are [N, W, slices]; with filters, statistics of rows [N, W] come first.
    """

    def __init__(self, op: str, logits: Tensor, rows: Tensor, positions: Tensor, seed: Tensor, temperature: float, top_k: int,
                 top_p: float, sums: bool) -> None:
        self.op, self.rows, self.positions, self.seed, self.temperature = op, rows, positions, seed, float(temperature)
        (self.n, self.width), (_, self.most, self.vocab) = positions.shape, logits.shape
        self.tile = tiles.resolve_tile(self.vocab)
        self.slices = -(-self.vocab // self.tile.ids)
        self.logits = (logits, logits.stride(0), logits.stride(1), self.vocab)
        self.top_k = top_k if top_k < self.vocab else 0
        self.top_p = top_p
        self.filtered = self.top_k > 0 or top_p < 1.0
        self.sums = sums and not self.filtered
        key = self._scratch(torch.int32, self.slices)
        self.drawn = self._scratch(torch.int64, self.slices)
        total = self._scratch(torch.float32, self.slices) if self.sums else self.drawn
        of_rows = (key, key, key)
        if self.filtered:
            of_rows = (self._scratch(torch.int32), self._scratch(torch.float32), self._scratch(torch.float32))
        #: Key, smallest score kept and sum of each row, then key and sum of each slice.
        self.statistics = (*of_rows, key, total)
        self.constants: dict[str, Any] = {"FILTERED": self.filtered, "UNIT": temperature == 1.0, "SLICE": self.tile.ids,
                                          "num_warps": self.tile.warps}

    def scan(self, stream: int, draws: bool) -> None:
        """Looks at the rows: filters where there are any, then slices unless the filters have found all that is wanted."""
        *of_rows, key, total = self.statistics
        if self.filtered:
            tile, settings, constants = filtering(self.vocab, self.top_k, self.top_p, self.seed.device)
            groups, chosen = self._scratch(torch.float32, tile.groups), self._scratch(torch.float32, tile.room)
            kernels.filter_listed[_programs(self.op, self.n * self.width)](
                *self.logits, self.rows, self.positions, *of_rows, groups, chosen, self.width, self.most, self.temperature,
                *settings, UNIT=self.constants["UNIT"], **constants)
        if draws or not self.filtered:
            kernels.sample_listed[_programs(self.op, self.n * self.width * self.slices)](
                *self.logits, self.rows, self.positions, self.seed, *of_rows[:2], key, total, self.drawn, self.width, self.most,
                self.slices, self.temperature, stream, SUMS=self.sums, DRAWS=draws, **self.constants)

    def _scratch(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """[N, W, ...], with whatever it holds."""
        return torch.empty((self.n, self.width, *shape), dtype=dtype, device=self.seed.device)


def _programs(op: str, programs: int) -> tuple[int]:
    """The grid of so many programs."""
    if programs > MOST_PROGRAMS:
        raise ValueError(f"{op}: logits must be few enough for 2^31 - 1 programs, got {programs} of them.")
    return (programs,)
