"""Launches that make up a resolve: buffers and grids, which follow from shapes alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import commit, tiles
from .correction import correct_rows
from .draws import argmax_rows, sample_rows
from .filters import filter_rows

MOST_PROGRAMS = 2**31 - 1
# Registers that a thread may have where the assembler, left to itself, would spill a few for the sake of more warps.
_REGISTERS = 128
_POINTERS = ("tokens", "length", "cache_len", "draft", "draft_len", "finish_reason", "nfe", "advances", "limit", "prompt_length",
             "stops")


class Call(NamedTuple):
    """What every resolve takes after its results: the state, and the shapes of this call and the next (ops/schema.py)."""

    tokens: Tensor
    length: Tensor
    cache_len: Tensor
    draft: Tensor
    draft_len: Tensor
    finish_reason: Tensor
    nfe: Tensor
    advances: Tensor
    limit: Tensor
    prompt_length: Tensor
    stops: Tensor
    verifier_rows: int
    block_size: int
    cuts: Sequence[int]
    shift: int
    mask_token_id: int
    next_verifier_rows: int
    next_cuts: Sequence[int]
    next_ids: Tensor | None
    next_positions: Tensor | None
    next_slots: Tensor | None

    @property
    def rows(self) -> int:
        """Of this call, for one sequence."""
        return self.verifier_rows + len(self.cuts) * self.block_size

    @property
    def next_rows(self) -> int:
        return self.next_verifier_rows + len(self.next_cuts) * self.block_size


class Work:
    """One call of a resolve: what its launches share.

    ``by_row``: a row's results lie at its own index; else those of proposal rows come after the verifier rows', in order
    of draft tokens, and h has to be known before they are made.  Scratch is [N, ``places``, ``slices``].
    """

    def __init__(self, op: str, call: Call, by_row: bool, logits: Tensor | None = None, temperature: float = 1.0) -> None:
        self.op, self.call, self.by_row, self.temperature = op, call, by_row, float(temperature)
        self.n, self.width = call.length.shape[0], call.block_size - 1
        self.vocab = 1 if logits is None else logits.shape[2]
        self.tile = tiles.resolve_tile(self.vocab)
        self.slices = -(-self.vocab // self.tile.ids)
        self.places = call.rows if by_row else call.verifier_rows + self.width
        self.unit = temperature == 1.0
        self.logits = () if logits is None else (logits, logits.stride(0), logits.stride(1), self.vocab)
        if self.places * self.slices > MOST_PROGRAMS:
            raise ValueError(f"{op}: logits must have fewer rows of so many ids, got {call.rows} of {self.vocab}.")
        self.verdict = self.scratch(torch.int32, 2)

    def scratch(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """[N, ...], with whatever it holds."""
        return torch.empty((self.n, *shape), dtype=dtype, device=self.call.length.device)

    def programs(self, per_sequence: int) -> tuple[int]:
        """The grid of a launch with so many programs for each sequence."""
        programs = self.n * per_sequence
        if programs > MOST_PROGRAMS:
            raise ValueError(f"{self.op}: logits must be few enough for 2^31 - 1 programs, got {programs} of them.")
        return (programs,)

    def argmax(self, best: Tensor, rows: int, retained: bool) -> None:
        """The argmax of the first rows, or of those retained for the draft."""
        call = self.call
        argmax_rows[self.programs(rows * self.slices)](
            *self.logits, call.finish_reason, call.length, call.draft_len, self.verdict, best,
            call.verifier_rows, call.block_size, call.shift, int(self.by_row), rows, self.places, self.slices,
            CUTS=tuple(call.cuts), RETAINED=retained, SLICE=self.tile.ids, num_warps=self.tile.warps)

    def judge(self, source: Any, best: Tensor, slice_key: Tensor) -> None:
        """h, for rows that wait for it."""
        call = self.call
        commit.judge[self.programs(1)](
            call.finish_reason, call.draft, call.draft_len, best, slice_key, self.verdict, call.verifier_rows, self.width,
            self.places, self.slices, self.temperature, SOURCE=source.value, num_warps=4, maxnreg=_REGISTERS)

    def finish(self, source: Any, best: Tensor, ids: Tensor, slice_key: Tensor, corrected: Tensor) -> None:
        """Commits, retains and writes the next rows."""
        commit.finish[self.programs(1)](*self._finish_operands(best, ids, slice_key, corrected), **self._finish_constants(source),
                                        num_warps=4, maxnreg=_REGISTERS)

    def store_and_finish(self, sample: Sample, draft_log_q: Tensor, corrected: Tensor) -> None:
        """The same, and log Q of the draft."""
        commit.store_and_finish[self.programs(1 + self.width * self.slices)](
            *self.logits, draft_log_q, sample.row_key, sample.row_kept, sample.row_sum, sample.slice_sum,
            *self._finish_operands(sample.drawn, sample.drawn, sample.slice_key, corrected),
            **self._finish_constants(commit.REJECTION), FILTERED=sample.filtered, UNIT=self.unit, SLICE=self.tile.ids,
            num_warps=self.tile.warps, maxnreg=_REGISTERS)

    def _finish_operands(self, best: Tensor, ids: Tensor, slice_key: Tensor, corrected: Tensor) -> tuple[Any, ...]:
        call = self.call
        following = (call.next_ids, call.next_positions, call.next_slots)
        if call.next_ids is None:
            following = (call.draft_len,) * 3
        return (*(getattr(call, name) for name in _POINTERS), best, ids, slice_key, self.verdict, corrected, *following,
                call.tokens.shape[1], self.width, call.advances.shape[1], *call.stops.shape, call.verifier_rows, call.block_size,
                call.shift, int(self.by_row), self.places, self.slices, self.temperature, call.mask_token_id,
                call.next_verifier_rows, call.next_rows)

    def _finish_constants(self, source: Any) -> dict[str, Any]:
        call, stop_count = self.call, self.call.stops.shape[0]
        return {"CUTS": tuple(call.cuts), "NEXT_CUTS": tuple(call.next_cuts), "SOURCE": source.value,
                "VERIFIES": call.verifier_rows > 0, "HAS_NEXT": call.next_ids is not None,
                "CANDIDATES": tiles.padded(call.verifier_rows, 1), "STOPS": tiles.padded(stop_count, 1) if stop_count else 0}


def single(x: float) -> float:
    """x rounded to float32, without an operator."""
    return struct.unpack("f", struct.pack("f", x))[0]


def filtering(vocab: int, top_k: int, top_p: float,
              of: torch.device) -> tuple[tiles.FilterTile, tuple[int, float, float, float], dict[str, Any]]:
    """The tile of a launch that filters rows, what its kernel takes after the temperature, and its constants and options."""
    tile = tiles.filter_tile(vocab, tiles.device(of).capability)
    high = single(top_p)
    # Masses as integers, of which those of a whole row add up to less than 2^62.
    whole = float(1 << (62 - vocab.bit_length()))
    constants = {"TOP_K": top_k > 0, "TOP_P": top_p < 1.0, "ROOM": tile.room, "GROUPS": tile.groups, "WIDTH": tile.width,
                 "SIZE": tile.ids, "num_warps": tile.warps, "maxnreg": _REGISTERS}
    return tile, (top_k, high, top_p - high, whole), constants


class Sample:
    """The processed distribution of rows, and draws from it: scratch, and the launches that fill it.

    Results of slices [N, places, slices]; with ``filtered``, statistics of rows [N, places] come first.
    """

    def __init__(self, work: Work, seed: Tensor, stream: Any, top_k: int, top_p: float, sums: bool) -> None:
        self.work, self.seed, self.stream = work, seed, stream.value
        self.top_k = top_k if top_k < work.vocab else 0
        self.top_p = top_p
        self.filtered = self.top_k > 0 or top_p < 1.0
        self.sums = sums and not self.filtered
        self.slice_key = work.scratch(torch.int32, work.places, work.slices)
        self.drawn = work.scratch(torch.int64, work.places, work.slices)
        self.slice_sum = work.scratch(torch.float32, work.places, work.slices) if self.sums else self.drawn
        self.row_key = self.row_kept = self.row_sum = self.slice_key
        if self.filtered:
            self.row_key = work.scratch(torch.int32, work.places)
            self.row_kept, self.row_sum = (work.scratch(torch.float32, work.places) for _ in range(2))

    def scan(self, rows: int, retained: bool, filters: bool = True, draws: bool = True) -> None:
        """Looks at the first rows, or at those retained for the draft: filters where there are any, then slices."""
        if self.filtered and filters:
            self._filter(rows, retained)
        if draws or not self.filtered:
            self._slices(rows, retained, draws)

    def _filter(self, rows: int, retained: bool) -> None:
        work, call = self.work, self.work.call
        tile, settings, constants = filtering(work.vocab, self.top_k, self.top_p, self.seed.device)
        groups = work.scratch(torch.float32, rows, tile.groups)
        chosen = work.scratch(torch.float32, rows, tile.room)
        filter_rows[work.programs(rows)](
            *work.logits, call.finish_reason, call.length, call.draft_len, work.verdict, self.row_key, self.row_kept,
            self.row_sum, groups, chosen, call.verifier_rows, call.block_size, call.shift, int(work.by_row), rows, work.places,
            work.temperature, *settings, CUTS=tuple(call.cuts), RETAINED=retained, UNIT=work.unit, **constants)

    def _slices(self, rows: int, retained: bool, draws: bool) -> None:
        work, call = self.work, self.work.call
        sample_rows[work.programs(rows * work.slices)](
            *work.logits, call.finish_reason, call.length, call.draft_len, work.verdict, self.seed, self.row_key, self.row_kept,
            self.slice_key, self.slice_sum, self.drawn, call.verifier_rows, call.block_size, call.shift, int(work.by_row), rows,
            work.places, work.slices, work.temperature, self.stream,
            CUTS=tuple(call.cuts), RETAINED=retained, FILTERED=self.filtered, SUMS=self.sums, DRAWS=draws, UNIT=work.unit,
            SLICE=work.tile.ids, num_warps=work.tile.warps)

    def correct(self, draft_log_q: Tensor, corrected: Tensor) -> None:
        """h by rejection, and the draw that follows it."""
        work, call = self.work, self.work.call
        correct_rows[work.programs(work.slices)](
            *work.logits, call.finish_reason, call.length, call.draft, call.draft_len, self.seed, draft_log_q,
            self.row_key, self.row_kept, self.row_sum, self.slice_key, self.slice_sum, work.verdict, corrected,
            call.verifier_rows, work.width, work.places, work.slices, work.temperature,
            FILTERED=self.filtered, UNIT=work.unit, ROWS=min(32, tiles.padded(call.verifier_rows, 1)), SLICE=work.tile.ids,
            num_warps=work.tile.warps)
