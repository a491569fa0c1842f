"""Schedules in any order: left to right is autoregressive, rows per call, dominance, confidence, and the native decoder."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate, pairwise, zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_ss.reference import ordered_schedules
from packed_ss.reference.ordered import Accepted, Iteration, OrderedGeneration, Pair, packed
from packed_ss.reference.ordered_schedules import autoregressive, branched, linear, native, quadratic
from tests.reference.test_ordered import random_stops, right_to_left, runs, shuffled
from tests.reference.toy_models import AnyOrderModel, FixedText, ThresholdModel

# Left to right


def greedy_text(
    model: AnyOrderModel, L: int, stop_ids: Sequence[int], stop_sequences: Sequence[list[int]]
) -> tuple[list[int], str]:
    """Greedy left to right written a second time: the whole text first, then the cut at its earliest stop."""
    P: list[Accepted] = []
    for j in range(1, L + 1):
        row = model(P, [], [j])[0]
        P.append(Accepted(j, row.index(max(row)), tuple(P)))
    text = [a.token for a in P]
    stops = [i + 1 for i, token in enumerate(text) if token in stop_ids]
    stops += [i + len(s) for s in stop_sequences for i in range(L - len(s) + 1) if text[i : i + len(s)] == s]
    return (text[: min(stops)], "stop") if stops else (text, "length")


@pytest.mark.parametrize("block", range(4))
def test_every_schedule_left_to_right_gives_the_autoregressive_text(block: int) -> None:
    reasons, matches = set(), 0
    for seed in range(40 * block, 40 * (block + 1)):
        rng = random.Random(seed)
        W, L, vocab_size = rng.randint(1, 8), rng.randint(1, 24), rng.randint(2, 7)
        model = AnyOrderModel(seed, vocab_size, rng.choice([0.0, 0.8, 1.0]), levels=rng.choice([2, 3, 4096]))
        stops = random_stops(rng, vocab_size, L)
        expected = greedy_text(model, L, **stops)
        plain = autoregressive(model, L, **stops)
        assert (plain.tokens, plain.finish_reason) == expected and plain.advances == [0] + [1] * len(plain.tokens)
        for name, (run, options) in runs(W, seed).items():
            got = run(model, model, W, L, **options, **stops)
            assert (got.tokens, got.finish_reason) == expected, (seed, name)
            assert sum(got.advances) == len(got.tokens)
            matches += sum(i.matches > 1 for i in got.iterations)
        got = native(model, 1, L, **stops)
        assert (got.tokens, got.finish_reason) == expected
        reasons.add(expected[1])
    assert reasons == {"stop", "length"} and matches > 50


def test_another_order_gives_another_text() -> None:
    texts = {
        tuple(packed(model, model, 6, 20, order=order).tokens)
        for model in [AnyOrderModel(7)]
        for order in ("left_to_right", right_to_left, shuffled(0), shuffled(1))
    }
    assert len(texts) == 4


# Rows per call (Table 2)


def waiting(iterations: Sequence[Iteration]) -> list[int]:
    """p of each iteration, where no stop comes: 1 after a correction, 0 at first and after a window that matched whole."""
    return [0, *(i.accepted - i.matches for i in iterations[:-1])]


def test_rows_of_every_call_are_those_of_table_2() -> None:
    most: dict[tuple[str, int], int] = {}
    for W in (1, 3, 8, 16):
        for seed in range(12):
            model = AnyOrderModel(seed, 5, 0.85)
            for order in ("left_to_right", "confidence", shuffled(seed)):
                results = {
                    "packed": packed(model, model, W, 40, order=order),
                    "linear": linear(model, model, W, 40, order=order),
                    "quadratic": quadratic(model, model, W, 40, order=order),
                }
                for name, got in results.items():
                    for p, i in zip(waiting(got.iterations), got.iterations, strict=True):
                        u = len(i.order)
                        assert p in (0, 1) and u <= W
                        expected = {"packed": (p + 3 * u,), "linear": (p + u, 2 * u), "quadratic": (p + 2 * u + u * u,)}
                        assert i.rows == expected[name]
                        most[name, W] = max(most.get((name, W), 0), sum(i.rows))
            got = autoregressive(model, 20)
            assert [i.rows for i in got.iterations] == [(p + 1,) for p in waiting(got.iterations)]
    assert {key: rows for key, rows in most.items() if key[1] > 3} == {
        ("packed", 8): 25,
        ("packed", 16): 49,
        ("linear", 8): 25,
        ("linear", 16): 49,
        ("quadratic", 8): 81,
        ("quadratic", 16): 289,
    }


def test_a_branch_has_the_rows_of_the_whole_window() -> None:
    model = FixedText([1, 2, 3, 4, 5, 6, 7, 8])
    got = branched(model, model.wrong_at(3, 6), 4, 8, cuts={0, 2, 3})
    assert [i.order for i in got.iterations[-2:]] == [(4, 5, 6, 7), (7, 8)]
    assert [i.rows for i in got.iterations] == [(4 * 5,), (1 + 4 * 5,), (1 + 4 * 5,), (1 + 2 * 3,)]  # only cut 0 is below u = 2


# Calls of a schedule


def lengths(advances: Sequence[int]) -> list[int]:
    return list(accumulate(advances))


def dominates(ahead: OrderedGeneration, behind: OrderedGeneration) -> bool:
    """Whether the accepted length after every number of calls is at least the other's (a finished one stays where it is)."""
    pairs = zip_longest(lengths(ahead.advances), lengths(behind.advances))
    return all(x is None or y is None or x >= y for x, y in pairs) and ahead.nfe <= behind.nfe


class Thresholds:
    """Assumption 3.1 left to right: the draft of position k is right iff k - 1 >= c >= c*_k for a context of c tokens."""

    def __init__(self, c_star: Sequence[int]) -> None:
        self.model = ThresholdModel(c_star, 0)

    def verifier(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        return [[float(v == self.model.text(j)) for v in range(5)] for j in U]

    def drafter(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        context = len(P) + len(K)
        right = [context >= self.model.threshold(j) for j in U]
        return [[float(v == (self.model.text(j) if known else 4)) for v in range(5)] for j, known in zip(U, right, strict=True)]


thresholds = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 3)), min_size=20, max_size=40)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(thresholds, st.integers(1, 6))
def test_packed_needs_no_more_calls_than_linear(c_star: list[int], W: int) -> None:
    """Theorem 3.2 with the prompt's call on both sides, and more branches never hurt."""
    toy = Thresholds(c_star)
    for L in (*range(1, 20), 30):
        results = [
            run(toy.verifier, toy.drafter, W, L, **options)
            for run, options in ((quadratic, {}), (branched, {"cuts": {0, W // 2}}), (packed, {}), (linear, {}))
        ]
        assert all(got.tokens == [toy.model.text(k) for k in range(1, L + 1)] for got in results)
        assert all(dominates(one, other) for one, other in pairwise(results))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(thresholds, st.integers(1, 6), st.sets(st.integers(0, 3), max_size=2), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_packed_needs_no_more_calls_than_linear_with_stops(c_star: list[int], W: int, ids: set[int], sequence: list[int]) -> None:
    toy = Thresholds(c_star)
    stops: dict[str, Any] = {"stop_ids": ids, "stop_sequences": [sequence]}
    ours, theirs = (run(toy.verifier, toy.drafter, W, 30, **stops) for run in (packed, linear))
    assert (ours.tokens, ours.finish_reason) == (theirs.tokens, theirs.finish_reason)
    assert dominates(ours, theirs)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(thresholds, st.integers(1, 6))
def test_linear_advances_to_the_first_wrong_draft(c_star: list[int], W: int) -> None:
    """Lemma B.1 without a token outside the window: F(c) = min{c + W, first k > c with c*_k > c}."""
    toy = Thresholds(c_star)
    L, c, expected = 30, 0, [0]
    while c < L:
        c_next = next((k for k in range(c + 1, c + W + 1) if toy.model.threshold(k) > c), c + W)
        expected += [0, min(L, c_next) - c]
        c = c_next
    assert linear(toy.verifier, toy.drafter, W, L).advances == expected


def test_a_draft_that_more_context_makes_wrong_breaks_dominance() -> None:
    """A negative control: without Assumption 3.1 packed can need more calls."""

    def drafter(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        context = len(P) + len(K)
        return [model.row(model.text[min(j, 30) - 1] if context % 4 == 0 else 9) for j in U]

    model = FixedText([j % 7 for j in range(30)])
    assert packed(model, drafter, 4, 30).nfe > linear(model, drafter, 4, 30).nfe


@pytest.mark.parametrize("cuts", [(1, 2), (0, 4), (0, -1), ()])
def test_cuts_out_of_range_are_refused(cuts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"lie in 0 \.\.\. 3"):
        branched(FixedText([1]), FixedText([1]), 4, 8, cuts=cuts)


# Confidence (App. E.6)


class Scored(FixedText):
    """One-hot logits whose weight at a position is a function of the position and of how much context there is."""

    def __init__(self, text: Sequence[int], weight: Any) -> None:
        super().__init__(text)
        self.weight = weight
        self.queries: list[tuple[list[int], list[int], list[int]]] = []

    def __call__(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        self.queries.append(([a.position for a in P], [j for j, _ in K], list(U)))
        return [self.row(self.text[min(j, len(self.text)) - 1], self.weight(j, len(P), len(K))) for j in U]


def test_packed_ranks_by_the_drafters_probability_in_the_call_before() -> None:
    model = FixedText([1, 2, 3, 4, 5, 6])
    drafter = Scored([1, 2, 3, 4, 5, 6], lambda j, p, k: {2: 1.0, 3: 3.0, 4: 2.0, 5: 2.0, 6: 0.5}.get(j, 4.0) if p < 2 else 1.0)
    wrong = {3}

    def some_wrong(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        rows = drafter(P, K, U)
        return [model.row(9, max(row)) if j in wrong else row for j, row in zip(U, rows, strict=True)]

    got = packed(model, some_wrong, 5, 6, order="confidence")
    # In reading order without scores; then by score, with 4 before 5, and 6, which has no draft, last: 3 is wrong and corrected.
    # In call 3 the scores of call 2 (one accepted) count; 6 was outside of the window then only if it is new, which it is not.
    assert [i.order for i in got.iterations] == [(1, 2, 3, 4, 5), (3, 4, 5, 2, 6), (4, 5, 2, 6)]
    assert [(i.matches, i.accepted) for i in got.iterations] == [(0, 1), (0, 1), (4, 4)]


def test_quadratic_ranks_by_the_selected_branch() -> None:
    """Scores grow with position in the branch of one accepted draft, and fall with it in the others."""
    model = FixedText([1, 2, 3, 4, 5, 6])
    drafter = Scored([1, 9, 3, 9, 5, 6], lambda j, p, k: 1.0 + (j if k == 1 else 10 - j) / 10)
    got = quadratic(model, drafter, 4, 6, order="confidence")
    # Call 1 accepts 1; branch 0 is selected, so 2 3 4 5 in falling order.  Call 2 corrects 2.  Call 3: 3 matches, 4 is corrected
    # after one accepted draft, so branch 1 is selected, whose scores grow.
    assert [i.order for i in got.iterations] == [(1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6), (6, 5)]
    assert [i.matches for i in got.iterations] == [0, 0, 1, 2]


def test_linear_ranks_by_the_verifiers_top_probability_in_the_iteration_before() -> None:
    verifier = Scored([1, 2, 3, 4, 5, 6, 7], lambda j, p, k: {3: 1.0, 4: 3.0, 5: 2.0}.get(j, 4.0))
    model = FixedText([1, 2, 3, 4, 5, 6, 7])
    got = linear(verifier, model.wrong_at(2), 5, 7, order="confidence")
    # Iteration 1: reading order; 1 matches, 2 is corrected.  Iteration 2: 3 4 5 by the verifier, then 6 and 7, new.
    assert [i.order for i in got.iterations] == [(1, 2, 3, 4, 5), (4, 5, 3, 6, 7)]
    # Every rank has a verifier row, which sees the drafts at all earlier ranks, the rejected one too
    assert verifier.queries[:5] == [([], [1, 2, 3, 4][:r], [r + 1]) for r in range(5)]
    assert verifier.queries[5:] == [([1, 2], [4, 5, 3, 6][:r], [[4, 5, 3, 6, 7][r]]) for r in range(5)]


def test_what_a_call_asks_for() -> None:
    """Algorithm 3's verifier rows reach to the first missing draft; its proposals see accepted tokens only."""
    verifier, drafter = Scored([1, 2, 3, 4, 5], lambda *_: 1.0), Scored([1, 2, 3, 4, 5], lambda *_: 1.0)
    for run in (packed, lambda *given: branched(*given, cuts={0})):
        verifier.queries.clear()
        drafter.queries.clear()
        run(verifier, drafter, 3, 5)
        assert verifier.queries == [([], [], [1]), ([1], [], [2]), ([1], [2], [3]), ([1], [2, 3], [4]), ([1, 2, 3, 4], [], [5])]
        assert drafter.queries == [([], [], [1, 2, 3]), ([1], [], [2, 3, 4]), ([1, 2, 3, 4], [], [5])]
    drafter.queries.clear()
    quadratic(verifier, drafter, 3, 5)
    assert drafter.queries == [
        ([], [], [1, 2, 3]),
        ([1], [], [2, 3, 4]),
        ([1], [2], [2, 3, 4]),
        ([1], [2, 3], [2, 3, 4]),
        ([1, 2, 3, 4], [], [5]),
    ]


# Native


def probability_row(token: int, p: float, vocab_size: int = 4) -> list[float]:
    """Logits whose softmax gives ``p`` to a token and the same to each of the others."""
    return [math.log(p if v == token else (1 - p) / (vocab_size - 1)) for v in range(vocab_size)]


class Confident:
    """Token j % 3 at position j, with a probability per (position, number of accepted tokens), 0.3 where none is given."""

    def __init__(self, given: dict[tuple[int, int], float]) -> None:
        self.given = given
        self.seen: list[list[tuple[int, list[int]]]] = []

    def __call__(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        assert not K
        self.seen.append([(a.position, [b.position for b in a.seen]) for a in P])
        return [probability_row(j % 3, self.given.get((j, len(P)), 0.3)) for j in U]


def test_native_commits_the_sure_positions_or_the_best_one() -> None:
    model = Confident({(1, 0): 0.4, (2, 0): 0.95, (4, 0): 0.91, (3, 2): 0.6, (5, 2): 0.6, (1, 2): 0.5})
    got = native(model, 4, 6)
    # 2 and 4 are sure; then 3 is the best of 1 3 (the window is 1 ... 4 until 1 is resolved); then 1; then 5 6, one by one
    assert [i.accepted for i in got.iterations] == [2, 1, 1, 1, 1] and got.advances == [0, 2, 1, 1, 1, 1]
    assert [i.order for i in got.iterations] == [(1, 2, 3, 4), (1, 3), (1,), (5, 6), (6,)]
    assert [i.rows for i in got.iterations] == [(4,), (2 + 2,), (1 + 1,), (1 + 2,), (1 + 1,)]
    assert got.tokens == [1, 2, 0, 1, 2, 0] and got.finish_reason == "length"
    assert model.seen[1] == [(2, []), (4, [2])]  # in textual order, each after those before it
    assert model.seen[-1] == [(2, []), (4, [2]), (3, [2, 4]), (1, [2, 4, 3]), (5, [2, 4, 3, 1])]


def test_native_thresholds_and_ties() -> None:
    assert [i.accepted for i in native(Confident({(j, 0): 0.9000001 for j in (2, 3)}), 4, 4).iterations] == [2, 1, 1]
    assert [i.accepted for i in native(Confident({(j, 0): 0.8999999 for j in (2, 3)}), 4, 4).iterations] == [1, 1, 1, 1]
    assert [i.accepted for i in native(Confident({(j, 0): 0.89 for j in (2, 3)}), 4, 4, threshold=0.8).iterations] == [2, 1, 1]
    even = native(lambda P, K, U: [[0.0, 0.0]] * len(U), 4, 4, threshold=0.5)  # exactly at the threshold
    assert [i.accepted for i in even.iterations] == [4]
    model = Confident({})
    native(model, 4, 4)
    assert [a for a, _ in model.seen[-1]] == [1, 2, 3]  # equal ones from the left


def test_native_ends_like_the_others() -> None:
    sure = {(j, 0): 0.95 for j in (3, 4, 6)}
    got = native(Confident(sure), 6, 9, stop_sequences=[[0, 1]])  # positions 3 and 4
    assert got.tokens == [1, 2, 0, 1] and got.finish_reason == "stop" and got.advances == [0, 2, 1, 1]
    assert [i.rows for i in got.iterations] == [(6,), (2 + 2,), (1 + 1,)]  # 6 is dropped before its row is processed
    assert native(Confident({}), 8, 3).finish_reason == "length" and native(Confident({}), 8, 0).nfe == 0
    most = max(sum(i.rows) for i in native(Confident({(j, n): 1 - 1e-9 for j in range(40) for n in range(40)}), 8, 30).iterations)
    assert most == 16


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_native_stops_at_a_failed_row_and_keeps_what_came_before(bad: float) -> None:
    sure = Confident({(j, 0): 0.95 for j in (1, 2, 4)})

    def broken(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        return [[bad] * 4 if j == 3 else row for j, row in zip(U, sure(P, K, U), strict=True)]

    got = native(broken, 4, 8)
    assert (got.tokens, got.finish_reason, got.nfe) == ([1, 2], "error", 2)
    assert native(broken, 4, 8, stop_ids=[2]).finish_reason == "stop"  # at 2, before the failed row
    assert native(lambda P, K, U: [[bad] * 4 for _ in U], 4, 8).tokens == []


def test_the_schedules_share_the_parts_of_algorithm_3() -> None:
    assert ordered_schedules.accept.__module__ == ordered_schedules.finished.__module__ == "packed_ss.reference.ordered"
