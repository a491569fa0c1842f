"""Plain-torch pack: decode state to the rows of the next call, block layout."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts.block import tables
from .checks import check_pack_block


def pack_block(*arguments) -> None:
    """`write_rows`, for arguments that do fit together; raises ValueError for others."""
    check_pack_block(*arguments)
    write_rows(*arguments)


def write_rows(
    tokens: Tensor,
    length: Tensor,
    cache_len: Tensor,
    draft: Tensor,
    draft_len: Tensor,
    mask_token_id: int,
    verifier_rows: int,
    block_size: int,
    cuts: list[int],
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
) -> None:
    """Writes ids, positions and slots [N, R] of a call with ``verifier_rows`` rows and a region per cut.

    A draft slot without a token holds MASK.  Positions start at n - 1 (the last token), slots at ``cache_len``.
    """
    table = tables(verifier_rows, block_size, tuple(cuts), length.device)
    last = (length - 1).unsqueeze(1)
    present = table_range(block_size - 1, length.device) < draft_len.unsqueeze(1)
    open_ = torch.full_like(last, mask_token_id)
    known = torch.cat((tokens.gather(1, last.long()), torch.where(present, draft, mask_token_id), open_), dim=1)
    torch.index_select(known, 1, table.source, out=ids)
    torch.add(last, table.offset, out=positions)
    torch.add(cache_len.unsqueeze(1), table.row, out=slots)


_ranges: dict[tuple[int, torch.device], Tensor] = {}


def table_range(size: int, device: torch.device) -> Tensor:
    """0 ... size-1 as int32 on a device, kept: these are asked for in every call."""
    key = (size, device)
    if key not in _ranges:
        _ranges[key] = torch.arange(size, dtype=torch.int32, device=device)
    return _ranges[key]
