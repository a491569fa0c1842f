"""Greedy decoding: every schedule gives the AR text, with stops, stop sequences, limits and failed rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from packed_ss.reference import Generation, Greedy, autoregressive, branched, linear, packed, quadratic
from tests.reference.toy_models import TableModel

STARTS: list[dict[str, Any]] = [
    {"initial_extra_mask": False},
    {"initial_extra_mask": True},
    {"initial_extra_mask": False, "two_call_start": True},
]
Run = Callable[..., Generation]


def schedules(rng: random.Random, W: int) -> dict[str, tuple[Run, dict[str, Any]]]:
    """Every greedy algorithm under every start, with a random set of cuts."""
    cuts = {0, *rng.sample(range(W + 1), rng.randrange(W + 1))}
    runs: dict[str, tuple[Run, dict[str, Any]]] = {
        f"Algorithm 1 {mask}": (packed, {"initial_extra_mask": mask}) for mask in (False, True)
    }
    for start in STARTS:
        runs |= {
            f"linear {start}": (linear, {"rule": Greedy(), **start}),
            f"packed {start}": (branched, {"rule": Greedy(), "cuts": (0,), **start}),
            f"branched {sorted(cuts)} {start}": (branched, {"rule": Greedy(), "cuts": cuts, **start}),
            f"quadratic {start}": (quadratic, {"rule": Greedy(), **start}),
        }
    return runs


def random_stops(rng: random.Random, vocab_size: int) -> dict[str, Any]:
    ids = rng.sample(range(vocab_size), rng.choice([0, 0, 1]))
    sequences = [[rng.randrange(vocab_size) for _ in range(rng.choice([2, 3]))] for _ in range(rng.choice([0, 1, 2]))]
    return {"stop_ids": ids, "stop_sequences": sequences}


def greedy_text(model: TableModel, prompt: list[int], L: int, ids: Sequence[int], sequences: Sequence[list[int]]) -> Generation:
    """AR greedy written a second time: the whole text first, then the cut at its earliest stop."""
    text: list[int] = []
    while len(text) < L:
        row = model.row(prompt + text)
        text.append(row.index(max(row)))
    ends = [i + 1 for i, token in enumerate(text) if token in ids]
    ends += [i + len(s) for s in sequences for i in range(L - len(s) + 1) if text[i : i + len(s)] == s]
    text = text[: min(ends)] if ends else text
    return Generation(text, "stop" if ends else "length", [1] * len(text))


@pytest.mark.parametrize("block", range(8))
def test_every_schedule_gives_the_autoregressive_text(block: int) -> None:
    reasons, long_advances = set(), 0
    for seed in range(40 * block, 40 * (block + 1)):
        rng = random.Random(seed)
        W, L, vocab_size = rng.randint(1, 6), rng.randint(1, 24), rng.randint(2, 7)
        model = TableModel(seed, vocab_size, rng.choice([0.0, 0.6, 0.9, 1.0]), levels=rng.choice([2, 3, 4096]))
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 4))]
        stops = random_stops(rng, vocab_size)
        expected = greedy_text(model, prompt, L, stops["stop_ids"], stops["stop_sequences"])
        assert autoregressive(model.verifier, prompt, L, rule=Greedy(), **stops) == expected
        for name, (run, options) in schedules(rng, W).items():
            got = run(model.verifier, model.drafter, prompt, W, L, **options, **stops)
            assert (got.tokens, got.finish_reason) == (expected.tokens, expected.finish_reason), (seed, name)
            assert sum(got.advances) == len(expected.tokens) and got.nfe == len(got.advances)
            long_advances += sum(a > 2 for a in got.advances)
        reasons.add(expected.finish_reason)
    assert reasons == {"stop", "length"} and long_advances > 100  # the cases are not trivial


def test_algorithm_1_is_the_branched_schedule_with_cut_0() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        model = TableModel(seed, 4, 0.8)
        W, L, stops = rng.randint(1, 6), rng.randint(1, 24), random_stops(rng, 4)
        for mask in (False, True):
            one = packed(model.verifier, model.drafter, [1], W, L, initial_extra_mask=mask, **stops)
            other = branched(model.verifier, model.drafter, [1], W, L, cuts={0}, rule=Greedy(), initial_extra_mask=mask, **stops)
            assert one == other


def test_packed_on_a_worked_example() -> None:
    """The text is 0 1 2 3 ...; a proposal conditioned on c output tokens is right but at output position c + 4 (from 1)."""

    def one_hot(token: int) -> list[float]:
        return [float(v == token) for v in range(20)]

    def verifier(P: Sequence[int], D: Sequence[int]) -> list[list[float]]:
        return [one_hot(len(P) - 1 + i) for i in range(len(D) + 1)]

    def drafter(P: Sequence[int], m: int) -> list[list[float]]:
        return [one_hot(len(P) - 1 + j if j != 3 else 19) for j in range(m)]

    # W = 4.  Call 1 emits position 1 and keeps 2, 3 (right) and 4 (wrong); call 2 accepts two, corrects the third, and keeps only
    # position 5 of its proposal, which is wrong; call 3 corrects it and keeps 6, 7 (right) and 8 (wrong); and so on.
    got = packed(verifier, drafter, [0], 4, 12, initial_extra_mask=False)
    assert got == Generation(list(range(12)), "length", [1, 3, 1, 3, 1, 3])
    # With the extra mask, call 1 keeps the positions 2, 3 (right), 4 (wrong) and 5 (right); the rest is the same.
    assert packed(verifier, drafter, [0], 4, 12, initial_extra_mask=True).advances == [1, 3, 1, 3, 1, 3]
    assert linear(verifier, drafter, [0], 4, 12, rule=Greedy()).advances == [1, 3, 0, 4, 0, 4]
    assert linear(verifier, drafter, [0], 4, 12, rule=Greedy(), initial_extra_mask=False).advances == [0, 4, 0, 4, 0, 4]
    assert linear(verifier, drafter, [0], 4, 12, rule=Greedy(), two_call_start=True).advances == [1, 0, 4, 0, 4, 0, 3]
    # Quadratic drafts from one token less than the prefix: its fourth proposal is its third draft
    assert quadratic(verifier, drafter, [0], 4, 12, rule=Greedy()).advances == [1, 3, 3, 3, 2]


def test_no_call_is_made_for_no_tokens() -> None:
    model = TableModel(0)
    for run, options in schedules(random.Random(0), 3).values():
        assert run(model.verifier, model.drafter, [1], 3, 0, **options) == Generation([], "length", [])


def test_a_stop_at_the_first_token_ends_a_two_call_start_at_once() -> None:
    model = TableModel(0)
    first = autoregressive(model.verifier, [1], 1, rule=Greedy()).tokens
    for run in (linear, quadratic):
        got = run(model.verifier, model.drafter, [1], 3, 9, rule=Greedy(), two_call_start=True, stop_ids=first)
        assert got == Generation(first, "stop", [1])


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_failed_verifier_row_ends_with_error_and_keeps_what_came_before(bad: float) -> None:
    model = TableModel(3, 5, 0.9)
    text = autoregressive(model.verifier, [1, 2], 20, rule=Greedy()).tokens
    for broken_at in range(12):

        def verifier(P: Sequence[int], D: Sequence[int], after: int = broken_at) -> list[Sequence[float]]:
            rows: list[Sequence[float]] = list(model.verifier(P, D))
            return [[bad] * 5 if len(P) + i == 2 + after else row for i, row in enumerate(rows)]

        assert autoregressive(verifier, [1, 2], 20, rule=Greedy()).tokens == text[:broken_at]
        for name, (run, options) in schedules(random.Random(broken_at), 4).items():
            got = run(verifier, model.drafter, [1, 2], 4, 20, **options)
            assert (got.tokens, got.finish_reason) == (text[:broken_at], "error"), name
            # the limit or a stop that comes first decides
            if broken_at > 0:
                at_limit = run(verifier, model.drafter, [1, 2], 4, broken_at, **options)
                assert (at_limit.tokens, at_limit.finish_reason) == (text[:broken_at], "length")
                at_stop = run(verifier, model.drafter, [1, 2], 4, 20, stop_ids=[text[broken_at - 1]], **options)
                assert at_stop.finish_reason == "stop"


def test_a_failed_row_that_is_not_reached_does_no_harm() -> None:
    model = TableModel(5, 5, agreement=0.0)
    text = autoregressive(model.verifier, [1], 12, rule=Greedy()).tokens

    def verifier(P: Sequence[int], D: Sequence[int]) -> list[Sequence[float]]:
        rows: list[Sequence[float]] = list(model.verifier(P, D))
        right = [text[len(P) - 1 + i] == d if len(P) - 1 + i < 12 else False for i, d in enumerate(D)]
        h = right.index(False) if False in right else len(D)
        return [row if i <= h else [math.nan] * 5 for i, row in enumerate(rows)]

    for name, (run, options) in schedules(random.Random(1), 4).items():
        got = run(verifier, model.drafter, [1], 4, 12, **options)
        assert (got.tokens, got.finish_reason) == (text, "length"), name


def test_a_failed_proposal_row_shortens_the_draft() -> None:
    model = TableModel(7, 5, agreement=1.0)
    text = autoregressive(model.verifier, [1], 15, rule=Greedy()).tokens

    def drafter(P: Sequence[int], m: int) -> list[Sequence[float]]:
        return [row if j != 2 else [math.nan] * 5 for j, row in enumerate(model.drafter(P, m))]

    def no_drafter(P: Sequence[int], m: int) -> list[Sequence[float]]:
        return [[math.nan] * 5 for _ in range(m)]

    for name, (run, options) in schedules(random.Random(1), 5).items():
        got = run(model.verifier, drafter, [1], 5, 15, **options)
        assert (got.tokens, got.finish_reason) == (text, "length"), name
        assert max(got.advances) <= 3
        got = run(model.verifier, no_drafter, [1], 5, 15, **options)
        assert got.tokens == text and max(got.advances) == 1


@pytest.mark.parametrize("cuts", [(1, 2), (0, 5), (0, -1), ()])
def test_cuts_out_of_range_are_refused(cuts: tuple[int, ...]) -> None:
    model = TableModel(0)
    with pytest.raises(ValueError, match="cuts"):
        branched(model.verifier, model.drafter, [1], 4, 8, cuts=cuts, rule=Greedy())
