"""Plain-torch row operators: rows of logits to tokens, -1 where a row has no finite maximum.

An *entry* is a row to look at: ``rows`` [N, M] int32 names the row of each (None: entry j is row j), ``positions`` [N, M] the
position of the token that it predicts; nobody asks for an entry where one of them is negative.  Nothing here reads the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..sampling import GREEDY_BELOW, Stream, gumbel, process, residual
from . import checks
from .pack import table_range

_SCORES_AT_ONCE = 1 << 20


def linear_argmax(x: Tensor, weight: Tensor) -> Tensor:
    """Lowest id of the largest of the logits x weight^T of each row, int32 [N, R]; the logits are never whole.

    x [N, R, H]; weight [V, H].  Products are accumulated and compared in float32 or better: unlike logits of the weights' dtype
    they are not rounded.  -1 where a row has no finite maximum.
    """
    checks.check_linear_argmax(x, weight)
    n, rows, size = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    flat = x.reshape(-1, size).to(dtype)
    best = torch.full((n * rows,), -torch.inf, dtype=dtype, device=x.device)
    ids = torch.zeros(n * rows, dtype=torch.int64, device=x.device)
    step = max(1, _SCORES_AT_ONCE // max(1, n * rows))
    for start in range(0, weight.shape[0], step):
        top, at = (flat @ weight[start : start + step].to(dtype).T).max(-1)
        better = (top > best) | (top.isnan() & ~best.isnan())
        best, ids = torch.where(better, top, best), torch.where(better, at + start, ids)
    return torch.where(best.isfinite(), ids, -1).int().view(n, rows)


def argmax_rows(
    logits: Tensor, rows: Tensor | None, positions: Tensor | None, draft: Tensor | None, ids: Tensor, probability: Tensor | None
) -> None:
    """Write the lowest id of the largest logit of each entry's row to ids [N, M], and its softmax probability.

    logits [N, R, V]; probability [N, M], float32 or better, or None.  Entries behind the first whose token is not its draft
    token need not be looked at where ``draft`` [N, W] is given: what is written for them means nothing.
    """
    checks.check_argmax_rows(logits, rows, positions, draft, ids, probability)
    chosen, asked = _entries(logits, rows, positions, ids.shape[1])
    best, found = chosen.max(-1)
    usable = asked & best.isfinite()
    ids.copy_(torch.where(usable, found, -1))
    if probability is not None:
        total = (chosen.to(probability.dtype) - best.unsqueeze(-1).to(probability.dtype)).exp_().sum(-1)
        probability.copy_(torch.where(usable, total.reciprocal(), 0))


def draw_rows(
    logits: Tensor,
    rows: Tensor | None,
    positions: Tensor,
    draft: Tensor | None,
    seed: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    stream: int,
    ids: Tensor,
    log_q: Tensor | None,
    next_ids: Tensor | None,
    next_column: int,
) -> None:
    """Draw argmax(log p + G) of each entry's row, with the noise of ``stream`` at its position, into ids [N, M].

    log_q [N, M, V] receives the log of the processed distribution of each entry drawn from; None stores none.  A token drawn goes
    to column ``next_column`` + j of next_ids [N, R'] too, where that is given.  ``draft`` as in `argmax_rows`.
    """
    checks.check_draw_rows(
        logits, rows, positions, draft, seed, temperature, top_k, top_p, stream, ids, log_q, next_ids, next_column
    )
    chosen, asked = _entries(logits, rows, positions, ids.shape[1])
    scores = process(chosen, temperature, top_k, top_p)
    if log_q is not None:
        scores = scores.log_softmax(-1)
        log_q.copy_(torch.where(asked.unsqueeze(-1), scores, log_q))
    best, token = (scores + _noise(seed, temperature, positions, Stream(stream), logits.shape[-1])).max(-1)
    ids.copy_(torch.where(asked & best.isfinite(), token, -1))
    if next_ids is not None:
        target = next_ids[:, next_column : next_column + ids.shape[1]]
        target.copy_(torch.where(ids >= 0, ids, target))


def verify_rows(
    logits: Tensor,
    positions: Tensor,
    seed: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    draft: Tensor,
    draft_log_q: Tensor,
    ids: Tensor,
    accepted: Tensor,
) -> None:
    """Algorithm 2, lines 5-8: accept drafts in turn with probability min(1, p/Q), and draw the first other token.

    Entry j is row j of logits; draft [N, W] its draft token, or -1; draft_log_q [N, W, V] log Q.  Writes ids and accepted [N, M]:
    h accepted drafts, then a draw from [p - Q]+ (from p where there is no draft), then -1; accepted is 1 for the drafts, else 0.
    """
    checks.check_verify_rows(logits, positions, seed, temperature, top_k, top_p, draft, draft_log_q, ids, accepted)
    count, vocab = ids.shape[1], logits.shape[-1]
    chosen, asked = _entries(logits, None, positions, count)
    log_p = process(chosen, temperature, top_k, top_p).log_softmax(-1)
    missing = max(0, count - draft.shape[1])
    tokens = torch.nn.functional.pad(draft, (0, missing), value=-1)[:, :count]
    finite, drafted = ~log_p[..., 0].isnan(), asked & (tokens >= 0)
    token = tokens.clamp(min=0).long().unsqueeze(-1)
    entry = table_range(count, draft.device).clamp(max=draft.shape[1] - 1).long()
    log_q_of = draft_log_q.index_select(1, entry)
    ratio = (log_p.gather(-1, token) - log_q_of.gather(-1, token)).squeeze(-1)
    at_position = positions.clamp(min=0)
    u = torch.ops.packed_ss.uniform_noise(seed, at_position, int(Stream.ACCEPT), 1).squeeze(-1)
    accepts = (drafted & finite & (u.log() < ratio)).int().cumprod(1)
    h = accepts.sum(1, keepdim=True)
    here = (table_range(count, draft.device) == h) & asked  # the entry behind the accepted drafts, where it is asked for
    at = h.clamp(max=count - 1)
    row = at.unsqueeze(-1).expand(-1, 1, vocab)
    log_q = torch.where(drafted.gather(1, at).unsqueeze(-1), log_q_of.gather(1, row), -torch.inf)
    noise = _noise(seed, temperature, at_position.gather(1, at), Stream.TARGET, vocab)
    correction = (residual(log_p.gather(1, row), log_q) + noise).argmax(-1).int()
    ids.copy_(torch.where(accepts > 0, tokens, torch.where(here & finite, correction, -1)))
    accepted.copy_(accepts)


def _noise(seed: Tensor, temperature: Tensor, positions: Tensor, stream: Stream, vocab: int) -> Tensor:
    """Gumbel noise [N, M, V] at positions [N, M], 0 for greedy sequences."""
    noise = gumbel(seed, positions.clamp(min=0), stream, vocab)
    return torch.where((temperature >= GREEDY_BELOW)[:, None, None], noise, 0)


def _entries(logits: Tensor, rows: Tensor | None, positions: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Logits [N, M, V] of each entry's row, others in their place where nobody asks, and which are asked for [N, M]."""
    n, most = logits.shape[:2]
    asked = torch.ones((n, count), dtype=torch.bool, device=logits.device) if positions is None else positions >= 0
    if rows is None:
        return logits[:, :count], asked
    index = rows.clamp(0, most - 1).long().unsqueeze(-1).expand(-1, -1, logits.shape[-1])
    return logits.gather(1, index), asked & (rows >= 0) & (rows < most)
