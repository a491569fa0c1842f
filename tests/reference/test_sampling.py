"""Sampled decoding: the exact joint law of rejection sampling, and the AR text itself under coupled sampling."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from packed_ss.reference import (
    ACCEPT,
    DRAFT,
    TARGET,
    Coupled,
    Generation,
    Greedy,
    Randomness,
    Rejection,
    autoregressive,
    branched,
    linear,
    make_rule,
    packed_sampling,
    quadratic,
    uniform,
)
from tests.reference.test_greedy import STARTS, random_stops
from tests.reference.toy_models import TableModel
from tests.support.enumeration import chi_square, chi_square_ok, exact_law

PROMPT, LENGTH = [1, 0], 3
Texts = Counter[tuple[int, ...]]


class SharedStreams(Randomness):
    """Broken on purpose: some streams are read from the draft's."""

    def __init__(self, seed: int, shared: tuple[int, ...]) -> None:
        super().__init__(seed)
        self.shared = shared

    def uniform(self, position: int, stream: int) -> float:
        return super().uniform(position, DRAFT if stream in self.shared else stream)

    def gumbel(self, position: int, stream: int, vocab_size: int) -> list[float]:
        return super().gumbel(position, DRAFT if stream in self.shared else stream, vocab_size)


def texts(generate: Callable[[int], Generation], seeds: int) -> Texts:
    return Counter(tuple(generate(seed).tokens) for seed in range(seeds))


def model_of_three_tokens() -> TableModel:
    return TableModel(113, vocab_size=3, agreement=0.3)


@pytest.mark.parametrize("initial_extra_mask", [False, True])
def test_algorithm_2_has_the_exact_joint_law(initial_extra_mask: bool) -> None:
    model = model_of_three_tokens()
    law = exact_law(model.verifier, PROMPT, LENGTH)
    assert len(law) == 27 and sum(law.values()) == pytest.approx(1.0, abs=1e-12)

    def generate(seed: int) -> Generation:
        mask = initial_extra_mask
        return packed_sampling(
            model.verifier, model.drafter, PROMPT, 3, LENGTH, randomness=Randomness(seed), initial_extra_mask=mask
        )

    assert chi_square_ok(texts(generate, 20_000), law)


@pytest.mark.parametrize(
    ("shared", "lawful"), [((), True), ((ACCEPT,), False), ((TARGET,), False)], ids=["none", "coin", "correction"]
)
def test_noise_that_the_draft_has_used_breaks_the_law(shared: tuple[int, ...], lawful: bool) -> None:
    """Same target and proposal at every position, chosen so that the residual's odds are far from the proposal's."""
    p, q = [[math.log(x) for x in row] for row in ([0.05, 0.4, 0.55], [0.6, 0.05, 0.35])]

    def verifier(P: Sequence[int], D: Sequence[int]) -> list[list[float]]:
        return [p] * (len(D) + 1)

    def drafter(P: Sequence[int], m: int) -> list[list[float]]:
        return [q] * m

    def generate(seed: int) -> Generation:
        return packed_sampling(verifier, drafter, PROMPT, 3, LENGTH, randomness=SharedStreams(seed, shared))

    assert chi_square_ok(texts(generate, 6_000), exact_law(verifier, PROMPT, LENGTH)) == lawful


def test_algorithm_2_with_stops_and_filters_has_the_exact_joint_law() -> None:
    model = model_of_three_tokens()
    filters: dict[str, Any] = {"temperature": 1.3, "top_k": 2, "top_p": 0.9}
    stops: dict[str, Any] = {"stop_ids": [2], "stop_sequences": [[0, 1]]}
    law = exact_law(model.verifier, PROMPT, LENGTH, [2], **filters, stop_sequences=[[0, 1]])
    assert {len(text) for text in law} == {1, 2, 3}

    def generate(seed: int) -> Generation:
        return packed_sampling(model.verifier, model.drafter, PROMPT, 3, LENGTH, randomness=Randomness(seed), **filters, **stops)

    assert chi_square_ok(texts(generate, 8_000), law)


@pytest.mark.parametrize("start", STARTS[1:], ids=["extra mask", "two calls"])
@pytest.mark.parametrize("run", [linear, quadratic, partial(branched, cuts=(0, 2))], ids=["linear", "quadratic", "branched"])
def test_other_schedules_have_the_exact_joint_law(run: Callable[..., Generation], start: dict[str, Any]) -> None:
    model = model_of_three_tokens()
    law = exact_law(model.verifier, PROMPT, LENGTH)

    def generate(seed: int) -> Generation:
        return run(model.verifier, model.drafter, PROMPT, 3, LENGTH, rule=Rejection(Randomness(seed)), **start)

    assert chi_square_ok(texts(generate, 4_000), law)


def test_autoregressive_sampling_has_the_exact_joint_law() -> None:
    model = model_of_three_tokens()
    law = exact_law(model.verifier, PROMPT, LENGTH, temperature=0.8)

    def generate(seed: int) -> Generation:
        return autoregressive(model.verifier, PROMPT, LENGTH, rule=Rejection(Randomness(seed), 0.8))

    counts = texts(generate, 6_000)
    assert chi_square_ok(counts, law)
    assert not chi_square_ok(counts, exact_law(model.verifier, PROMPT, LENGTH, temperature=1.0))


def test_algorithm_2_is_the_branched_schedule_with_cut_0() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        model = TableModel(seed, 5, 0.6)
        W, L, stops = rng.randint(1, 5), rng.randint(1, 16), random_stops(rng, 5)
        settings = (rng.choice([0.4, 1.0]), rng.choice([0, 2]), rng.choice([1.0, 0.8]))
        for mask in (False, True):
            one = packed_sampling(
                model.verifier,
                model.drafter,
                [1],
                W,
                L,
                randomness=Randomness(seed),
                temperature=settings[0],
                top_k=settings[1],
                top_p=settings[2],
                initial_extra_mask=mask,
                **stops,
            )
            rule = Rejection(Randomness(seed), *settings)
            other = branched(model.verifier, model.drafter, [1], W, L, cuts={0}, rule=rule, initial_extra_mask=mask, **stops)
            assert one == other


def test_coupled_sampling_gives_the_autoregressive_text_of_the_seed() -> None:
    long_advances, distinct = 0, set()
    for seed in range(60):
        rng = random.Random(seed)
        model = TableModel(seed, 5, 0.8)
        W, L, stops = rng.randint(1, 6), rng.randint(1, 16), random_stops(rng, 5)
        rule = Coupled(Randomness(seed), rng.choice([0.4, 1.0]), rng.choice([0, 2]), rng.choice([1.0, 0.8]))
        plain = autoregressive(model.verifier, [1, 2], L, rule=rule, **stops)
        distinct.add(tuple(plain.tokens))
        cuts = {0, *rng.sample(range(W + 1), rng.randrange(W + 1))}
        for start in STARTS:
            for run in (linear, quadratic, partial(branched, cuts=(0,)), partial(branched, cuts=cuts)):
                got = run(model.verifier, model.drafter, [1, 2], W, L, rule=rule, **start, **stops)
                assert (got.tokens, got.finish_reason) == (plain.tokens, plain.finish_reason)
                long_advances += sum(a > 2 for a in got.advances)
    assert long_advances > 100 and len(distinct) > 30


@pytest.mark.parametrize("kind", [Rejection, Coupled])
def test_a_draft_from_the_target_itself_is_always_accepted(kind: type[Rejection] | type[Coupled]) -> None:
    rows = TableModel(1, 5)

    def verifier(P: Sequence[int], D: Sequence[int]) -> list[Sequence[float]]:
        return [rows.row([(len(P) + i) % 5]) for i in range(len(D) + 1)]

    def drafter(P: Sequence[int], m: int) -> list[Sequence[float]]:
        return [rows.row([(len(P) + j) % 5]) for j in range(m)]

    for seed in range(40):
        rule = kind(Randomness(seed), 0.8)
        assert linear(verifier, drafter, [1], 4, 16, rule=rule).advances == [1, 5, 0, 5, 0, 5]
        assert branched(verifier, drafter, [1], 4, 12, cuts=(0,), rule=rule).advances == [1, 5, 1, 4, 1]


@pytest.mark.parametrize("kind", [Rejection, Coupled])
def test_failed_rows_end_the_generation_or_the_draft(kind: type[Rejection] | type[Coupled]) -> None:
    model = TableModel(4, 5, 0.9)
    for broken_at in range(8):

        def verifier(P: Sequence[int], D: Sequence[int], after: int = broken_at) -> list[Sequence[float]]:
            return [[math.nan] * 5 if len(P) + i == 1 + after else row for i, row in enumerate(model.verifier(P, D))]

        def drafter(P: Sequence[int], m: int) -> list[Sequence[float]]:
            return [[-math.inf] * 5 if j == 3 else row for j, row in enumerate(model.drafter(P, m))]

        for run in (linear, quadratic, partial(branched, cuts=(0,))):
            rule = kind(Randomness(broken_at))
            got = run(verifier, drafter, [1], 5, 20, rule=rule)
            assert (len(got.tokens), got.finish_reason) == (broken_at, "error")
            assert max(got.advances) <= 4
        got = packed_sampling(verifier, drafter, [1], 5, 20, randomness=Randomness(broken_at))
        assert (len(got.tokens), got.finish_reason) == (broken_at, "error")


def test_the_same_seed_gives_the_same_text_and_others_do_not() -> None:
    model = TableModel(2, 5)

    def text(seed: int) -> tuple[int, ...]:
        return tuple(branched(model.verifier, model.drafter, [1], 3, 12, cuts=(0,), rule=Rejection(Randomness(seed))).tokens)

    assert text(5) == text(5) and len({text(seed) for seed in range(50)}) > 45


def test_rules_by_name() -> None:
    assert isinstance(make_rule("greedy"), Greedy)
    assert isinstance(make_rule("rejection", 1, 0.9e-5), Greedy)
    assert isinstance(make_rule("rejection", 1, 1e-5), Rejection)
    assert isinstance(make_rule("coupled", 1, 0.7, 3, 0.9), Coupled)
    with pytest.raises(ValueError, match="'typical'"):
        make_rule("typical")


def test_one_hot_targets_are_never_left() -> None:
    """Top-k 1 makes p a point mass: every algorithm follows it, whatever the noise."""
    model = TableModel(9, 5, 0.5)
    text = autoregressive(model.verifier, [1], 10, rule=Greedy()).tokens
    for seed in range(100):
        rule = Rejection(Randomness(seed), top_k=1)
        assert branched(model.verifier, model.drafter, [1], 3, 10, cuts=(0,), rule=rule).tokens == text


def test_the_noise_of_a_position_is_used_at_most_once_per_stream() -> None:
    """What makes position-keyed noise exact: one coin and one target draw at a position, whatever the schedule."""

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

    for seed in range(40):
        model = TableModel(seed, 5, 0.6)
        for run in (linear, quadratic, partial(branched, cuts=(0,)), partial(branched, cuts=(0, 2))):
            randomness = Counting(seed)
            run(model.verifier, model.drafter, [1], 4, 15, rule=Rejection(randomness))
            assert all(count == 1 for (_, stream), count in randomness.uses.items() if stream != DRAFT)
            tested = {position for position, stream in randomness.uses if stream == ACCEPT}
            assert tested <= {position for position, stream in randomness.uses if stream == DRAFT}


def test_exact_law_of_a_deterministic_and_a_stopped_text() -> None:
    model = model_of_three_tokens()
    greedy = autoregressive(model.verifier, PROMPT, LENGTH, rule=Greedy()).tokens
    assert exact_law(model.verifier, PROMPT, LENGTH, temperature=0.0) == {tuple(greedy): 1.0}

    def coin(P: Sequence[int], D: Sequence[int]) -> list[list[float]]:
        return [[0.0, 0.0]]

    assert exact_law(coin, [0], 3, stops=[1]) == {(1,): 0.5, (0, 1): 0.25, (0, 0, 1): 0.125, (0, 0, 0): 0.125}
    assert exact_law(coin, [0], 2, stop_sequences=[[0]]) == {(0,): 0.5, (1, 0): 0.25, (1, 1): 0.25}


def test_chi_square_merges_small_cells_and_refuses_impossible_texts() -> None:
    law = {(0,): 0.5, (1,): 0.46, (2,): 0.03, (3,): 0.01}
    assert chi_square({(0,): 50, (1,): 46, (2,): 3, (3,): 1}, law) == (pytest.approx(0.0, abs=1e-9), 1)  # 0, and 1 with the rest
    assert chi_square({(0,): 500, (1,): 460, (2,): 30, (3,): 10}, law) == (pytest.approx(0.0, abs=1e-9), 3)
    statistic, degrees = chi_square({(0,): 520, (1,): 440, (2,): 30, (3,): 10}, law)
    assert (statistic, degrees) == (pytest.approx(400 / 500 + 400 / 460), 3)
    assert chi_square_ok({(0,): 520, (1,): 440, (2,): 30, (3,): 10}, law)
    assert not chi_square_ok({(0,): 650, (1,): 310, (2,): 30, (3,): 10}, law)
    assert not chi_square_ok({(0,): 500, (1,): 460, (2,): 29, (3,): 10, (4,): 1}, law)
    assert not chi_square_ok({(4,): 1}, {(0,): 1.0})
    assert chi_square_ok({(0,): 7}, {(0,): 1.0})
    with pytest.raises(ValueError, match="no texts"):
        chi_square({}, law)
