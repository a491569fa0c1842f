"""Sampling left to right with the ordered schedules: the exact joint law, the AR text of the seed, the addresses of the noise."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from packed_ss import reference
from packed_ss.reference import ACCEPT, DRAFT, Coupled, Randomness, Rejection, make_rule, uniform
from packed_ss.reference.ordered import Accepted, OrderedGeneration, Pair
from packed_ss.reference.ordered_schedules import autoregressive, branched, linear, quadratic
from tests.reference.test_ordered import random_stops, right_to_left
from tests.reference.test_sampling import SharedStreams
from tests.reference.toy_models import TableModel
from tests.support.enumeration import chi_square_ok, exact_law

PROMPT, LENGTH = [1, 0], 3
packed = partial(branched, cuts=(0,))
SCHEDULES: dict[str, Callable[..., OrderedGeneration]] = {
    "linear": linear,
    "packed": packed,
    "quadratic": quadratic,
    "branched": partial(branched, cuts=(0, 2)),
}


class InPlace:
    """A block model seen by position, left to right: its verifier's rows, and its drafter's from the tokens before a gap."""

    def __init__(self, model: TableModel, prompt: Sequence[int]) -> None:
        self.model, self.prompt = model, list(prompt)

    def context(self, P: Sequence[Accepted], K: Sequence[Pair]) -> list[int]:
        pairs = [*((a.position, a.token) for a in P), *K]
        assert [j for j, _ in pairs] == list(range(1, len(pairs) + 1))
        return [*self.prompt, *(token for _, token in pairs)]

    def verifier(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[tuple[float, ...]]:
        assert list(U) == [len(P) + len(K) + 1]
        return [self.model.row(self.context(P, K))]

    def drafter(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[tuple[float, ...]]:
        context = self.context(P, K)
        rows = self.model.drafter(context, U[-1] - len(P) - len(K))
        return [rows[max(j - len(P) - len(K) - 1, 0)] for j in U]


def model_of_three_tokens() -> InPlace:
    return InPlace(TableModel(113, vocab_size=3, agreement=0.3), PROMPT)


def texts(generate: Callable[[int], OrderedGeneration], seeds: int) -> Counter[tuple[int, ...]]:
    return Counter(tuple(generate(seed).tokens) for seed in range(seeds))


@pytest.mark.parametrize("name", SCHEDULES)
def test_rejection_has_the_exact_joint_law(name: str) -> None:
    model = model_of_three_tokens()

    def generate(seed: int) -> OrderedGeneration:
        rule = Rejection(Randomness(seed))
        return SCHEDULES[name](model.verifier, model.drafter, 3, LENGTH, rule=rule, prompt_length=len(PROMPT))

    law = exact_law(model.model.verifier, PROMPT, LENGTH)
    assert len(law) == 27 and chi_square_ok(texts(generate, 5_000), law)


def test_rejection_with_stops_and_filters_has_the_exact_joint_law() -> None:
    model = model_of_three_tokens()
    filters: dict[str, Any] = {"temperature": 1.3, "top_k": 2, "top_p": 0.9}
    law = exact_law(model.model.verifier, PROMPT, LENGTH, [2], **filters, stop_sequences=[[0, 1]])
    assert {len(text) for text in law} == {1, 2, 3}

    def generate(seed: int) -> OrderedGeneration:
        rule = Rejection(Randomness(seed), *filters.values())
        return packed(model.verifier, model.drafter, 3, LENGTH, rule=rule, stop_ids=[2], stop_sequences=[[0, 1]])

    assert chi_square_ok(texts(generate, 6_000), law)


@pytest.mark.parametrize(
    ("shared", "lawful"), [((), True), ((ACCEPT,), False), ((reference.TARGET,), False)], ids=["none", "coin", "correction"]
)
def test_noise_that_the_draft_has_used_breaks_the_law(shared: tuple[int, ...], lawful: bool) -> None:
    p, q = [[math.log(x) for x in row] for row in ([0.05, 0.4, 0.55], [0.6, 0.05, 0.35])]

    def generate(seed: int) -> OrderedGeneration:
        rule = Rejection(SharedStreams(seed, shared))
        return packed(lambda P, K, U: [p] * len(U), lambda P, K, U: [q] * len(U), 3, LENGTH, rule=rule)

    assert chi_square_ok(texts(generate, 6_000), exact_law(lambda P, D: [p], PROMPT, LENGTH)) == lawful


def test_autoregressive_samples_are_those_of_the_block_reference() -> None:
    """Same noise at the same absolute positions: the same text, for rejection and coupled sampling alike."""
    for seed in range(40):
        rng = random.Random(seed)
        prompt = [rng.randrange(5) for _ in range(rng.randint(1, 5))]
        model = InPlace(TableModel(seed, 5), prompt)
        L, stops = rng.randint(1, 16), random_stops(rng, 5, 16)
        for rule in (Coupled(Randomness(seed), 0.8), Rejection(Randomness(seed), 1.2, 3)):
            theirs = reference.autoregressive(model.model.verifier, prompt, L, rule=rule, **stops)
            ours = autoregressive(model.verifier, L, rule=rule, prompt_length=len(prompt), **stops)
            assert (ours.tokens, ours.finish_reason) == (theirs.tokens, theirs.finish_reason)


def test_coupled_samples_are_the_autoregressive_samples() -> None:
    matches, distinct = 0, set()
    for seed in range(60):
        rng = random.Random(seed)
        model = InPlace(TableModel(seed, 5, 0.8), [1, 2])
        W, L, stops = rng.randint(1, 6), rng.randint(1, 16), random_stops(rng, 5, 16)
        rule = Coupled(Randomness(seed), rng.choice([0.4, 1.0]), rng.choice([0, 2]), rng.choice([1.0, 0.8]))
        plain = autoregressive(model.verifier, L, rule=rule, prompt_length=2, **stops)
        distinct.add(tuple(plain.tokens))
        for run in (linear, packed, quadratic):
            got = run(model.verifier, model.drafter, W, L, rule=rule, prompt_length=2, **stops)
            assert (got.tokens, got.finish_reason) == (plain.tokens, plain.finish_reason)
            matches += sum(i.matches > 1 for i in got.iterations)
    assert matches > 50 and len(distinct) > 30


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_noise_of_a_position_is_used_at_most_once_per_stream(name: str) -> None:
    class Counting(Randomness):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self.uses: Counter[tuple[int, int]] = Counter()

        def uniform(self, position: int, stream: int) -> float:
            self.uses[position, stream] += 1
            return uniform(self.seed, position, stream)

        def gumbel(self, position: int, stream: int, vocab_size: int) -> list[float]:
            self.uses[position, stream] += 1
            return super().gumbel(position, stream, vocab_size)

    for seed in range(30):
        model, randomness = InPlace(TableModel(seed, 5, 0.6), PROMPT), Counting(seed)
        SCHEDULES[name](model.verifier, model.drafter, 4, 15, rule=Rejection(randomness), prompt_length=2)
        assert all(count == 1 for (_, stream), count in randomness.uses.items() if stream != DRAFT)
        tested = {position for position, stream in randomness.uses if stream == ACCEPT}
        assert tested and tested <= {position for position, stream in randomness.uses if stream == DRAFT}
        assert {position for position, _ in randomness.uses} == set(range(2, 17))


@pytest.mark.parametrize("order", ["confidence", right_to_left])
@pytest.mark.parametrize("name", SCHEDULES)
def test_sampling_in_another_order_is_refused_with_the_reason(name: str, order: Any) -> None:
    model = model_of_three_tokens()
    for kind in (Rejection, Coupled):
        with pytest.raises(ValueError, match="depend on the draws"):
            SCHEDULES[name](model.verifier, model.drafter, 4, 4, rule=kind(Randomness(0)), order=order)


def test_a_temperature_of_almost_nothing_is_greedy_in_any_order() -> None:
    rule = make_rule("rejection", 3, 0.9e-5)

    def model(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        return [[0.0, 1.0]] * len(U)

    assert packed(model, model, 4, 4, rule=rule, order="confidence").tokens == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", [Rejection, Coupled])
def test_failed_rows_end_the_generation_or_the_draft(kind: type[Rejection] | type[Coupled]) -> None:
    model = InPlace(TableModel(4, 5, 0.9), [1])
    for broken in range(1, 9):

        def verifier(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int], broken: int = broken) -> list[Sequence[float]]:
            return [[math.nan] * 5 if j == broken else row for j, row in zip(U, _rows(model, P, K, U), strict=True)]

        def drafter(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[Sequence[float]]:
            return [[-math.inf] * 5 if j % 4 == 0 else row for j, row in zip(U, model.drafter(P, K, U), strict=True)]

        for run in (linear, packed, quadratic):
            got = run(verifier, drafter, 5, 20, rule=kind(Randomness(broken)), prompt_length=1)
            assert (len(got.tokens), got.finish_reason) == (broken - 1, "error")
            assert max(i.matches for i in got.iterations) <= 3


def _rows(model: InPlace, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[Sequence[float]]:
    """The verifier's row; a uniform one where a missing draft leaves a gap, after which nothing is accepted."""
    known = {a.position for a in P} | {j for j, _ in K}
    return list(model.verifier(P, K, U)) if known == set(range(1, U[0])) else [[0.0] * 5 for _ in U]
