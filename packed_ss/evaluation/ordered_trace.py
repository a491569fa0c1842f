"""Is a text in any order the one that serial decoding gives (Proposition C.1)?  A run's accepted pairs, teacher-forced.

Iteration t accepts A_t tokens at pi_t(1) ... pi_t(A_t), each conditioned on what was accepted before and on those before it in
the group.  If every one of them is the argmax of a mask row that sees just that, serial decoding along the same orders gives
the same tokens, by induction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layouts.ordered import OrderedCall
from ..models.transformer import Transformer
from ..observer import Observer
from ..ordered_state import OrderedState
from ..request import Request
from .verify import dense_logits


@dataclass(eq=False)
class Pair:
    """An accepted token at an absolute position, what its prediction was conditioned on, and what its own row has seen.

    ``seen`` is None while the row is still due.
    """

    position: int
    token: int
    conditioned_on: tuple[Pair, ...]
    seen: tuple[Pair, ...] | None = None


class Trace(Observer):
    """Keep every pair that a greedy decoder of an ordered model accepts, under any schedule but native.

    ``pairs``: those of each sequence in order of acceptance, also the ones that a stop has dropped since.
    """

    def __init__(self) -> None:
        self.pairs: list[list[Pair]] = []
        self._cached: list[list[Pair]] = []
        self._due: list[list[Pair]] = []

    def generation_begins(self, state: OrderedState, request: Request) -> None:
        for kept in (self.pairs, self._cached, self._due):
            kept[:] = [[] for _ in request.prompts]
        self._prefilled = False

    def first_call_ends(self) -> None:
        self._prefilled = True

    def resolve_begins(self, call: OrderedCall, outputs: Tensor, state: OrderedState) -> None:
        self._before = [t.tolist() for t in (state.finish_reason, state.order, state.draft)]

    def resolve_ends(self, call: OrderedCall, outputs: Tensor, state: OrderedState) -> None:
        if not self._prefilled:
            return
        ids = outputs[:, : call.window].argmax(-1).tolist() if call.verifies else None
        ends = state.end.tolist()
        for i, (finished, order, draft) in enumerate(zip(*self._before, strict=True)):
            if finished:
                continue
            if call.waiting_rows:
                for pair in self._due[i]:
                    pair.seen = tuple(self._cached[i])
                    self._cached[i].append(pair)
                self._due[i] = []
            if ids is not None:
                self._accept(i, [j for j in order if j >= 0], draft, ids[i])
            self._cached[i] = [pair for pair in self._cached[i] if pair.position < ends[i]]
            self._due[i] = [pair for pair in self._due[i] if pair.position < ends[i]]

    def _accept(self, i: int, order: Sequence[int], draft: Sequence[int], ids: Sequence[int]) -> None:
        """Algorithm 3, lines 9 and 10, on plain lists."""
        for j, d, token in zip(order, draft, ids, strict=False):
            before = tuple(self._cached[i])
            pair = Pair(j, token, before)
            self.pairs[i].append(pair)
            if d != token:
                self._due[i].append(pair)
                return
            pair.seen = before
            self._cached[i].append(pair)


@torch.no_grad()
def wrong_pairs(model: Transformer, prompt: Sequence[int], pairs: Sequence[Pair]) -> list[tuple[Pair, int, float]]:
    """The pairs that are not the argmax of their mask row, each with that argmax and its lead in logits over the pair's token.

    One dense pass: the prompt, causal; every pair whose row was due, seeing what that row saw; and one mask row for each pair.
    """
    device, config = model.head.weight.device, model.config
    clean = [pair for pair in pairs if pair.seen is not None]
    row = {pair: len(prompt) + k for k, pair in enumerate(clean)}
    first = len(prompt) + len(clean)
    ids = [*prompt, *(pair.token for pair in clean), *[config.mask_token_id] * len(pairs)]
    positions = [*range(len(prompt)), *(pair.position for pair in clean), *(pair.position for pair in pairs)]
    visible = torch.eye(len(ids), dtype=torch.bool)
    visible[:, : len(prompt)] = True
    visible[: len(prompt), : len(prompt)] = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril()
    for pair in clean:
        visible[row[pair], [row[other] for other in pair.seen or ()]] = True
    for k, pair in enumerate(pairs):
        visible[first + k, [row[other] for other in pair.conditioned_on]] = True
    logits = dense_logits(model, torch.tensor(ids, device=device), torch.tensor(positions, device=device), visible.to(device))
    logits = logits[first:]
    logits[:, list(config.excluded_token_ids)] = -torch.inf
    best = logits.argmax(-1).tolist()
    return [
        (pair, best[k], float(logits[k, best[k]] - logits[k, pair.token]))
        for k, pair in enumerate(pairs)
        if best[k] != pair.token
    ]
