"""A transformer as the reference's any-order conditional: every row a full recomputation with duplicate masks (App. D.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from packed_ss.models.rope import angles, rotate
from packed_ss.models.transformer import Transformer
from packed_ss.reference.ordered import Accepted, Pair


def dense_rows(model: Transformer, ids: Sequence[int], positions: Sequence[int], visible: Tensor) -> Tensor:
    """Logits [R, V] of one pass over ``ids`` at ``positions``, where row r sees row s iff ``visible`` [R, R].

    Excluded ids have -inf, as for every decoder.
    """
    config = model.config
    cos, sin, scale = angles(config.rope, model.frequencies, torch.tensor(positions)[None])

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if scale is not None:
            q = q * scale[..., None, None].to(q.dtype)
        k, v = (t.repeat_interleave(config.num_heads // config.num_kv_heads, dim=2) for t in (k, v))
        scores = torch.einsum("nrhd,nshd->nhrs", q, k) / math.sqrt(config.head_dim)
        return torch.einsum("nhrs,nshd->nrhd", scores.masked_fill(~visible, -math.inf).softmax(-1), v)

    with torch.no_grad():
        logits = model(torch.tensor(ids)[None], attend)[0]
    logits[:, list(config.excluded_token_ids)] = -math.inf
    return logits


class OrderedDense:
    """``OrderedDense(model, prompt)`` is the `Conditional` of an ordered-layout model: its verifier and its drafter in one.

    A call recomputes the prompt (causal), every accepted pair that matters (seeing the prompt, what its own row has seen, and
    itself, even where a stop has dropped it since), the pairs K (each after the others), and one MASK row per position, which
    sees P, K and itself.  Rows are remembered by what they depend on.
    """

    def __init__(self, model: Transformer, prompt: Sequence[int]) -> None:
        self.model, self.prompt = model, list(prompt)
        self._rows: dict[tuple[tuple[Accepted, ...], tuple[Pair, ...], int], list[float]] = {}

    def __call__(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        keys = [(tuple(P), tuple(K), j) for j in U]
        if missing := [j for j, key in zip(U, keys, strict=True) if key not in self._rows]:
            for j, row in zip(missing, self._compute(P, K, missing), strict=True):
                self._rows[tuple(P), tuple(K), j] = row
        return [self._rows[key] for key in keys]

    def _compute(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        n = len(self.prompt)
        history: dict[Accepted, int] = {}  # every pair that some row depends on, and its row
        for accepted in P:
            self._add(history, accepted)
        drafts = n + len(history)
        masks = drafts + len(K)
        ids = [*self.prompt, *(a.token for a in history), *(token for _, token in K), *[self.model.config.mask_token_id] * len(U)]
        positions = [*range(n), *(n + a.position - 1 for a in history), *(n + j - 1 for j, _ in K), *(n + j - 1 for j in U)]
        visible = torch.eye(len(ids), dtype=torch.bool)
        visible[:, :n] = True
        visible[:n, :n] = torch.ones(n, n).tril().bool()
        for a, row in history.items():
            visible[row, [history[b] for b in a.seen]] = True
        visible[drafts:, [history[a] for a in P]] = True
        visible[drafts:masks, drafts:masks] = torch.ones(len(K), len(K)).tril().bool()
        visible[masks:, drafts:masks] = True
        return dense_rows(self.model, ids, positions, visible)[masks:].tolist()

    def _add(self, history: dict[Accepted, int], accepted: Accepted) -> None:
        """Enters a pair after everything that its row has seen."""
        if accepted not in history:
            for a in accepted.seen:
                self._add(history, a)
            history[accepted] = len(self.prompt) + len(history)
