"""Plain-torch version of the language-model head that keeps only the argmax."""

from __future__ import annotations

import torch
from torch import Tensor

_SCORES_AT_ONCE = 1 << 20


def linear_argmax(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of the logits x weight^T of each row and the lowest id that has it; the logits are never whole.

    x [N, R, H]; weight [V, H].  Returns best [N, R], float32 or better, and ids [N, R] int32.  Products are accumulated
    and compared in float32 or better: unlike logits of the weights' dtype they are not rounded.  A NaN wins.
    """
    check_linear_argmax(x, weight)
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
    return best.view(n, rows), ids.int().view(n, rows)


def check_linear_argmax(x: Tensor, weight: Tensor) -> None:
    """Refuses what `linear_argmax` does not accept."""
    if x.dim() != 3 or not x.is_floating_point():
        raise ValueError(f"linear_argmax: x must be floating-point [N, R, H], got {x.dtype} {list(x.shape)}.")
    if weight.dim() != 2 or weight.shape[1] != x.shape[2] or weight.shape[0] == 0 or weight.dtype != x.dtype:
        raise ValueError(
            f"linear_argmax: weight must be {x.dtype} [V, {x.shape[2]}] with V at least 1 as x asks, "
            f"got {weight.dtype} {list(weight.shape)}."
        )
    if weight.device != x.device:
        raise ValueError(f"linear_argmax: x and weight must be on one device, got {x.device} and {weight.device}.")
