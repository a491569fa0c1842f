"""Teacher forcing: is every token of an output the one that plain autoregressive decoding would have emitted?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..models.rope import angles, rotate
from ..models.transformer import Transformer
from ..reference.philox import TARGET, gumbel, uniform
from ..sampling import process


@dataclass(frozen=True)
class Mismatch:
    """A token that AR would not have emitted: its index in the output, both ids, and the score gap between them."""

    index: int
    token: int
    expected: int
    gap: float


@dataclass(frozen=True)
class Report:
    """Mismatches of an output, and the smallest gap between the best score and the runner-up, where it stands."""

    tokens: int
    mismatches: list[Mismatch]
    smallest_gap: float
    smallest_gap_index: int


@torch.no_grad()
def verify(
    model: Transformer,
    prompt: Sequence[int],
    tokens: Sequence[int],
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Report:
    """Teacher-force ``tokens`` after ``prompt`` through one dense pass, causal, or of an ordered model, left to right.

    Temperature 0: each token must be the argmax of the logits.  Else the output must be of coupled verification at this
    seed, and each token the argmax of log p + G with the specification's own noise.  Scores are in logits (nats).
    """
    if not tokens:
        return Report(0, [], float("inf"), 0)
    ordered = model.config.layout == "ordered"
    logits = mask_logits(model, prompt, tokens) if ordered else causal_logits(model, [*prompt, *tokens])[len(prompt) - 1 : -1]
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature >= 1e-5:
        noise = [
            [gumbel(uniform(seed, len(prompt) + i, TARGET, token)) for token in range(scores.shape[1])]
            for i in range(len(tokens))
        ]
        scores = process(scores, temperature, top_k, top_p) + torch.tensor(noise, dtype=scores.dtype)
    best = scores.argmax(-1).tolist()
    mismatches = [
        Mismatch(i, token, best[i], float(scores[i, best[i]] - scores[i, token]))
        for i, token in enumerate(tokens)
        if token != best[i]
    ]
    top = scores.topk(min(2, scores.shape[1]), dim=-1).values
    gaps = top[:, 0] - top[:, -1] if top.shape[1] > 1 else torch.full((len(tokens),), torch.inf)
    return Report(len(tokens), mismatches, float(gaps.min()), int(gaps.argmin()))


def causal_logits(model: Transformer, ids: Sequence[int]) -> Tensor:
    """Logits [R, V] of a plain causal pass, with none of the decoder's rows, masks, slots or operators."""
    device = model.head.weight.device
    return dense_logits(model, torch.tensor(ids, device=device), torch.arange(len(ids), device=device), None)


def mask_logits(model: Transformer, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Of an ordered model the logits [len(tokens), V] of one MASK at each token's position, which sees what is before it."""
    device, n, count = model.head.weight.device, len(prompt), len(tokens)
    ids = torch.tensor([*prompt, *tokens, *[model.config.mask_token_id] * count], device=device)
    positions = torch.tensor([*range(n + count), *range(n, n + count)], device=device)
    clean = torch.arange(ids.shape[0], device=device) < n + count
    visible = clean & (positions[None, :] < positions[:, None]) | torch.eye(ids.shape[0], dtype=torch.bool, device=device)
    logits = dense_logits(model, ids, positions, visible)[n + count :]
    logits[:, list(model.config.excluded_token_ids)] = -torch.inf
    return logits


def dense_logits(model: Transformer, ids: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
    """Logits [R, V]; ``visible`` [R, R], None for causal."""
    cos, sin, scale = angles(model.config.rope, model.frequencies, positions[None])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if scale is not None:
            q = q * scale[..., None, None].to(q.dtype)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=visible, is_causal=visible is None, enable_gqa=True
        )
        return out.transpose(1, 2)

    return model(ids[None], attend)[0]
