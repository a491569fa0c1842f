"""Rows: the fixed-shape input of one model call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """One call's input for N sequences of R rows each.

    ids [N, R] int32: input tokens.  positions [N, R] int32: logical positions.  slots [N, R] int32: the cache slot that
    receives each row's key and value.  cache_len [N] int32: cached positions that every row sees.  tail_mask
    [1 or N, R, words] int32: row r sees slot cache_len + s iff bit s is set.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    cache_len: Tensor
    tail_mask: Tensor

    @classmethod
    def empty(cls, n: int, rows: int, cache_len: Tensor, tail_mask: Tensor) -> Rows:
        """Buffers for a call of this shape, to be filled by a pack operator."""
        ids, positions, slots = (torch.zeros((n, rows), dtype=torch.int32, device=cache_len.device) for _ in range(3))
        return cls(ids, positions, slots, cache_len, tail_mask)


def pack_bits(visible: np.ndarray) -> np.ndarray:
    """Packs bool [..., S] into int32 words [..., ceil(S/32)]: bit s % 32 of word s // 32; pad bits are zero."""
    size = visible.shape[-1]
    padded = np.zeros((*visible.shape[:-1], -(-size // 32) * 32), dtype=bool)
    padded[..., :size] = visible
    return np.packbits(padded, axis=-1, bitorder="little").view("<i4")
