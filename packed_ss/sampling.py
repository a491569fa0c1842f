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


def process(logits: Tensor, temperature: Tensor | float, top_k: Tensor | int, top_p: Tensor | float) -> Tensor:
    """Unnormalised log-probabilities of the processed distribution: temperature, then top-k, then top-p.

    logits [N, ..., V] of any float dtype; settings: numbers, or tensors [N].  The result is float32 or better, -inf where
    filtered, largest value 0.  A temperature below `GREEDY_BELOW` keeps the argmax alone, of several the lowest id; top_k 0 and
    top_p 1 filter nothing.  Tokens tied with the last kept one are kept.  A row whose maximum is not finite becomes NaN
    throughout.
    """
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    temperature, top_k, top_p = (_by_sequence(one, x) for one in (temperature, top_k, top_p))
    largest = x.amax(-1, keepdim=True)
    is_greedy = ~(temperature >= GREEDY_BELOW)  # NaN too
    temperature = temperature.to(x.dtype)
    # The argmax of a greedy row, the first of several, is all that stays of it.
    first = torch.zeros_like(x, dtype=torch.bool).scatter_(-1, x.argmax(-1, keepdim=True), True)
    below = x - largest
    x = torch.where(is_greedy, torch.where(first | below.isnan(), below, -torch.inf), below / temperature)
    vocab = x.shape[-1]
    filters_k = ~is_greedy & (top_k > 0) & (top_k < vocab)
    filters_p = ~is_greedy & (top_p < 1.0)
    if not _any(filters_k | filters_p):
        return x
    ordered = x.sort(dim=-1, descending=True).values
    kth = ordered.gather(-1, (top_k.clamp(1, vocab) - 1).expand(*x.shape[:-1], 1))
    x = torch.where(filters_k & (x < kth), -torch.inf, x)
    mass = torch.where(filters_k & (ordered < kth), -torch.inf, ordered).double().exp()
    mass = mass / mass.sum(-1, keepdim=True)
    before = torch.nn.functional.pad(mass.cumsum(-1)[..., :-1], (1, 0))
    kept = (before < top_p).sum(-1, keepdim=True)
    return torch.where(filters_p & (x < ordered.gather(-1, (kept - 1).clamp_(min=0))), -torch.inf, x)


def _by_sequence(setting: Tensor | float, x: Tensor) -> Tensor:
    """A setting that broadcasts against x [N, ..., V]."""
    if not isinstance(setting, Tensor):
        dtype = torch.int64 if isinstance(setting, int) else torch.float64
        setting = torch.full((1,), setting, dtype=dtype, device=x.device)
    return setting.view(-1, *[1] * (x.dim() - 1))


def _any(flags: Tensor) -> bool:
    """False where none is set, as far as that can be known without a wait: a GPU would have to be read."""
    return flags.device.type != "cpu" or bool(flags.numpy().any())


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
