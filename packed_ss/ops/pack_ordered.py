"""Plain-torch pack of the ordered layout: decode state to the rows and the tail mask of the next call."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .checks_ordered import check_pack_ordered
from .pack import table_range


def pack_ordered(
    tokens: Tensor,
    cache_len: Tensor,
    order: Tensor,
    draft: Tensor,
    waiting: Tensor,
    mask_token_id: int,
    spare_slot: int,
    waiting_rows: int,
    window: int,
    drafts: bool,
    verifies: bool,
    cuts: list[int],
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    tail_mask: Tensor,
    consulted: Tensor,
) -> None:
    """Writes ids, positions and slots [N, R] and tail_mask [N, R, ceil(R / 32)] of a call (`packed_ss.layouts.ordered`).

    A row that stands for nothing is a MASK at position 0, writes to ``spare_slot`` and sees the cache alone.  consulted [N, 2]
    receives 0 and min(kappa + 1, u), the logits rows that verification may ask for.
    """
    check_pack_ordered(
        tokens,
        cache_len,
        order,
        draft,
        waiting,
        mask_token_id,
        spare_slot,
        waiting_rows,
        window,
        drafts,
        verifies,
        cuts,
        ids,
        positions,
        slots,
        tail_mask,
        consulted,
    )
    device, rows = ids.device, ids.shape[1]
    due, place = waiting[:, :waiting_rows], order[:, :window]
    p = (due >= 0).sum(1, keepdim=True)
    drafted = (draft[:, :window] >= 0) & (place >= 0)
    regions = drafts + verifies + len(cuts)
    where = torch.cat((due, place.repeat(1, regions)), 1)
    known = torch.where(due >= 0, tokens.gather(1, due.clamp(min=0).long()), mask_token_id)
    shown = torch.where(drafted, draft[:, :window], mask_token_id) if drafts else place[:, :0]
    masks = torch.full((ids.shape[0], window * (verifies + len(cuts))), mask_token_id, dtype=torch.int32, device=device)
    ids.copy_(torch.cat((known, shown, masks), 1))
    positions.copy_(where.clamp(min=0))
    row = table_range(rows, device)
    tail = torch.where(row < waiting_rows, row, row - waiting_rows + p)  # the tail slot of each row that is there
    slots.copy_(torch.where(where >= 0, cache_len.unsqueeze(1) + tail, spare_slot))

    rank = table_range(window, device)
    earlier = [rank] * (drafts + verifies) + [torch.full_like(rank, cut) for cut in cuts]
    before = torch.cat([torch.zeros_like(row[:waiting_rows]), *earlier])  # how many ranks of O a row sees
    slot = table_range(32 * tail_mask.shape[2], device)
    token = pad(drafted, (waiting_rows, slot.shape[0] - waiting_rows - window)) if drafts else torch.zeros_like(slot).bool()[None]
    token = _shifted(token.expand(ids.shape[0], -1), waiting_rows - p)
    seen = token.unsqueeze(1) & (slot[None, None] - p.unsqueeze(2) < before[None, :, None])
    causal = torch.where(row < waiting_rows, row + 1, waiting_rows)
    seen = seen | (slot < torch.minimum(causal, p).unsqueeze(2)) | (slot == tail.unsqueeze(2))
    seen = seen & (where >= 0).unsqueeze(2)
    bit = torch.ones_like(slot) << slot % 32
    tail_mask.copy_(torch.where(seen, bit, 0).view(*seen.shape[:2], -1, 32).sum(-1))
    u = (place >= 0).sum(1)
    consulted.select(1, 0).fill_(0)
    consulted.select(1, 1).copy_(torch.minimum(drafted.long().cumprod(1).sum(1) + 1, u) if verifies else torch.zeros_like(u))


def _shifted(values: Tensor, by: Tensor) -> Tensor:
    """values [N, S] moved left by [N, 1] places, False coming in."""
    index = table_range(values.shape[1], values.device) + by
    return values.gather(1, index.clamp(max=values.shape[1] - 1).long()) & (index < values.shape[1])
