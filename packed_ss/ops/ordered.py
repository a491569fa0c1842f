"""Plain-torch resolves of the ordered layout: a call's tokens and the state in, the next state out (Algorithm 3, lines 9-15).

Nothing here reads the device: every shape is known beforehand, and a finished sequence's update is a no-op.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import checks_ordered as checks
from .pack import table_range
from .resolve import ERROR, LENGTH, RUNNING, STOP


class State(NamedTuple):
    """The state tensors of one resolve (`packed_ss.ops.schema`)."""

    tokens: Tensor
    length: Tensor
    cache_len: Tensor
    finish_reason: Tensor
    nfe: Tensor
    advances: Tensor
    end: Tensor
    stopped: Tensor
    prompt_length: Tensor
    stops: Tensor
    order: Tensor
    draft: Tensor
    waiting: Tensor
    cached: Tensor
    source: Tensor
    moved: Tensor
    retained: Tensor


_STATE = len(State._fields)


class _Proposal(NamedTuple):
    """By rank of the window before a call, [N, W]: the draft tokens proposed there, -1 where there is none, and scores."""

    tokens: Tensor
    scores: Tensor | None


def resolve_ordered(ids: Tensor, probability: Tensor | None, accepted: Tensor | None, *arguments) -> None:
    """Accepts along the order, applies the stopping rule, retains the draft by position, and orders the next window.

    ids [N, R] int32: the token of each row of M and R, -1 where it has none; without columns for R the next draft is to be
    drawn from the rows that ``retained`` names, which leaves ``draft`` at -1 until then.  probability [N, R]: of these tokens,
    needed for the order of confidence alone.  accepted [N, W]: whether each draft token is; None: where it is the verifier's.
    """
    checks.check_resolve_ordered(ids, probability, accepted, *arguments)
    s, (waiting_rows, window, verifies, cuts, by_confidence) = State(*arguments[:_STATE]), arguments[_STATE:]
    running = s.finish_reason == RUNNING
    _cache_waiting(s, running, waiting_rows)
    positions, rank = s.order[:, :window].clone(), table_range(window, ids.device)
    exists = positions >= 0
    u = exists.sum(1)
    h = None
    if verifies:
        drafted, target = s.draft[:, :window], ids[:, :window]
        same = target == drafted if accepted is None else accepted[:, :window] > 0
        h = (same & exists & (drafted >= 0)).long().cumprod(1).sum(1)
        token = target.gather(1, h.clamp(max=window - 1).unsqueeze(1)).squeeze(1)
        corrects, fails = running & (h < u) & (token >= 0), running & (h < u) & (token < 0)
        place = positions.gather(1, h.clamp(max=window - 1).unsqueeze(1)).squeeze(1)
        taken = running.unsqueeze(1) & ((rank < h.unsqueeze(1)) | (corrects.unsqueeze(1) & (rank == h.unsqueeze(1))))
        _append_cached(s, positions, taken & (rank < h.unsqueeze(1)))
        s.waiting.select(1, 0).copy_(torch.where(corrects, place, s.waiting[:, 0]))
        tokens = torch.where(rank < h.unsqueeze(1), drafted, token.unsqueeze(1))
        _commit(s, running, positions, tokens, taken, torch.where(fails, place, -1))
    else:
        _count(s, running, torch.zeros_like(s.nfe))
    proposal, first = _proposal(ids, probability, window, verifies, cuts, h)
    a = torch.zeros_like(u) if h is None else torch.minimum(h + 1, u)
    s.retained.copy_(torch.stack((first + a, torch.where(_going(s), u - a, 0)), 1) if cuts else torch.zeros_like(s.retained))
    if verifies:
        _next_window(s, positions, proposal, by_confidence)
    elif cuts:
        s.draft[:, :window].copy_(torch.where(exists, proposal.tokens, -1))


def resolve_native(ids: Tensor, probability: Tensor, *arguments) -> None:
    """SetDLM's own decoder: accepts every token of the window of probability ``threshold`` or more, at least the likeliest.

    ids and probability [N, W], by rank of the window in textual order.  Ties for the likeliest go to the leftmost.
    """
    checks.check_resolve_native(ids, probability, *arguments)
    s, (window, threshold) = State(*arguments[:_STATE]), arguments[_STATE:]
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


def compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, source: Tensor, moved: Tensor) -> None:
    """Moves the cached pairs that a resolve has moved: slot s takes slot source[s] for moved <= s < cache_len.

    keys, values [layers, N or more, C, Hkv, D].  Sources ascend and lie to the right.
    """
    checks.check_compact_cache(keys, values, cache_len, source, moved)
    n, slots = cache_len.shape[0], min(keys.shape[2], source.shape[1])
    slot = table_range(slots, keys.device)
    moves = (slot >= moved.unsqueeze(1)) & (slot < cache_len.unsqueeze(1))
    index = torch.where(moves, source[:, :slots], slot).long()[None, :, :, None, None]
    for cache in (keys, values):
        part = cache[:, :n, :slots]
        part.copy_(part.gather(2, index.expand_as(part)))


def _going(s: State) -> Tensor:
    return s.finish_reason == RUNNING


def _cache_waiting(s: State, running: Tensor, waiting_rows: int) -> None:
    """The rows of N were part of the call: their pairs are in the cache now."""
    if waiting_rows:
        _append_cached(s, s.waiting, (s.waiting >= 0) & running.unsqueeze(1))
        s.waiting.copy_(torch.where(running.unsqueeze(1), -1, s.waiting))


def _append_cached(s: State, positions: Tensor, mask: Tensor) -> None:
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


def _count(s: State, running: Tensor, advance: Tensor) -> None:
    s.advances.scatter_(1, s.nfe.long().unsqueeze(1), torch.where(running, advance, 0).int().unsqueeze(1))
    s.nfe.add_(running)
    s.moved.copy_(s.cache_len)


def _commit(s: State, running: Tensor, positions: Tensor, tokens: Tensor, taken: Tensor, failed: Tensor) -> None:
    """Lines 11 to 13: stores the taken tokens [N, w], moves E to the earliest end, drops what lies beyond, counts the call.

    ``failed`` [N]: the position whose consulted row has no finite maximum, or -1.
    """
    spare, device = s.tokens.shape[1] - 1, s.tokens.device
    s.tokens.scatter_(1, torch.where(taken, positions, spare).long(), tokens.int())
    s.tokens.select(1, spare).fill_(-1)
    reach = s.order.shape[1]
    if s.stops.shape[0]:
        _shorten(s, running, reach)
    beyond = table_range(spare + 1, device) >= s.end.unsqueeze(1)
    s.tokens.copy_(torch.where(beyond, -1, s.tokens))
    _count(s, running, (taken & (positions < s.end.unsqueeze(1))).sum(1))
    _drop(s)
    s.waiting.copy_(_packed(s.waiting, (s.waiting >= 0) & (s.waiting < s.end.unsqueeze(1))))
    place = s.length.unsqueeze(1) + table_range(reach + 1, device)
    closed = (s.tokens.gather(1, place.clamp(max=spare).long()) >= 0) & (place < s.end.unsqueeze(1))
    s.length.add_(torch.where(running, closed.long().cumprod(1).sum(1), 0))
    reason = torch.where(s.length >= s.end, torch.where(s.stopped > 0, STOP, LENGTH), RUNNING)
    reason = torch.where((failed >= 0) & (failed < s.end), ERROR, reason)
    s.finish_reason.copy_(torch.where(running, reason, s.finish_reason))


def _shorten(s: State, running: Tensor, reach: int) -> None:
    """Line 11: E becomes the earliest last position of an end marker whose tokens are all accepted."""
    longest, device = s.stops.shape[1], s.tokens.device
    last = s.length.unsqueeze(1) + table_range(reach + longest - 1, device)
    at = last.unsqueeze(2) + (table_range(longest, device) - (longest - 1))
    inside = (at >= s.prompt_length[:, None, None]) & (at < s.end[:, None, None])
    there = s.tokens.gather(1, at.clamp(0, s.tokens.shape[1] - 1).long().flatten(1)).view(at.shape)
    there = torch.where(inside, there, -2)
    whole = ((there.unsqueeze(2) == s.stops) | (s.stops < 0)).all(-1).any(-1) & (last < s.end.unsqueeze(1))
    found = torch.where(whole & running.unsqueeze(1), last + 1, s.tokens.shape[1]).amin(1)
    s.stopped.copy_(torch.where(found <= s.end, 1, s.stopped))
    s.end.copy_(torch.minimum(s.end, found))


def _drop(s: State) -> None:
    """Takes cached pairs beyond E out of the order of slots (line 12)."""
    slot = table_range(s.cached.shape[1], s.cached.device)
    inside = slot < s.cache_len.unsqueeze(1)
    kept = inside & (s.cached < s.end.unsqueeze(1))
    s.moved.copy_(torch.where(kept | ~inside, s.cache_len.unsqueeze(1), slot).amin(1))
    source = _packed(slot.expand_as(s.cached), kept)
    s.cache_len.copy_(kept.sum(1))
    s.moved.clamp_(max=s.cache_len)
    s.source.copy_(torch.where(source < 0, slot, source))
    s.cached.copy_(s.cached.gather(1, s.source.long()))


def _proposal(
    ids: Tensor, probability: Tensor | None, window: int, verifies: bool, cuts: list[int], h: Tensor | None
) -> tuple[_Proposal, Tensor | int]:
    """What the call proposes after h matches, and the first row of the branch of the largest cut c <= h.

    Without cuts nothing; the scores are the verifier's then (App. E.6, linear).
    """
    first = window * verifies
    if not cuts:
        scores = None if probability is None else torch.where(ids >= 0, probability, -1)[:, :window]
        return _Proposal(torch.full_like(ids[:, :window], -1), scores), first
    if h is not None and len(cuts) > 1:
        branch = sum((h >= cut).long() for cut in cuts[1:])
        first = first + window * branch
    if ids.shape[1] == window * verifies:  # drawn later
        return _Proposal(torch.full((ids.shape[0], window), -1, dtype=ids.dtype, device=ids.device), None), first
    start = first.unsqueeze(1) if isinstance(first, Tensor) else first
    rows = (start + table_range(window, ids.device)).long().expand(ids.shape[0], -1)
    tokens = ids.gather(1, rows)
    scores = None if probability is None else torch.where(tokens >= 0, probability.gather(1, rows), -1)
    return _Proposal(tokens, scores), first


def _next_window(s: State, positions: Tensor, proposal: _Proposal | None, by_confidence: bool) -> None:
    """Lines 3-5 and 14-15: the next window, its order, and the draft tokens of positions that stay open."""
    width, device = s.order.shape[1], s.order.device
    place = s.length.unsqueeze(1) + table_range(width, device)
    at = place.clamp(max=s.tokens.shape[1] - 1).long()
    is_open = (place < s.end.unsqueeze(1)) & (s.tokens.gather(1, at) < 0) & _going(s).unsqueeze(1)
    window = _packed(place.int(), is_open)
    if proposal is None:
        s.order.copy_(window)
        return
    same = (window.unsqueeze(2) == positions.unsqueeze(1)) & (window >= 0).unsqueeze(2)  # [N, next rank, rank]
    known, rank = same.any(-1), same.long().argmax(-1)
    draft = torch.where(known, proposal.tokens.gather(1, rank), -1)
    if by_confidence:
        score = torch.where(known, proposal.scores.gather(1, rank), -1)
        by_rank = torch.where(window >= 0, -score, 2).sort(dim=1, stable=True).indices
        window, draft = window.gather(1, by_rank), draft.gather(1, by_rank)
    s.order.copy_(window)
    s.draft.copy_(draft)
