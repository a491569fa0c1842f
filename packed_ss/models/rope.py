"""Rotary position embedding with YaRN, and the Llama-4 query scale, both by logical position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angular frequency of each of the head_dim/2 rotated pairs, in radians per position; float64 [head_dim/2].

    YaRN (Peng et al., 2023): pairs that turn more than ``beta_fast`` times over the original context keep their
    frequency, pairs that turn less than ``beta_slow`` times are slowed by the factor, with a linear ramp between.
    """
    pair = torch.arange(head_dim // 2, dtype=torch.float64)
    frequency = rope.theta ** (-2.0 * pair / head_dim)
    if rope.yarn_factor is None:
        return frequency
    original = original_positions(rope)

    def pair_that_turns(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    slowed = ((pair - low) / (high - low if high != low else 1e-3)).clamp(0, 1)
    return frequency * (1 - slowed) + frequency / rope.yarn_factor * slowed


def original_positions(rope: RopeConfig) -> int:
    """The original context in positions, which checkpoints with YaRN or a query scale name."""
    assert rope.original_max_position is not None
    return rope.original_max_position


def magnitude(rope: RopeConfig) -> float:
    """Factor on cos and sin (YaRN's attention factor); 1 for plain RoPE and where mscale equals mscale_all_dim."""
    factor = rope.yarn_factor
    if factor is None:
        return 1.0
    if rope.attention_factor is not None:
        return float(rope.attention_factor)

    def of(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return of(rope.mscale) / of(rope.mscale_all_dim)
    return of(1.0)


def angles(rope: RopeConfig, frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Rotation and query scale of each row.

    ``positions`` is integer [..., R]; ``frequencies`` float [head_dim/2].  Returns cos and sin [..., R, head_dim/2] and
    the query scale 1 + beta * log(1 + floor(position / original)) [..., R] (None where the checkpoint has none), all in
    the dtype of ``frequencies``.
    """
    position = positions.to(frequencies.dtype)
    turn = position.unsqueeze(-1) * frequencies
    cos, sin = turn.cos(), turn.sin()
    size = magnitude(rope)
    if size != 1.0:
        cos, sin = cos * size, sin * size
    if rope.llama_4_scaling_beta is None:
        return cos, sin, None
    return cos, sin, 1 + rope.llama_4_scaling_beta * torch.log1p((position / original_positions(rope)).floor())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [N, R, H, D]: pair (i, i + D/2) by the angle of row r; cos and sin are [N, R, D/2]."""
    cos, sin = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
