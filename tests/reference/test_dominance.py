"""Theorem 3.2 and the counts of a call, on synthetic drafters that satisfy Assumption 3.1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from packed_ss.reference import Greedy, branched, linear, packed, quadratic
from tests.reference.toy_models import TableModel, ThresholdModel

PROMPT = [3, 1, 2]
STARTS: list[dict[str, Any]] = [
    {"initial_extra_mask": False},
    {"initial_extra_mask": True},
    {"initial_extra_mask": False, "two_call_start": True},
]
thresholds = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 3)), min_size=20, max_size=40)
widths = st.integers(1, 6)


def lengths(advances: Sequence[int]) -> list[int]:
    return list(accumulate(advances))


def dominates(ahead: Sequence[int], behind: Sequence[int]) -> bool:
    """Whether the verified length after every number of calls is at least the other's (a finished one stays where it is)."""
    pairs = zip_longest(lengths(ahead), lengths(behind))
    return all(x is None or y is None or x >= y for x, y in pairs) and len(ahead) <= len(behind)


@settings(max_examples=70, deadline=None, derandomize=True)
@given(thresholds, widths)
def test_packed_needs_no_more_calls_than_linear(c_star: list[int], W: int) -> None:
    model = ThresholdModel(c_star, len(PROMPT))
    for start in STARTS:
        for L in range(1, 31):
            text = [model.text(k) for k in range(1, L + 1)]
            ours = branched(model.verifier, model.drafter, PROMPT, W, L, cuts=(0,), rule=Greedy(), **start)
            theirs = linear(model.verifier, model.drafter, PROMPT, W, L, rule=Greedy(), **start)
            assert ours.tokens == theirs.tokens == text
            assert ours.nfe <= theirs.nfe
            assert dominates(ours.advances, theirs.advances)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(thresholds, widths, st.sets(st.integers(0, 3), max_size=2), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_packed_needs_no_more_calls_than_linear_with_stops(c_star: list[int], W: int, ids: set[int], sequence: list[int]) -> None:
    model = ThresholdModel(c_star, len(PROMPT))
    stops: dict[str, Any] = {"stop_ids": ids, "stop_sequences": [sequence]}
    for start in STARTS:
        ours = branched(model.verifier, model.drafter, PROMPT, W, 30, cuts=(0,), rule=Greedy(), **start, **stops)
        theirs = linear(model.verifier, model.drafter, PROMPT, W, 30, rule=Greedy(), **start, **stops)
        assert (ours.tokens, ours.finish_reason) == (theirs.tokens, theirs.finish_reason)
        assert dominates(ours.advances, theirs.advances)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(thresholds, widths)
def test_linear_advances_as_lemma_b1_says(c_star: list[int], W: int) -> None:
    """F(c) = min{c + W + 1, first k > c with c*_k > c}, equation 6; one propose and one verify call each."""
    model = ThresholdModel(c_star, len(PROMPT))
    L, c, expected = 30, 0, []
    while c < L:
        c_next = next((k for k in range(c + 1, c + W + 1) if model.threshold(k) > c), c + W + 1)
        expected += [0, min(L, c_next) - c]
        c = c_next
    assert linear(model.verifier, model.drafter, PROMPT, W, L, rule=Greedy(), initial_extra_mask=False).advances == expected


class Recorder:
    """Wraps a verifier and keeps |D| of each call."""

    def __init__(self, model: TableModel | ThresholdModel) -> None:
        self.model = model
        self.draft_lengths: list[int] = []

    def verifier(self, P: Sequence[int], D: Sequence[int]) -> Sequence[Sequence[float]]:
        self.draft_lengths.append(len(D))
        return self.model.verifier(P, D)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(thresholds, widths, st.integers(1, 30), st.integers(0, 2**31))
def test_counts_of_every_call(c_star: list[int], W: int, L: int, seed: int) -> None:
    """Each packed call appends at least one token and at most |D| + 1; |D| = W - a, W after the prefill with the extra mask."""
    for model in (ThresholdModel(c_star, len(PROMPT)), TableModel(seed, 4, 0.8)):
        for mask in (False, True):
            seen = Recorder(model)
            advances = packed(seen.verifier, model.drafter, PROMPT, W, L, initial_extra_mask=mask).advances
            kept = [(W + 1 if i == 0 and mask else W) - a for i, a in enumerate(advances)]
            assert seen.draft_lengths == [0, *(max(0, d) for d in kept[:-1])]
            assert all(1 <= a <= d + 1 for a, d in zip(advances, seen.draft_lengths, strict=True))
            assert all(d <= W - 1 for d in seen.draft_lengths[2:])

            seen = Recorder(model)
            advances = linear(seen.verifier, model.drafter, PROMPT, W, L, rule=Greedy(), initial_extra_mask=mask).advances
            assert seen.draft_lengths == ([0] if mask else []) + [W] * (len(seen.draft_lengths) - mask)
            assert advances[0 if not mask else 2 :: 2] == [0] * len(advances[0 if not mask else 2 :: 2])

            seen = Recorder(model)
            advances = quadratic(seen.verifier, model.drafter, PROMPT, W, L, rule=Greedy(), initial_extra_mask=mask).advances
            assert seen.draft_lengths == [0, W if mask else W - 1, *[W - 1] * (len(advances) - 2)][: len(advances)]
            assert all(1 <= a <= d + 1 for a, d in zip(advances, seen.draft_lengths, strict=True))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(thresholds, widths, st.sets(st.integers(0, 6)))
def test_more_branches_never_need_more_calls(c_star: list[int], W: int, cuts: set[int]) -> None:
    """Under Assumption 3.1 a later cut knows more: packed, then any subset of branches, then quadratic."""
    model = ThresholdModel(c_star, len(PROMPT))
    some = {0, *(c for c in cuts if c <= W)}
    runs = [branched(model.verifier, model.drafter, PROMPT, W, 25, cuts=c, rule=Greedy()) for c in ({0}, some, range(W + 1))]
    assert runs[0].nfe >= runs[1].nfe >= runs[2].nfe
    assert dominates(runs[1].advances, runs[0].advances) and dominates(runs[2].advances, runs[1].advances)
