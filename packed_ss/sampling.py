"""Processed distributions and the noise that draws from them, in torch.

Every draw is a Gumbel-max: argmax(log p + G) with noise keyed by seed, position, stream and vocabulary id alone, so the
same seed gives the same draw whatever the schedule, batch or call.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

#: Temperatures below this are greedy.
GREEDY_BELOW = 1e-5


class Stream(IntEnum):
    """What a noise value is for.  One position never uses one stream's noise for two purposes."""

    DRAFT = 0
    ACCEPT = 1
    TARGET = 2


def process(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Unnormalised log-probabilities of the processed distribution: temperature, then top-k, then top-p.

    logits [..., V] of any float dtype; the result is float32 or better, -inf where filtered, largest value 0.  top_k 0
    and top_p 1 filter nothing.  Tokens tied with the last kept one are kept.  A row whose maximum is not finite becomes
    NaN throughout.
    """
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    x = (x - x.amax(-1, keepdim=True)) / temperature
    if 0 < top_k < x.shape[-1]:
        x = x.masked_fill(x < x.topk(top_k, dim=-1).values[..., -1:], -torch.inf)
    if top_p < 1.0:
        ordered = x.sort(dim=-1, descending=True).values
        mass = ordered.double().exp()
        mass = mass / mass.sum(-1, keepdim=True)
        before = torch.nn.functional.pad(mass.cumsum(-1)[..., :-1], (1, 0))
        kept = (before < top_p).sum(-1, keepdim=True)
        x = x.masked_fill(x < ordered.gather(-1, (kept - 1).clamp_(min=0)), -torch.inf)
    return x


def gumbel(seed: Tensor, position: Tensor, stream: Stream, vocab_size: int) -> Tensor:
    """Standard Gumbel noise -log(-log1p(-u)), float32 [N, R, V], for seed [N] and position [N, R]."""
    u = torch.ops.packed_ss.uniform_noise(seed, position, int(stream), vocab_size)
    return u.neg_().log1p_().neg_().log_().neg_()


def residual(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Unnormalised log of [p - Q]+ (the correction of Algorithm 2, line 7): log p + log1p(-Q/p) where p > Q, else -inf.

    Both [..., V]; log_q is -inf throughout where there was no draft, which leaves p.  Where nothing is left (p equals Q up
    to rounding) the result is log p.
    """
    left = torch.where(log_q < log_p, log_p + torch.log1p(-torch.exp(log_q - log_p)), -torch.inf)
    empty = left.amax(-1, keepdim=True) == -torch.inf
    return torch.where(empty, log_p, left)
