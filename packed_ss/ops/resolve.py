"""Plain-torch resolves: logits of one call and the state in, the next state out (design: accept, truncate, append, retain).

The three verification modes differ in how candidates and drafts are chosen; what follows, `commit` and `retain`, is
shared.  Nothing here reads the device: every shape is known beforehand and a finished sequence's update is a no-op.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..layouts.block import tables
from ..sampling import Stream, gumbel, process, residual
from . import checks
from .pack import table_range, write_rows

RUNNING, STOP, LENGTH, ERROR = range(4)


class _Call(NamedTuple):
    """The state tensors of one resolve and the shape of its call (`packed_ss.ops.schema`)."""

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
    cuts: list[int]
    shift: int
    mask_token_id: int
    next_verifier_rows: int
    next_cuts: list[int]
    next_ids: Tensor | None
    next_positions: Tensor | None
    next_slots: Tensor | None


_CALL = len(_Call._fields)


def resolve_greedy(logits: Tensor, *state) -> None:
    """Algorithm 1, lines 6-10: accept while the draft is the argmax, append the argmax, retain the suffix of Z."""
    checks.check_resolve_greedy(logits, *state)
    best, ids = logits.max(-1)
    _match_and_advance(_Call(*state), best, ids.int())


def resolve_argmax(best: Tensor, ids: Tensor, *state) -> None:
    """`resolve_greedy` from each row's argmax ids [N, R] int32 and its logit best [N, R], as `linear_argmax` gives them."""
    checks.check_resolve_argmax(best, ids, *state)
    _match_and_advance(_Call(*state), best, ids)


def _match_and_advance(call: _Call, best: Tensor, ids: Tensor) -> None:
    v = call.verifier_rows
    h, advance = None, None
    if v:
        h, advance = _match(call, ids[:, :v], best[:, :v].isfinite())
        advance = commit(call, ids[:, :v], h, advance)
    if call.cuts:
        rows, count = retained_rows(call, h, advance)
        retain(call, ids.gather(1, rows), count)
    finish(call)


def resolve_coupled(logits: Tensor, *arguments) -> None:
    """Greedy on perturbed scores: target and draft are argmax(log p + G) and argmax(log q + G) with the same noise."""
    checks.check_resolve_coupled(logits, *arguments)
    _draw_and_match(Stream.TARGET, logits, *arguments)


def resolve_match(logits: Tensor, *arguments) -> None:
    """`resolve_coupled` with a draft drawn by noise of its own: accepted where two independent draws agree.

    The token is the target's own draw either way, so that texts are coupled's at the same seed; a draft is accepted with
    probability sum p q instead of about sum min(p, q).
    """
    checks.check_resolve_match(logits, *arguments)
    _draw_and_match(Stream.DRAFT, logits, *arguments)


def _draw_and_match(draft_stream: Stream, logits: Tensor, *arguments) -> None:
    """The target draws from stream TARGET and the next draft from ``draft_stream``; drafts equal to the draws stand."""
    call, (seed, temperature, top_k, top_p) = _Call(*arguments[:_CALL]), arguments[_CALL:]
    v, vocab = call.verifier_rows, logits.shape[-1]
    h, advance = None, None
    if v:
        place = call.length.unsqueeze(1) + table_range(v, call.length.device)
        scores = process(logits[:, :v], temperature, top_k, top_p) + gumbel(seed, place, Stream.TARGET, vocab)
        best, ids = scores.max(-1)
        ids = ids.int()
        h, advance = _match(call, ids, best.isfinite())
        advance = commit(call, ids, h, advance)
    if call.cuts:
        rows, count = retained_rows(call, h, advance)
        place = call.length.unsqueeze(1) + table_range(call.block_size - 1, call.length.device)
        scores = process(_rows_of(logits, rows), temperature, top_k, top_p) + gumbel(seed, place, draft_stream, vocab)
        retain(call, scores.argmax(-1).int(), count)
    finish(call)


def resolve_rejection(logits: Tensor, *arguments) -> None:
    """Algorithm 2, lines 5-13: accept with probability min(1, p/Q), correct from [p - Q]+, draw the retained draft from q.

    ``draft_log_q`` [N, W, V] holds log Q of the draft being verified and receives that of the next.
    """
    checks.check_resolve_rejection(logits, *arguments)
    call, (seed, temperature, top_k, top_p, draft_log_q) = _Call(*arguments[:_CALL]), arguments[_CALL:]
    v, vocab, n, device = call.verifier_rows, logits.shape[-1], call.length, call.length.device
    h, advance = None, None
    if v:
        log_p = process(logits[:, :v], temperature, top_k, top_p).log_softmax(-1)
        finite = ~log_p[..., 0].isnan()
        draft, width = call.draft[:, : v - 1], v - 1
        place = n.unsqueeze(1) + table_range(v, device)
        count = call.draft_len.clamp(max=width)
        chosen = draft.long().unsqueeze(-1)
        ratio = (log_p[:, :width].gather(-1, chosen) - draft_log_q[:, :width].gather(-1, chosen)).squeeze(-1)
        u = torch.ops.packed_ss.uniform_noise(seed, place[:, :width], int(Stream.ACCEPT), 1).squeeze(-1)
        accepted = (u.log() < ratio) & (table_range(width, device) < count.unsqueeze(1))
        h = accepted.long().cumprod(1).sum(1)
        at = h[:, None, None].expand(-1, 1, vocab)
        p_row = log_p.gather(1, at).squeeze(1)
        q_row = draft_log_q.gather(1, at.clamp(max=draft_log_q.shape[1] - 1)).squeeze(1)
        q_row = torch.where((h < count).unsqueeze(1), q_row, -torch.inf)
        noise = gumbel(seed, (n + h).int().unsqueeze(1), Stream.TARGET, vocab).squeeze(1)
        correction = (residual(p_row, q_row) + noise).argmax(-1).int()
        candidates = torch.where(
            table_range(v, device) < h.unsqueeze(1), torch.nn.functional.pad(draft, (0, 1)), correction.unsqueeze(1)
        )
        advance = commit(call, candidates, h, h + finite.gather(1, h.unsqueeze(1)).squeeze(1))
    if call.cuts:
        rows, count = retained_rows(call, h, advance)
        log_q = process(_rows_of(logits, rows), temperature, top_k, top_p).log_softmax(-1)
        place = n.unsqueeze(1) + table_range(call.block_size - 1, device)
        drawn = (log_q + gumbel(seed, place, Stream.DRAFT, vocab)).argmax(-1).int()
        usable = (~log_q[..., 0].isnan()).long().cumprod(1).sum(1)
        draft_log_q.copy_(log_q)
        retain(call, drawn, torch.minimum(count, usable))
    finish(call)


def _match(call: _Call, target: Tensor, finite: Tensor) -> tuple[Tensor, Tensor]:
    """h, the leading drafts equal to the target's tokens [N, v], and A = h + 1 (h where row h has no argmax)."""
    width = target.shape[1] - 1
    present = table_range(width, target.device) < call.draft_len.unsqueeze(1)
    same = (call.draft[:, :width] == target[:, :width]) & present & finite[:, :width]
    h = same.long().cumprod(1).sum(1)
    return h, h + finite.gather(1, h.unsqueeze(1)).squeeze(1)


def commit(call: _Call, candidates: Tensor, h: Tensor, accepted: Tensor) -> Tensor:
    """Appends a = min(A, tokens left to L, first stop) of the candidates (Algorithm 1, lines 7-9); returns a, int64 [N].

    candidates [N, v] int32: tokens for positions n ... n+v-1, of which the first ``accepted`` [N] stand.  Advances
    tokens, length, cache_len, nfe, advances and finish_reason; a sequence that has finished stays as it is.
    """
    v, device = candidates.shape[1], candidates.device
    running = call.finish_reason == RUNNING
    place = call.length.unsqueeze(1) + table_range(v, device)
    call.tokens.scatter_(1, place.long(), candidates)
    room = (call.limit - call.length).long()
    most = torch.minimum(accepted, room)
    if call.stops.shape[0]:
        first = _first_stop(call, candidates, place)
        advance = torch.minimum(most, first)
        stopped = first <= most
    else:
        advance, stopped = most, torch.zeros_like(running)
    advance = torch.where(running, advance, 0)
    call.advances.scatter_(1, call.nfe.long().unsqueeze(1), advance.int().unsqueeze(1))
    reason = torch.where(accepted == h, ERROR, RUNNING)
    reason = torch.where(advance == room, LENGTH, reason)
    reason = torch.where(stopped, STOP, reason)
    call.finish_reason.copy_(torch.where(running, reason, call.finish_reason))
    call.length.add_(advance)
    call.cache_len.add_(advance)
    call.nfe.add_(running)
    return advance


def _first_stop(call: _Call, candidates: Tensor, place: Tensor) -> Tensor:
    """1 + the index of the first candidate that completes a stop (int64 [N]; v + 1 where none does).

    Stops reach back over earlier calls, but not into the prompt.
    """
    v, (count, longest) = candidates.shape[1], call.stops.shape
    if longest == 1:
        hit = (candidates.unsqueeze(2) == call.stops.view(1, 1, count)).any(-1)
    else:
        back = place.unsqueeze(2) + (table_range(longest, place.device) - (longest - 1))
        window = call.tokens.gather(1, back.clamp(min=0).long().view(place.shape[0], -1)).view(back.shape)
        window = torch.where(back >= call.prompt_length[:, None, None], window, -2)
        hit = ((window.unsqueeze(2) == call.stops) | (call.stops < 0)).all(-1).any(-1)
    return torch.where(hit, table_range(v, place.device) + 1, v + 1).amin(1).long()


def retained_rows(call: _Call, h: Tensor | None, advance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which rows of the call propose the next draft, and how many of them count.

    The branch with the largest cut c <= h; in it the rows of the positions still open, W - 1 - (h - c) of them when
    a = h + 1 (design section 2).  Returns row indices [N, W] int64, clamped inside the branch, and the count [N].
    """
    b, v, width = call.block_size, call.verifier_rows, call.block_size - 1
    n, device = call.length.shape[0], call.length.device
    if h is None:  # a call that only proposes: every position after the last token is open
        rows = table_range(width, device).long() + 1
        return rows.expand(n, -1), torch.full((n,), width, dtype=torch.int32, device=device)
    if len(call.cuts) == 1:
        branch, cut = 0, call.cuts[0]
    else:
        cuts = tables(v, b, tuple(call.cuts), device).cuts
        branch = (cuts <= h.unsqueeze(1)).sum(1) - 1
        cut = cuts[branch]
    first = advance - cut + (1 - call.shift)
    inside = (first.unsqueeze(1) + table_range(width, device)).clamp(0, b - 1)
    start = v + branch * b
    rows = inside + (start if isinstance(start, int) else start.unsqueeze(1))
    return rows, (b - first).clamp(min=0)


def retain(call: _Call, drawn: Tensor, count: Tensor) -> None:
    """Stores the next draft: tokens ``drawn`` [N, W] of which the first ``count`` [N] are meant."""
    running = call.finish_reason == RUNNING
    call.draft.copy_(drawn)
    call.draft_len.copy_(torch.where(running, count, 0))
    if not call.verifier_rows:
        call.nfe.add_(running)


def finish(call: _Call) -> None:
    """No draft after a call without proposals; then the next call's rows, where their buffers are given."""
    if not call.cuts:
        call.draft_len.zero_()
    if call.next_ids is not None:
        write_rows(
            call.tokens,
            call.length,
            call.cache_len,
            call.draft,
            call.draft_len,
            call.mask_token_id,
            call.next_verifier_rows,
            call.block_size,
            call.next_cuts,
            call.next_ids,
            call.next_positions,
            call.next_slots,
        )


def _rows_of(logits: Tensor, rows: Tensor) -> Tensor:
    """logits [N, L, V] at row indices [N, W]."""
    return logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
