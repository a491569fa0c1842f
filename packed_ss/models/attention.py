"""The slot cache and the attention of a call's rows over it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rows import Rows
from .config import ModelConfig
from .rope import angles


class SlotCache:
    """Keys and values of every layer in one static buffer each, [layers, N, C, Hkv, D].

    Slot s of a sequence holds position s once it is verified; a call writes its rows to the slots that `Rows` names, and
    what is not kept is overwritten by the next call.  The last slot is spare: rows that stand for nothing write there.
    """

    @staticmethod
    def bytes(config: ModelConfig, n: int, capacity: int, dtype: torch.dtype) -> int:
        """What such a cache takes."""
        return 2 * config.num_layers * n * capacity * config.num_kv_heads * config.head_dim * dtype.itemsize

    def __init__(self, config: ModelConfig, n: int, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_layers, n, capacity, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """C, slots per sequence."""
        return self.keys.shape[2]

    def layers(self, n: int, slots: int) -> list[tuple[Tensor, Tensor]]:
        """Per layer, views of the first ``slots`` slots of the first ``n`` sequences."""
        return list(zip(self.keys[:, :n, :slots].unbind(0), self.values[:, :n, :slots].unbind(0), strict=True))


class CachedAttention:
    """`attend` for one call: stores the rows' keys and values in their slots, then attends over prefix and tail."""

    def __init__(self, rows: Rows, layers: list[tuple[Tensor, Tensor]], config: ModelConfig, frequencies: Tensor) -> None:
        self.rows, self.layers = rows, layers
        self.cos, self.sin, self.query_scale = angles(config.rope, frequencies, rows.positions)
        self.scale = config.head_dim**-0.5

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, R, Hq, D] and k, v [N, R, Hkv, D], unrotated, to [N, R, Hq, D]."""
        keys, values = self.layers[layer]
        q = torch.ops.packed_ss.rope_store(q, k, v, self.cos, self.sin, self.query_scale, self.rows.slots, keys, values)
        return torch.ops.packed_ss.tail_attention(q, keys, values, self.rows.cache_len, self.rows.tail_mask, self.scale)
