"""Models for decoder tests, and what the reference decodes them with: dense passes without rows, slots or operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from packed_ss import Branched, Decoder
from packed_ss.layouts.block import BlockCall
from packed_ss.models.rope import angles, rotate
from packed_ss.models.transformer import Transformer
from packed_ss.reference import Generation, autoregressive, branched, linear, make_rule
from packed_ss.reference.algorithms import Drafter, Verifier
from packed_ss.reference.verification import Rule
from packed_ss.request import Request
from packed_ss.rows import Rows
from packed_ss.state import BlockState
from tests.support.checkpoints import random_config, random_model


@cache
def small_model(
    seed: int, vocab_size: int = 5, scale: float = 1.0, dtype: torch.dtype = torch.float64, **overrides: Any
) -> Transformer:
    """A random model of two small layers, made once."""
    sizes = {"hidden_size": 12, "intermediate_size": 16, "head_dim": 8, "num_heads": 2, "num_kv_heads": 1}
    return random_model(random_config(seed, vocab_size=vocab_size, **(sizes | overrides)), seed, dtype, scale)


def dense_logits(model: Transformer, ids: Sequence[int], visible: Tensor) -> Tensor:
    """Logits [R, V] of one pass over ids at positions 0 ... R-1, where row r sees row s iff ``visible`` [R, R]."""
    cos, sin, scale = angles(model.config.rope, model.frequencies, torch.arange(len(ids))[None])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if scale is not None:
            q = q * scale[..., None, None].to(q.dtype)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), visible, enable_gqa=True)
        return out.transpose(1, 2)

    return model(torch.tensor(ids)[None], attend)[0]


class Dense:
    """The two modes of a model as the reference wants them; every row is a full recomputation, remembered by its prefix."""

    def __init__(self, model: Transformer, block_size: int = 4) -> None:
        self.model, self.block_size = model, block_size
        self.rows: dict[tuple[int, ...], list[float]] = {}
        self.proposals: dict[tuple[int, ...], list[list[float]]] = {}

    def verifier(self, P: Sequence[int], D: Sequence[int]) -> list[list[float]]:
        return [self._row((*P, *D[:i])) for i in range(len(D) + 1)]

    def _row(self, prefix: tuple[int, ...]) -> list[float]:
        if prefix not in self.rows:
            causal = torch.ones(len(prefix), len(prefix)).tril().bool()
            self.rows[prefix] = dense_logits(self.model, prefix, causal)[-1].tolist()
        return self.rows[prefix]

    def drafter(self, P: Sequence[int], m: int) -> list[list[float]]:
        """m = W: [last, MASK^W] after P[:-1].  m = B: the first call's MASK^B after all of P."""
        key = (m, *P)
        if key not in self.proposals:
            region = len(P) - 1 if m < self.block_size else len(P)
            ids = [*P, *[self.model.config.mask_token_id] * m]
            visible = torch.ones(len(ids), len(ids)).tril().bool()
            visible[region:] = True
            self.proposals[key] = dense_logits(self.model, ids, visible)[-m:].tolist()
        return self.proposals[key]


def schedules(block_size: int) -> dict[str, str | Branched]:
    """Every schedule at block size B, by a name for the test's report."""
    some = sorted({0, block_size // 2, block_size - 1})
    return {name: name for name in ("autoregressive", "linear", "packed", "quadratic")} | {f"branched {some}": Branched(some)}


def reference(
    dense: Dense,
    schedule: str | Branched,
    prompt: Sequence[int],
    L: int,
    rule: Rule,
    *,
    two_call_start: bool = False,
    **stops: Any,
) -> Generation:
    """The reference's run of a decoder's schedule at ``dense.block_size``."""
    if schedule == "autoregressive":
        return autoregressive(dense.verifier, prompt, L, rule=rule, **stops)
    W = dense.block_size - 1
    settings = {"rule": rule, "initial_extra_mask": not two_call_start, "two_call_start": two_call_start, **stops}
    if schedule == "linear":
        return linear(dense.verifier, dense.drafter, prompt, W, L, **settings)
    cuts = {"packed": (0,), "quadratic": range(W + 1)}[schedule] if isinstance(schedule, str) else schedule.cuts
    return branched(dense.verifier, dense.drafter, prompt, W, L, cuts=cuts, **settings)


def plain(
    model: Transformer,
    prompt: Sequence[int],
    L: int,
    mode: str = "greedy",
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    **stops: Any,
) -> Generation:
    """Autoregressive text by full recomputation, with the reference's arithmetic and noise."""
    rule = make_rule(mode, seed, 0.0 if mode == "greedy" else temperature, top_k, top_p)
    return autoregressive(Dense(model).verifier, prompt, L, rule=rule, **stops)


def new_decoder(model: Transformer, schedule: str | Branched = "packed", block_size: int = 4, **options: Any) -> Decoder:
    """A decoder with room for five short prompts."""
    return Decoder(model, schedule, block_size, **({"max_length": 64, "batch_size": 5} | options))


class FullShape(Decoder):
    """Sends every row in every call, as fixed shapes on a GPU do, with the whole cache in view."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.layout.live = lambda progress, request, call: call

    def step(self, state: BlockState, request: Request, call: BlockCall, slots: int) -> None:
        super().step(state, request, call, self.cache.capacity)


class Scripted(Decoder):
    """A decoder whose logits come from the reference's kind of verifier and drafter, and NaN in every row that has no use.

    ``calls`` keeps each call's shape, with |D| of the first sequence before it and after it.
    """

    def __init__(self, verifier: Verifier, drafter: Drafter, vocab_size: int, *arguments: Any, **options: Any) -> None:
        super().__init__(small_model(0, vocab_size), *arguments, **({"max_length": 64} | options))
        self.verifier, self.drafter = verifier, drafter
        self.calls: list[tuple[BlockCall, int, int]] = []

    def forward(self, rows: Rows, slots: int, call: BlockCall, request: Request) -> Tensor:
        return torch.empty(0)

    def resolve(
        self,
        outputs: Tensor,
        rows: Rows,
        state: BlockState,
        request: Request,
        call: BlockCall,
        following: BlockCall | None = None,
    ) -> None:
        n = state.length.shape[0]
        logits = torch.full((n, call.rows, self.model.config.vocab_size), torch.nan, dtype=torch.float64)
        lengths = draft_lengths(state)
        for i in range(n):
            P, D = state.tokens[i, : state.length[i]].tolist(), state.draft[i, : lengths[i]].tolist()
            if call.verifier_rows:
                D = D[: call.verifier_rows - 1]
                logits[i, : len(D) + 1] = torch.tensor(self.verifier(P, D), dtype=torch.float64)
            for k, cut in enumerate(call.cuts):
                if cut <= len(D):
                    begin, count = call.verifier_rows + k * call.block_size + 1 - call.shift, call.block_size - 1 + call.shift
                    proposals = torch.tensor(self.drafter([*P, *D[:cut]], count), dtype=torch.float64)
                    logits[i, begin : begin + count] = proposals
        super().resolve(logits, rows, state, request, call, following)
        self.calls.append((call, lengths[0], draft_lengths(state)[0]))


def draft_lengths(state: BlockState) -> list[int]:
    """|D| of each sequence."""
    return (state.draft >= 0).int().cumprod(1).sum(1).tolist()
