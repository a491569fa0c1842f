"""Plain-torch row operators of the ordered layout: logits to tokens, -1 where a row has no finite maximum.

``rows`` [N, 2] int32 names rows ``first ... first + count - 1`` of each sequence, the j-th of which predicts the token of
``positions`` [N, W] int32, j < W; nothing is drawn for the others.  Nothing here reads the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..sampling import Stream, gumbel, process, residual
from .checks_ordered import check_argmax_rows, check_draw_rows, check_verify_rows
from .pack import table_range


def argmax_rows(logits: Tensor, probability: bool) -> tuple[Tensor, Tensor]:
    """The lowest id of the largest logit of each row, and with ``probability`` its softmax probability, else nothing.

    logits [N, R, V].  Returns ids [N, R] int32 and probability [N, R] ([N, 0] without), float32 or better; of a row without a
    finite maximum they are -1 and 0.
    """
    check_argmax_rows(logits, probability)
    best, ids = logits.max(-1)
    finite = best.isfinite()
    ids = torch.where(finite, ids, -1).int()
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if not probability:
        return ids, logits.new_empty((logits.shape[0], 0), dtype=dtype)
    total = (logits.to(dtype) - best.unsqueeze(-1).to(dtype)).exp_().sum(-1)
    return ids, torch.where(finite, total.reciprocal(), 0)


def draw_rows(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    seed: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    stream: int,
    ids: Tensor,
    log_q: Tensor | None,
) -> None:
    """Draws argmax(log p + G) of rows, with the noise of ``stream`` at their positions, into ids [N, W] int32.

    log_q [N, W, V], float32 or better, receives the log of the processed distribution of each row drawn from; None stores none.
    """
    check_draw_rows(logits, rows, positions, seed, temperature, top_k, top_p, stream, ids, log_q)
    chosen, wanted = _rows_of(logits, rows, ids.shape[1])
    scores = process(chosen, temperature, top_k, top_p)
    if log_q is not None:
        scores = scores.log_softmax(-1)
        log_q.copy_(torch.where(wanted.unsqueeze(-1), scores, log_q))
    drawn = scores + gumbel(seed, positions.clamp(min=0), Stream(stream), logits.shape[-1])
    best, token = drawn.max(-1)
    ids.copy_(torch.where(wanted & best.isfinite(), token, -1))


def verify_rows(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    seed: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    draft: Tensor,
    draft_log_q: Tensor,
) -> tuple[Tensor, Tensor]:
    """Algorithm 2, lines 5-8: accepts drafts in turn with probability min(1, p/Q), and draws the first other token.

    draft [N, W] int32: the row's draft token, or -1; draft_log_q [N, W, V]: log Q.  Returns ids and accepted [N, W] int32: h
    accepted drafts, then a draw from [p - Q]+ (from p where there is no draft), then -1; accepted is 1 for the drafts, else 0.
    """
    check_verify_rows(logits, rows, positions, seed, temperature, top_k, top_p, draft, draft_log_q)
    width, vocab = draft.shape[1], logits.shape[-1]
    chosen, wanted = _rows_of(logits, rows, width)
    log_p = process(chosen, temperature, top_k, top_p).log_softmax(-1)
    finite, drafted = ~log_p[..., 0].isnan(), wanted & (draft >= 0)
    token = draft.clamp(min=0).long().unsqueeze(-1)
    ratio = (log_p.gather(-1, token) - draft_log_q.gather(-1, token)).squeeze(-1)
    place = positions.clamp(min=0)
    u = torch.ops.packed_ss.uniform_noise(seed, place, int(Stream.ACCEPT), 1).squeeze(-1)
    accepted = (drafted & finite & (u.log() < ratio)).int().cumprod(1)
    h = accepted.sum(1, keepdim=True)
    here = (table_range(width, draft.device) == h) & wanted  # the row after the accepted drafts, where it is looked at
    at = h.clamp(max=width - 1)
    row = at.unsqueeze(-1).expand(-1, 1, vocab)
    log_q = torch.where(drafted.gather(1, at).unsqueeze(-1), draft_log_q.gather(1, row), -torch.inf)
    noise = gumbel(seed, place.gather(1, at), Stream.TARGET, vocab)
    correction = (residual(log_p.gather(1, row), log_q) + noise).argmax(-1).int()
    ids = torch.where(accepted > 0, draft, torch.where(here & finite, correction, -1))
    return ids, accepted.int()


def _rows_of(logits: Tensor, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Logits [N, W, V] of the rows that ``rows`` names, others in their place where there are fewer, and which are meant."""
    offset = table_range(width, rows.device)
    wanted = offset < rows[:, 1:]
    index = (rows[:, :1] + offset).clamp(max=logits.shape[1] - 1).long()
    return logits.gather(1, index.unsqueeze(-1).expand(-1, -1, logits.shape[-1])), wanted
