"""Plain-torch advance_block: a call's tokens and the state in, the next state out (Algorithm 1, lines 6-10).

Nothing here reads the device: every shape is known beforehand, and a finished sequence's update is a no-op.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from ..layouts.block import tables
from ..operands import named
from ..state import BLOCK_STATE, ERROR, LENGTH, RUNNING, STOP
from . import checks
from .pack import table_range, write_rows


def advance_block(
    ids: Tensor,
    accepted: Tensor | None,
    state: Sequence[Tensor],
    verifier_rows: int,
    block_size: int,
    cuts: Sequence[int],
    shift: int,
    mask_token_id: int,
    next_verifier_rows: int,
    next_cuts: Sequence[int],
    next_rows: Sequence[Tensor],
) -> None:
    """Accept, truncate, append, retain, and write the rows of the next call where they are given.

    ids [N, C] int32: the token of each row of the call, -1 where it has none; or of its verifier rows alone: then the next draft
    is drawn later, from the rows that ``retained`` names.  accepted [N, v] int32: whether each draft token is; None: where it is
    the verifier's token.
    """
    checks.check_advance_block(
        ids, accepted, state, verifier_rows, block_size, cuts, shift, mask_token_id, next_verifier_rows, next_cuts, next_rows
    )
    s, v, b, device = named(BLOCK_STATE, state), verifier_rows, block_size, ids.device
    running = s.finish_reason == RUNNING
    n, width = s.draft.shape
    h = torch.zeros(n, dtype=torch.int64, device=device)
    advance = h
    if v:
        most = min(v - 1, width)
        draft = s.draft[:, :most]
        same = draft == ids[:, :most] if accepted is None else accepted[:, :most] > 0
        h = (same & (draft >= 0)).long().cumprod(1).sum(1)
        token = ids.gather(1, h.unsqueeze(1))
        candidates = torch.where(table_range(v, device) < h.unsqueeze(1), torch.nn.functional.pad(draft, (0, v - most)), token)
        advance = _commit(s, running, candidates, h, h + (token.squeeze(1) >= 0))
    else:
        s.nfe.add_(running)
    goes_on = s.finish_reason == RUNNING
    if cuts:
        rows, open_ = _retained_rows(v, b, cuts, shift, h, advance, width)
        open_ = open_ & goes_on.unsqueeze(1)
        if ids.shape[1] < v + len(cuts) * b:  # drawn later
            s.draft.fill_(-1)
            s.retained.copy_(torch.where(open_, rows, -1))
        else:
            s.draft.copy_(torch.where(open_, ids.gather(1, rows), -1))
            s.retained.fill_(-1)
    else:
        s.draft.fill_(-1)
        s.retained.fill_(-1)
    s.order.copy_(torch.where(running.unsqueeze(1), s.length.unsqueeze(1) + table_range(width, device), s.order))
    if next_rows:
        write_rows(s, True, mask_token_id, next_verifier_rows, b, next_cuts, next_rows)


def _commit(s: SimpleNamespace, running: Tensor, candidates: Tensor, h: Tensor, accepted: Tensor) -> Tensor:
    """Append a = min(A, tokens left to L, first stop) of the candidates (Algorithm 1, lines 7-9); return a, int64 [N].

    candidates [N, v] int32: tokens for positions n ... n+v-1, of which the first ``accepted`` [N] stand.
    """
    v, device = candidates.shape[1], candidates.device
    positions = s.length.unsqueeze(1) + table_range(v, device)
    room = (s.limit - s.length).clamp(min=0).long()
    most = torch.minimum(accepted, room)
    advance, stopped = most, torch.zeros_like(running)
    if s.stops.shape[1]:
        first = _first_stop(s, candidates, positions)
        advance, stopped = torch.minimum(most, first), first <= most
    advance = torch.where(running, advance, 0)
    appended = table_range(v, device) < advance.unsqueeze(1)
    s.tokens.scatter_(1, positions.long(), torch.where(appended, candidates, s.tokens.gather(1, positions.long())))
    call = s.nfe.long().unsqueeze(1).clamp(max=s.advances.shape[1] - 1)
    s.advances.scatter_(1, call, torch.where(running.unsqueeze(1), advance.int().unsqueeze(1), s.advances.gather(1, call)))
    reason = torch.where(accepted == h, ERROR, RUNNING)
    reason = torch.where(advance == room, LENGTH, reason)
    reason = torch.where(stopped, STOP, reason)
    s.finish_reason.copy_(torch.where(running, reason, s.finish_reason))
    s.length.add_(advance)
    s.cache_len.add_(advance)
    s.nfe.add_(running)
    return advance


def _first_stop(s: SimpleNamespace, candidates: Tensor, positions: Tensor) -> Tensor:
    """1 + the index of the first candidate that completes a stop (int64 [N]; v + 1 where none does).

    Stops reach back over earlier calls, but not into the prompt.
    """
    v, longest, device = candidates.shape[1], s.stops.shape[2], candidates.device
    back = positions.unsqueeze(2) + (table_range(longest, device) - (longest - 1))
    offset = (back - s.length[:, None, None]).clamp(0, v - 1).long()
    earlier = s.tokens.gather(1, back.clamp(0, s.tokens.shape[1] - 1).long().flatten(1)).view(back.shape)
    there = torch.where(back >= s.length[:, None, None], candidates.gather(1, offset.flatten(1)).view(back.shape), earlier)
    there = torch.where(back >= s.prompt_length[:, None, None], there, -2)
    stops = s.stops.unsqueeze(1)  # [N, 1, S, M]
    hit = ((there.unsqueeze(2) == stops) | (stops < 0)).all(-1).any(-1)
    return torch.where(hit, table_range(v, device) + 1, v + 1).amin(1).long()


def _retained_rows(
    v: int, b: int, cuts: Sequence[int], shift: int, h: Tensor, advance: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """Which rows of the call propose the next draft [N, W] int64, clamped inside the branch, and which of them count.

    The branch with the largest cut c <= h; in it the rows of the positions still open, W - 1 - (h - c) of them when
    a = h + 1.  A call that only proposes has h = a = 0: every position after the last token is open.
    """
    branch, cut = torch.zeros_like(h), torch.zeros_like(h)
    if len(cuts) > 1:
        of_cuts = tables(v, b, tuple(cuts), h.device).cuts
        branch = (of_cuts <= h.unsqueeze(1)).sum(1) - 1
        cut = of_cuts[branch]
    inside = (advance - cut + (1 - shift)).unsqueeze(1) + table_range(width, h.device)
    return inside.clamp(0, b - 1) + (v + branch * b).unsqueeze(1), inside < b
