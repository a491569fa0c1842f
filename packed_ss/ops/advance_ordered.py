"""Plain-torch advance operators of the ordered layout: a call's tokens and the state in, the next state out.

Algorithm 3, lines 9-15.  Nothing here reads the device: every shape is known beforehand, and a finished sequence's update is a
no-op.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from ..operands import named
from ..ordered_state import ORDERED_STATE
from ..state import ERROR, LENGTH, RUNNING, STOP
from . import checks
from .pack import table_range
from .pack_ordered import write_rows


class _Proposal(NamedTuple):
    """By rank of the window before a call, [N, W]: the draft tokens proposed there, -1 where there is none, and scores."""

    tokens: Tensor
    scores: Tensor | None


def advance_ordered(
    ids: Tensor,
    probability: Tensor | None,
    accepted: Tensor | None,
    state: Sequence[Tensor],
    waiting_rows: int,
    window: int,
    verifies: bool,
    cuts: Sequence[int],
    by_confidence: bool,
    *following,
) -> None:
    """Accept along the order, apply the stopping rule, retain the draft by position, and order the next window.

    ids [N, C] int32: the token of each row of M and R, -1 where it has none; or of M alone: then the next draft is drawn later,
    from the rows that ``retained`` names.  probability [N, C]: of these tokens, needed for the order of confidence alone.
    accepted [N, window]: whether each draft token is; None: where it is the verifier's.  ``following``: the next call's rows
    (`packed_ss.ops.schema`).
    """
    checks.check_advance_ordered(
        ids, probability, accepted, state, waiting_rows, window, verifies, cuts, by_confidence, *following
    )
    s = named(ORDERED_STATE, state)
    running = s.finish_reason == RUNNING
    _cache_waiting(s, running, waiting_rows)
    positions, rank = s.order[:, :window].clone(), table_range(window, ids.device)
    exists = positions >= 0
    u = exists.sum(1)
    h = None
    if verifies:
        drafted, target = s.draft[:, :window], ids[:, :window]
        same = target == drafted if accepted is None else accepted > 0
        h = (same & exists & (drafted >= 0)).long().cumprod(1).sum(1)
        at = h.clamp(max=window - 1).unsqueeze(1)
        token = target.gather(1, at).squeeze(1)
        corrects, fails = running & (h < u) & (token >= 0), running & (h < u) & (token < 0)
        position = positions.gather(1, at).squeeze(1)
        leads = rank < h.unsqueeze(1)
        taken = running.unsqueeze(1) & (leads | (corrects.unsqueeze(1) & (rank == h.unsqueeze(1))))
        _append_cached(s, positions, taken & leads)
        s.waiting.select(1, 0).copy_(torch.where(corrects, position, s.waiting[:, 0]))
        _commit(s, running, positions, torch.where(leads, drafted, token.unsqueeze(1)), taken, torch.where(fails, position, -1))
    else:
        _count(s, running, torch.zeros_like(s.nfe))
    rows, drawn_later = _branch_rows(ids.device, h, window, verifies, cuts), ids.shape[1] == window * verifies
    if verifies:
        _next_window(s, positions, _proposal(ids, probability, rows, window, bool(cuts), drawn_later), by_confidence)
    elif cuts and not drawn_later:
        s.draft[:, :window].copy_(torch.where(exists, ids, -1))
    elif cuts:
        s.draft[:, :window].fill_(-1)
    s.retained.fill_(-1)
    if cuts and drawn_later:
        a = torch.zeros_like(u) if h is None else torch.minimum(h + 1, u)
        entry = table_range(window, ids.device)
        still = _going(s).unsqueeze(1) & (entry < (u - a).unsqueeze(1))
        s.retained[:, :window].copy_(torch.where(still, rows[:, :1] + a.unsqueeze(1) + entry, -1))
    _write_next(s, *following)


def advance_native(ids: Tensor, probability: Tensor, state: Sequence[Tensor], window: int, threshold: float, *following) -> None:
    """SetDLM's own decoder: accept every token of the window of probability ``threshold`` or more, at least the likeliest.

    ids and probability [N, window], by rank of the window in textual order.  Ties for the likeliest go to the leftmost.
    """
    checks.check_advance_native(ids, probability, state, window, threshold, *following)
    s = named(ORDERED_STATE, state)
    running = s.finish_reason == RUNNING
    _cache_waiting(s, running, s.waiting.shape[1])
    positions = s.order[:, :window].clone()
    exists = (positions >= 0) & running.unsqueeze(1)
    usable = exists & (ids >= 0)
    likeliest = torch.where(usable, probability, -1).argmax(1, keepdim=True)
    taken = usable & ((probability >= threshold) | (table_range(window, ids.device) == likeliest))
    fails = torch.where(exists & (ids < 0), positions, s.tokens.shape[1]).amin(1)
    s.waiting[:, :window].copy_(torch.where(running.unsqueeze(1), _packed(positions, taken), s.waiting[:, :window]))
    _commit(s, running, positions, ids, taken, torch.where(fails < s.tokens.shape[1], fails, -1))
    _next_window(s, positions, None, False)
    s.retained.fill_(-1)
    _write_next(s, *following)


def compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, first_moved: Tensor, moved_from: Tensor) -> None:
    """Move cached pairs as an advance says: slot s takes slot moved_from[s] for first_moved <= s < cache_len.

    keys, values [layers, N or more, C, Hkv, D].  Slots to take from ascend and lie to the right.
    """
    checks.check_compact_cache(keys, values, cache_len, first_moved, moved_from)
    n, slots = cache_len.shape[0], min(keys.shape[2], moved_from.shape[1])
    slot = table_range(slots, keys.device)
    moves = (slot >= first_moved.unsqueeze(1)) & (slot < cache_len.unsqueeze(1))
    index = torch.where(moves, moved_from[:, :slots], slot).long()[None, :, :, None, None]
    for cache in (keys, values):
        part = cache[:, :n, :slots]
        part.copy_(part.gather(2, index.expand_as(part)))


def _write_next(s: SimpleNamespace, *following) -> None:
    if following[-1]:
        write_rows(s, True, *following)


def _going(s: SimpleNamespace) -> Tensor:
    return s.finish_reason == RUNNING


def _cache_waiting(s: SimpleNamespace, running: Tensor, waiting_rows: int) -> None:
    """The rows of N were part of the call: their pairs are in the cache now."""
    if waiting_rows:
        _append_cached(s, s.waiting, (s.waiting >= 0) & running.unsqueeze(1))
        s.waiting.copy_(torch.where(running.unsqueeze(1), -1, s.waiting))


def _append_cached(s: SimpleNamespace, positions: Tensor, mask: Tensor) -> None:
    """Appends the masked positions, which lead their rows."""
    spare = s.cached.shape[1] - 1
    slot = s.cache_len.unsqueeze(1) + table_range(positions.shape[1], positions.device)
    s.cached.scatter_(1, torch.where(mask, slot, spare).long(), positions)
    s.cache_len.add_(mask.sum(1))


def _packed(values: Tensor, mask: Tensor) -> Tensor:
    """The masked values [N, W] moved to the front of their rows, in order, and -1."""
    width = values.shape[1]
    out = torch.full((values.shape[0], width + 1), -1, dtype=values.dtype, device=values.device)
    out.scatter_(1, torch.where(mask, mask.cumsum(1) - 1, width), values)
    return out[:, :width]


def _count(s: SimpleNamespace, running: Tensor, advance: Tensor) -> None:
    s.advances.scatter_(1, s.nfe.long().unsqueeze(1), torch.where(running, advance, 0).int().unsqueeze(1))
    s.nfe.add_(running)
    s.first_moved.copy_(s.cache_len)


def _commit(s: SimpleNamespace, running: Tensor, positions: Tensor, tokens: Tensor, taken: Tensor, failed: Tensor) -> None:
    """Lines 11 to 13: stores the taken tokens [N, w], moves E to the earliest end, drops what lies beyond, counts the call.

    ``failed`` [N]: the position whose consulted row has no finite maximum, or -1.
    """
    spare, device = s.tokens.shape[1] - 1, s.tokens.device
    s.tokens.scatter_(1, torch.where(taken, positions, spare).long(), tokens.int())
    s.tokens.select(1, spare).fill_(-1)
    reach = s.order.shape[1]
    if s.stops.shape[1]:
        _shorten(s, running, reach)
    beyond = table_range(spare + 1, device) >= s.end.unsqueeze(1)
    s.tokens.copy_(torch.where(beyond, -1, s.tokens))
    _count(s, running, (taken & (positions < s.end.unsqueeze(1))).sum(1))
    _drop(s)
    s.waiting.copy_(_packed(s.waiting, (s.waiting >= 0) & (s.waiting < s.end.unsqueeze(1))))
    position = s.length.unsqueeze(1) + table_range(reach + 1, device)
    closed = (s.tokens.gather(1, position.clamp(max=spare).long()) >= 0) & (position < s.end.unsqueeze(1))
    s.length.add_(torch.where(running, closed.long().cumprod(1).sum(1), 0))
    reason = torch.where(s.length >= s.end, torch.where(s.stopped > 0, STOP, LENGTH), RUNNING)
    reason = torch.where((failed >= 0) & (failed < s.end), ERROR, reason)
    s.finish_reason.copy_(torch.where(running, reason, s.finish_reason))


def _shorten(s: SimpleNamespace, running: Tensor, reach: int) -> None:
    """Line 11: E becomes the earliest last position of an end marker whose tokens are all accepted."""
    longest, device = s.stops.shape[2], s.tokens.device
    last = s.length.unsqueeze(1) + table_range(reach + longest - 1, device)
    at = last.unsqueeze(2) + (table_range(longest, device) - (longest - 1))
    inside = (at >= s.prompt_length[:, None, None]) & (at < s.end[:, None, None])
    there = s.tokens.gather(1, at.clamp(0, s.tokens.shape[1] - 1).long().flatten(1)).view(at.shape)
    there = torch.where(inside, there, -2)
    stops = s.stops.unsqueeze(1)  # [N, 1, S, M]
    ends = ((there.unsqueeze(2) == stops) | (stops < 0)).all(-1).any(-1) & (last < s.end.unsqueeze(1))
    found = torch.where(ends & running.unsqueeze(1), last + 1, s.tokens.shape[1]).amin(1)
    s.stopped.copy_(torch.where(found <= s.end, 1, s.stopped))
    s.end.copy_(torch.minimum(s.end, found))


def _drop(s: SimpleNamespace) -> None:
    """Takes cached pairs beyond E out of the order of slots (line 12)."""
    slot = table_range(s.cached.shape[1], s.cached.device)
    inside = slot < s.cache_len.unsqueeze(1)
    kept = inside & (s.cached < s.end.unsqueeze(1))
    s.first_moved.copy_(torch.where(kept | ~inside, s.cache_len.unsqueeze(1), slot).amin(1))
    source = _packed(slot.expand_as(s.cached), kept)
    s.cache_len.copy_(kept.sum(1))
    s.first_moved.clamp_(max=s.cache_len)
    s.moved_from.copy_(torch.where(source < 0, slot, source))
    s.cached.copy_(s.cached.gather(1, s.moved_from.long()))


def _branch_rows(device: torch.device, h: Tensor | None, window: int, verifies: bool, cuts: Sequence[int]) -> Tensor:
    """Rows [N or 1, window] of the branch of the largest cut c <= h."""
    rows = window * verifies + table_range(window, device)[None]
    if h is None or len(cuts) < 2:
        return rows
    branch = torch.stack([h >= cut for cut in cuts[1:]]).sum(0, dtype=torch.int32)
    return rows + window * branch.unsqueeze(1)


def _proposal(ids: Tensor, probability: Tensor | None, rows: Tensor, window: int, proposes: bool, drawn_later: bool) -> _Proposal:
    """What the call proposes: nothing where that is drawn later; a call that only verifies has scores alone (App. E.6)."""
    if not proposes or drawn_later:
        scores = None if proposes or probability is None else torch.where(ids >= 0, probability, -1)[:, :window]
        return _Proposal(torch.full((ids.shape[0], window), -1, dtype=ids.dtype, device=ids.device), scores)
    rows = rows.long().expand(ids.shape[0], -1)
    tokens = ids.gather(1, rows)
    return _Proposal(tokens, None if probability is None else torch.where(tokens >= 0, probability.gather(1, rows), -1))


def _next_window(s: SimpleNamespace, positions: Tensor, proposal: _Proposal | None, by_confidence: bool) -> None:
    """Lines 3-5 and 14-15: the next window, its order, and the draft tokens of positions that stay open."""
    width, device = s.order.shape[1], s.order.device
    position = s.length.unsqueeze(1) + table_range(width, device)
    at = position.clamp(max=s.tokens.shape[1] - 1).long()
    is_open = (position < s.end.unsqueeze(1)) & (s.tokens.gather(1, at) < 0) & _going(s).unsqueeze(1)
    window = _packed(position.int(), is_open)
    if proposal is None:
        s.order.copy_(window)
        return
    same = (window.unsqueeze(2) == positions.unsqueeze(1)) & (window >= 0).unsqueeze(2)  # [N, next rank, rank]
    known, rank = same.any(-1), same.long().argmax(-1)
    draft = torch.where(known, proposal.tokens.gather(1, rank), -1)
    if by_confidence:
        assert proposal.scores is not None
        score = torch.where(known, proposal.scores.gather(1, rank), -1)
        by_rank = torch.where(window >= 0, -score, 2).sort(dim=1, stable=True).indices
        window, draft = window.gather(1, by_rank), draft.gather(1, by_rank)
    s.order.copy_(window)
    s.draft.copy_(draft)
