"""Left-to-right sampling of an ordered model: the exact law by chi-square, and seen to fail where verification is broken.

A false alarm has probability 1e-9 per case, and seeds are fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss import Branched, Decoder
from packed_ss.layouts.ordered import OrderedCall
from packed_ss.models.transformer import Transformer
from packed_ss.ordered_state import OrderedState
from packed_ss.reference.ordered import Accepted
from packed_ss.request import Request
from packed_ss.rows import Rows
from tests.support.checkpoints import random_model, random_set_config
from tests.support.enumeration import chi_square_ok, exact_law
from tests.support.ordered import OrderedDense

PROMPT, LENGTH, BATCH = [0, 2], 3, 5_000
OPTIONS: dict[str, Any] = {"temperature": 1.2, "top_k": 5, "top_p": 0.9}
STOPS, SEQUENCES = [6], [[1, 2], [4, 4]]


def model(dtype: torch.dtype) -> Transformer:
    sizes = {
        "vocab_size": 7,
        "num_layers": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
        "head_dim": 4,
        "num_heads": 2,
        "num_kv_heads": 1,
    }
    return random_model(random_set_config(5, **sizes), 5, dtype, 1.2)


@pytest.fixture(scope="module")
def law() -> dict[tuple[int, ...], float]:
    dense = OrderedDense(model(torch.float64), PROMPT)

    def verifier(P: Sequence[int], D: Sequence[int]) -> list[list[float]]:
        assert not D
        accepted: list[Accepted] = []
        for j, token in enumerate(P[len(PROMPT) :], 1):
            accepted.append(Accepted(j, token, tuple(accepted)))
        return dense(accepted, [], [len(accepted) + 1])

    law = exact_law(verifier, PROMPT, LENGTH, STOPS, **OPTIONS, stop_sequences=SEQUENCES)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9) and len(law) > 20
    return law


def sample(decoder: Decoder, seed: int, **options: Any) -> tuple[list[tuple[int, ...]], float]:
    """Texts of a batch, and how often a call of all appended more than one token."""
    ends = {"eos_token_id": STOPS, "stop_sequences": SEQUENCES}
    out = decoder.generate([PROMPT] * BATCH, LENGTH, seed=seed, **ends, **OPTIONS, **options)
    return [tuple(tokens.tolist()) for tokens in out.tokens], sum(max(a) > 1 for a in out.advances) / BATCH


CASES = [("autoregressive", 1), ("linear", 2), ("packed", 2), ("packed", 3), ("quadratic", 3), (Branched((0, 1)), 3)]


@pytest.mark.parametrize(("schedule", "window"), CASES, ids=str)
def test_rejection_has_the_law_of_autoregressive_sampling(schedule: Any, window: int, law: dict[tuple[int, ...], float]) -> None:
    decoder = Decoder(model(torch.float32), schedule, window=window, max_length=8, batch_size=BATCH)
    counts: Counter[tuple[int, ...]] = Counter()
    while counts.total() < 100_000:
        texts, several = sample(decoder, 10**9 * window + counts.total())
        counts.update(texts)
    assert chi_square_ok(counts, law)
    assert schedule == "autoregressive" or several > 0.1


def test_coupled_has_the_law_too_and_the_same_texts_under_every_schedule(law: dict[tuple[int, ...], float]) -> None:
    decoders = [Decoder(model(torch.float32), schedule, window=w, max_length=8, batch_size=BATCH) for schedule, w in CASES]
    counts: Counter[tuple[int, ...]] = Counter()
    for batch in range(20):
        texts, _ = sample(decoders[0], batch * BATCH, verification="coupled")
        counts.update(texts)
        if batch < 2 * len(CASES) - 2:
            verification = ("coupled", "match")[batch % 2]
            assert sample(decoders[1 + batch // 2], batch * BATCH, verification=verification)[0] == texts
    assert chi_square_ok(counts, law)


class Unverified(Decoder):
    """Accepts the second draft token as it stands; the first one is drawn from the same conditional as its verification."""

    def resolve(
        self,
        outputs: Tensor,
        rows: Rows,
        state: OrderedState,
        request: Request,
        call: OrderedCall,
        following: OrderedCall | None = None,
    ) -> None:
        state.draft_log_q[:, 1] = -1e30
        super().resolve(outputs, rows, state, request, call, following)


class WrongQ(Decoder):
    """Forgets whose distribution the second draft token was drawn from."""

    def resolve(
        self,
        outputs: Tensor,
        rows: Rows,
        state: OrderedState,
        request: Request,
        call: OrderedCall,
        following: OrderedCall | None = None,
    ) -> None:
        state.draft_log_q[:, 1] = state.draft_log_q[:, 0]
        super().resolve(outputs, rows, state, request, call, following)


@pytest.mark.parametrize("kind", [Unverified, WrongQ])
def test_broken_verification_is_seen(kind: type[Decoder], law: dict[tuple[int, ...], float]) -> None:
    decoder = kind(model(torch.float32), "linear", window=3, max_length=8, batch_size=BATCH)
    counts: Counter[tuple[int, ...]] = Counter()
    while counts.total() < 40_000:
        counts.update(sample(decoder, counts.total())[0])
    assert not chi_square_ok(counts, law)
