"""Plain-torch pack_block: state to the rows of the next call, block layout."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from ..layouts.block import tables
from ..operands import named
from ..state import BLOCK_STATE, RUNNING
from . import checks


def pack_block(
    state: Sequence[Tensor], mask_token_id: int, verifier_rows: int, block_size: int, cuts: Sequence[int], rows: Sequence[Tensor]
) -> None:
    """Write ids, positions, slots and predicts [N, R] of a call with ``verifier_rows`` rows and a region per cut.

    An entry of the draft without a token holds MASK.  Positions start at n - 1 (the last token), slots at ``cache_len``.
    """
    checks.check_pack_block(state, mask_token_id, verifier_rows, block_size, cuts, rows)
    write_rows(named(BLOCK_STATE, state), False, mask_token_id, verifier_rows, block_size, cuts, rows)


def write_rows(
    s: SimpleNamespace,
    pending: bool,
    mask_token_id: int,
    verifier_rows: int,
    block_size: int,
    cuts: Sequence[int],
    rows: Sequence[Tensor],
) -> None:
    """`pack_block`; with ``pending`` entries of the draft that are yet to be drawn count as there."""
    ids, positions, slots, predicts = rows
    table = tables(verifier_rows, block_size, tuple(cuts), s.length.device)
    last = (s.length - 1).unsqueeze(1)
    known = torch.where(s.draft >= 0, s.draft, mask_token_id)
    mask = torch.full_like(last, mask_token_id)
    torch.index_select(torch.cat((s.tokens.gather(1, last.long()), known, mask), dim=1), 1, table.source, out=ids)
    torch.add(last, table.offset, out=positions)
    torch.add(s.cache_len.unsqueeze(1), table.row, out=slots)
    there = s.draft >= 0
    kappa = (there | (s.retained >= 0) if pending else there).int().cumprod(1).sum(1, keepdim=True)
    asked = (table.needs <= kappa) & (s.finish_reason == RUNNING).unsqueeze(1)
    predicts.copy_(torch.where(asked, last + table.predicted, -1))


_ranges: dict[tuple[int, torch.device], Tensor] = {}


def table_range(size: int, device: torch.device) -> Tensor:
    """0 ... size-1 as int32 on a device, kept: these are asked for in every call."""
    key = (size, device)
    if key not in _ranges:
        _ranges[key] = torch.arange(size, dtype=torch.int32, device=device)
    return _ranges[key]
