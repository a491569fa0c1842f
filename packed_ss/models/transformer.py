"""The decoder-only transformer that every supported checkpoint is an instance of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import ModelConfig
from .glue import add_rms_norm, silu_mul
from .rope import inverse_frequencies

if TYPE_CHECKING:
    from .adapter import LowRank

#: attend(layer, q [N, R, Hq, D], k [N, R, Hkv, D], v [N, R, Hkv, D]) -> [N, R, Hq, D]; q and k come unrotated.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def after(self, x: Tensor, update: Tensor | None) -> tuple[Tensor, Tensor]:
        """x + update and its norm; both arguments are used up."""
        return (x, self(x)) if update is None else add_rms_norm(x, update, self.weight, self.eps)


class Projection(nn.Linear):
    """x W^T of [N, R, in], and on the last ``proposal_rows`` rows also what an adapter adds (`adapter.LowRank`).

    The product with W is one and the same for all rows, with an adapter and without.
    """

    adapter: LowRank | None

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__(size_in, size_out, bias=False)
        self.register_module("adapter", None)

    def forward(self, x: Tensor, proposal_rows: int = 0) -> Tensor:
        y = super().forward(x)
        if self.adapter is not None and proposal_rows:
            first = x.shape[1] - proposal_rows
            self.adapter(x[:, first:], y[:, first:])
        return y


class Block(nn.Module):
    """Grouped-query attention and SwiGLU, each behind an RMSNorm and added to the residual stream.

    The q, k and v projections are one matrix, gate and up another: fewer, larger products.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        c = config
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, c.num_heads, c.num_kv_heads, c.head_dim
        self.input_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.qkv = Projection(c.hidden_size, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps) if c.qk_norm else None
        self.out = Projection(c.num_heads * c.head_dim, c.hidden_size)
        self.mlp_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.gate_up = Projection(c.hidden_size, 2 * c.intermediate_size)
        self.down = Projection(c.intermediate_size, c.hidden_size)

    def forward(self, x: Tensor, update: Tensor | None, attend: Attend, proposal_rows: int = 0) -> tuple[Tensor, Tensor]:
        """The residual stream [N, R, H], in two terms whose sum is still due: x, and the last update (None: there is none)."""
        n, rows, _ = x.shape
        x, y = self.input_norm.after(x, update)
        qkv = self.qkv(y, proposal_rows).view(n, rows, -1, self.head_dim)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        x, y = self.mlp_norm.after(x, self.out(attend(self.layer, q, k, v).reshape(n, rows, -1), proposal_rows))
        return x, self.down(silu_mul(self.gate_up(y, proposal_rows)), proposal_rows)


class Transformer(nn.Module):
    """Token ids to logits.  What a row attends to is the caller's: see `Attend`.

    The last ``proposal_rows`` rows of a call are those that draft: an adapter acts on them and on no other row.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.source: Path | None = None  # the folder that the weights came from
        self.adapter_source: Path | None = None  # the folder of the proposal-only adapter, where there is one
        self._apply(lambda t: t)

    def _apply(self, fn, recurse=True):
        """Keeps rotary frequencies beside the weights, and in float32 or better whatever the weights are."""
        super()._apply(fn, recurse)
        if self.config.tie_word_embeddings:  # leaving the meta device gives each module a tensor of its own
            self.head.weight = self.embed.weight
        dtype = torch.promote_types(self.embed.weight.dtype, torch.float32)
        self.frequencies = inverse_frequencies(self.config.rope, self.config.head_dim).to(self.embed.weight.device, dtype)
        return self

    def forward(self, ids: Tensor, attend: Attend, head_rows: int | None = None, proposal_rows: int = 0) -> Tensor:
        """Logits [N, head_rows, V] of the last ``head_rows`` rows (None: all) of ``ids``, integer [N, R]."""
        return self.head(self.hidden(ids, attend, head_rows, proposal_rows))

    def hidden(self, ids: Tensor, attend: Attend, head_rows: int | None = None, proposal_rows: int = 0) -> Tensor:
        """What the head is applied to, [N, head_rows, H]: `forward` without its last product."""
        x: Tensor = self.embed(ids)
        update: Tensor | None = None
        for block in self.blocks:
            x, update = block(x, update, attend, proposal_rows)
        first = 0 if head_rows is None else ids.shape[1] - head_rows
        return self.norm.after(x[:, first:], None if update is None else update[:, first:])[1]
