"""Plain-torch pack_ordered: state to the rows and the tail mask of the next call, ordered layout."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..operands import named
from ..ordered_state import ORDERED_STATE
from ..state import RUNNING
from . import checks
from .pack import table_range


def pack_ordered(state: Sequence[Tensor], *arguments) -> None:
    """Write ids, positions, slots and predicts [N, R] and tail_mask [N, R, ceil(R / 32)] of a call (`packed_ss.layouts.ordered`).

    A row that stands for nothing is a MASK at position 0, writes to ``spare_slot`` and sees the cache alone.
    """
    checks.check_pack_ordered(state, *arguments)
    write_rows(named(ORDERED_STATE, state), False, *arguments)


def write_rows(
    s: SimpleNamespace,
    pending: bool,
    mask_token_id: int,
    spare_slot: int,
    waiting_rows: int,
    window: int,
    drafts: bool,
    verifies: bool,
    cuts: Sequence[int],
    rows: Sequence[Tensor],
) -> None:
    """`pack_ordered`; with ``pending`` entries of the draft that are yet to be drawn count as there."""
    ids, positions, slots, predicts, tail_mask = rows
    device, count = ids.device, ids.shape[1]
    due, order, draft = s.waiting[:, :waiting_rows], s.order[:, :window], s.draft[:, :window]
    p = (due >= 0).sum(1, keepdim=True)
    there = (draft >= 0) | (s.retained[:, :window] >= 0) if pending else draft >= 0
    drafted = there & (order >= 0)
    regions = drafts + verifies + len(cuts)
    position = torch.cat((due, order.repeat(1, regions)), 1)  # what each row stands for, -1 for nothing
    known = torch.where(due >= 0, s.tokens.gather(1, due.clamp(min=0).long()), mask_token_id)
    shown = torch.where((draft >= 0) & (order >= 0), draft, mask_token_id) if drafts else order[:, :0]
    masks = torch.full((ids.shape[0], window * (verifies + len(cuts))), mask_token_id, dtype=torch.int32, device=device)
    ids.copy_(torch.cat((known, shown, masks), 1))
    positions.copy_(position.clamp(min=0))
    row = table_range(count, device)
    tail = torch.where(row < waiting_rows, row, row - waiting_rows + p)  # the tail slot of each row that is there
    slots.copy_(torch.where(position >= 0, s.cache_len.unsqueeze(1) + tail, spare_slot))

    rank = table_range(window, device)
    earlier = [rank] * (drafts + verifies) + [torch.full_like(rank, cut) for cut in cuts]
    before = torch.cat([torch.zeros_like(row[:waiting_rows]), *earlier])  # how many ranks of O a row sees
    slot = table_range(32 * tail_mask.shape[2], device)
    token = pad(drafted, (waiting_rows, slot.shape[0] - waiting_rows - window)) if drafts else torch.zeros_like(slot).bool()[None]
    token = _shifted(token.expand(ids.shape[0], -1), waiting_rows - p)
    seen = token.unsqueeze(1) & (slot[None, None] - p.unsqueeze(2) < before[None, :, None])
    causal = torch.where(row < waiting_rows, row + 1, waiting_rows)
    seen = seen | (slot < torch.minimum(causal, p).unsqueeze(2)) | (slot == tail.unsqueeze(2))
    seen = seen & (position >= 0).unsqueeze(2)
    bit = torch.ones_like(slot) << slot % 32
    tail_mask.copy_(torch.where(seen, bit, 0).view(*seen.shape[:2], tail_mask.shape[2], 32).sum(-1))

    kappa = drafted.int().cumprod(1).sum(1, keepdim=True)
    none = torch.full_like(row[: waiting_rows + drafts * window], window + 1)  # more draft entries than there are
    # A proposal at a rank that a verified call resolves has no use: one behind the cut at the least.
    proposed = [torch.where(rank >= cut + verifies, cut, window + 1) for cut in cuts]
    needs = torch.cat([none, *([rank] if verifies else []), *proposed])
    asked = (needs <= kappa) & (position >= 0) & (s.finish_reason == RUNNING).unsqueeze(1)
    predicts.copy_(torch.where(asked, position, -1))


def _shifted(values: Tensor, by: Tensor) -> Tensor:
    """values [N, S] moved left by [N, 1] columns, False coming in."""
    index = table_range(values.shape[1], values.device) + by
    return values.gather(1, index.clamp(max=values.shape[1] - 1).long()) & (index < values.shape[1])
