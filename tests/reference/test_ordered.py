"""Algorithm 3 against its serial reference, where it ends, and what its rows see."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from packed_ss.reference import Stops, ordered, ordered_schedules
from packed_ss.reference.ordered import Accepted, Iteration, OrderedGeneration, Pair, accept, choose, ends, packed, serial, window
from packed_ss.reference.ordered_schedules import branched, linear, quadratic
from tests.reference.toy_models import AnyOrderModel, FixedText

Run = Callable[..., OrderedGeneration]


def shuffled(seed: int) -> Callable[[Sequence[int]], list[int]]:
    """An order function: a random permutation of the window, the same for the same window."""

    def order(U: Sequence[int]) -> list[int]:
        return random.Random(f"{seed} {list(U)}").sample(list(U), len(U))

    return order


def right_to_left(U: Sequence[int]) -> list[int]:
    return list(U)[::-1]


def random_stops(rng: random.Random, vocab_size: int, L: int) -> dict[str, Any]:
    """Rare enough for texts of some length: a stop sequence of two or three tokens, or a stop id now and then."""
    ids = rng.sample(range(vocab_size), rng.choice([0, 0, 0, 1]))
    sequences = [[rng.randrange(vocab_size) for _ in range(rng.choice([2, 2, 3]))] for _ in range(rng.choice([0, 1, 2]))]
    return {"stop_ids": ids, "stop_sequences": sequences}


def cases(count: int) -> list[tuple[int, AnyOrderModel, int, int, dict[str, Any], ordered.Order]]:
    """Random models, windows W, limits L, stops and orders; W is larger than L in some."""
    found = []
    for seed in range(count):
        rng = random.Random(seed)
        W, L, vocab_size = rng.randint(1, 8), rng.randint(1, 24), rng.randint(2, 7)
        model = AnyOrderModel(seed, vocab_size, rng.choice([0.0, 0.7, 0.9, 1.0]), levels=rng.choice([2, 3, 4096]))
        order = rng.choice(["left_to_right", "confidence", right_to_left, shuffled(seed), shuffled(seed)])
        found.append((seed, model, W, L, random_stops(rng, vocab_size, L), order))
    return found


def runs(W: int, seed: int) -> dict[str, tuple[Run, dict[str, Any]]]:
    """Every greedy schedule that verifies drafts."""
    cuts = {0, *random.Random(seed).sample(range(W), random.Random(seed).randrange(W))}
    return {
        "Algorithm 3": (packed, {}),
        "linear": (linear, {}),
        "quadratic": (quadratic, {}),
        f"branched {sorted(cuts)}": (branched, {"cuts": cuts}),
    }


# Proposition C.1


@pytest.mark.parametrize("block", range(6))
def test_every_schedule_in_every_order_is_its_serial_reference(block: int) -> None:
    reasons, matches, dropped = set(), 0, 0
    for seed, model, W, L, stops, order in cases(60 * (block + 1))[60 * block :]:
        for name, (run, settings) in runs(W, seed).items():
            got = run(model, model, W, L, order=order, **settings, **stops)
            assert serial(model, L, got.iterations, **stops) == got.tokens, (seed, name)
            assert all(1 <= i.accepted <= min(i.matches + 1, len(i.order)) for i in got.iterations)
            assert sum(i.accepted for i in got.iterations) >= sum(got.advances) >= len(got.tokens)
            assert got.nfe == 1 + sum(len(i.rows) for i in got.iterations)
            reasons.add(got.finish_reason)
            matches += sum(i.matches > 1 for i in got.iterations)
            dropped += sum(got.advances) > len(got.tokens)
    assert reasons == {"stop", "length"} and matches > 100 and dropped > 5  # the cases are not trivial


def test_packed_is_the_branched_schedule_with_cut_0() -> None:
    for _, model, W, L, stops, order in cases(120):
        assert packed(model, model, W, L, order=order, **stops) == branched(model, model, W, L, cuts={0}, order=order, **stops)


def parted(model: AnyOrderModel, got: OrderedGeneration, L: int, stops: dict[str, Any]) -> bool:
    """Whether the serial reference gives another text, or the run's iterations are none that it can follow."""
    try:
        return serial(model, L, got.iterations, **stops) != got.tokens
    except ValueError:
        return True


def test_drafts_that_verification_does_not_see_are_noticed() -> None:
    found = 0
    for _, model, W, L, stops, order in cases(100):
        found += parted(model, packed(lambda P, K, U, m=model: m(P, [], U), model, W, L, order=order, **stops), L, stops)
    assert found > 20


def sees_what_is_left(P: Sequence[Accepted], C: Sequence[Pair], h: int, E: int, stops: Stops) -> tuple[list[Accepted], int]:
    """Broken: rows are computed again after each call."""
    kept, E = accept(P, C, h, E, stops)
    rebuilt: list[Accepted] = []
    for a in kept:
        rebuilt.append(Accepted(a.position, a.token, tuple(rebuilt)))
    return rebuilt, E


BROKEN: dict[str, Callable[..., tuple[list[Accepted], int]]] = {
    "rows see what is left": sees_what_is_left,
    "drafts do not see what is dropped": lambda P, C, h, E, stops: accept(P, C, 0, E, stops),
    "corrections see what is dropped": lambda P, C, h, E, stops: accept(P, C, len(C), E, stops),
    "nothing is dropped from P": lambda P, C, h, E, stops: (accept(P, C, h, E, Stops())[0], accept(P, C, h, E, stops)[1]),
}


@pytest.mark.parametrize("broken", [None, *BROKEN])
def test_what_rows_see_of_dropped_pairs_is_noticed(monkeypatch: pytest.MonkeyPatch, broken: str | None) -> None:
    """With one dropped pair more or less in a row's context some text changes: the run is broken, its serial reference is not."""
    found = 0
    for seed in range(120):
        model, stops = AnyOrderModel(seed, 6, 0.7), {"stop_ids": [seed % 6]}
        with monkeypatch.context() as patch:
            if broken is not None:
                patch.setattr(ordered, "accept", BROKEN[broken])
            got = packed(model, model, 8, 24, order=shuffled(seed), **stops)
        found += parted(model, got, 24, stops)
    assert found == 0 if broken is None else found > 5


def test_a_serial_reference_of_iterations_that_do_not_fit_is_refused() -> None:
    model = AnyOrderModel(0)
    with pytest.raises(ValueError, match=r"leave the positions \[3, 4\] open"):
        serial(model, 4, [Iteration((1, 2), 1, 2, (3,))])
    with pytest.raises(ValueError, match="position 1 has no finite maximum"):
        serial(lambda P, K, U: [[math.nan]], 1, [Iteration((1,), 0, 1, (3,))])


# Algorithm 3 by hand


def test_a_worked_example_in_reading_order() -> None:
    """The text is 1 2 3 ..., and a proposal is wrong at positions 3 and 6.  W = 4."""
    model = FixedText([1, 2, 3, 4, 5, 6, 7, 8])
    got = packed(model, model.wrong_at(3, 6), 4, 8)
    # Call 1 accepts 1; the draft for 2 3 4 is kept.  Call 2 accepts 2 and corrects 3; 4 5 are drafted again.  Call 3 accepts 4,
    # 5 and, with no draft at 6, the verifier's 6; 7 is kept.  Call 4 accepts 7 and the verifier's 8.
    assert got.tokens == [1, 2, 3, 4, 5, 6, 7, 8] and got.finish_reason == "length" and got.advances == [0, 1, 2, 3, 2]
    assert got.iterations == [
        Iteration((1, 2, 3, 4), 0, 1, (12,)),
        Iteration((2, 3, 4, 5), 1, 2, (13,)),
        Iteration((4, 5, 6, 7), 2, 3, (13,)),
        Iteration((7, 8), 1, 2, (7,)),
    ]


def test_a_worked_example_from_right_to_left() -> None:
    model = FixedText([1, 2, 3, 4, 5, 6])
    got = packed(model, model.wrong_at(2), 3, 6, order=right_to_left)
    # Call 1 accepts 3 (no drafts yet); call 2 corrects 2; call 3 accepts 1, all of its window: no bonus outside of it, and
    # nothing is left to draft.  Calls 4 and 5 do the same with 4 5 6, whose drafts are right.
    assert [i.order for i in got.iterations] == [(3, 2, 1), (2, 1), (1,), (6, 5, 4), (5, 4)]
    assert [(i.matches, i.accepted) for i in got.iterations] == [(0, 1), (0, 1), (1, 1), (0, 1), (2, 2)]
    assert [i.rows for i in got.iterations] == [(9,), (7,), (4,), (9,), (7,)]  # p + 3u: no row waits after a match


def test_the_window_skips_accepted_positions() -> None:
    P = [Accepted(j, 0, ()) for j in (1, 3, 4)]
    assert window(P, 9, 4) == [2, 5] and window(P, 3, 4) == [2] and window(P, 9, 99) == [2, 5, 6, 7, 8, 9]
    assert window(P, 9, 1) == [2]


# Ends


def end(
    text: Sequence[int],
    W: int = 4,
    L: int = 8,
    order: ordered.Order = "left_to_right",
    wrong: Sequence[int] = (),
    run: Run = packed,
    **stops: Any,
) -> OrderedGeneration:
    model = FixedText(text)
    got = run(model, model.wrong_at(*wrong), W, L, order=order, **stops)
    assert serial(model, L, got.iterations, **stops) == got.tokens
    return got


def test_a_marker_split_over_two_calls() -> None:
    # Right to left: call 1 accepts 4, the marker's end; call 2 accepts 3, its beginning, and with it 2 and 1.
    got = end([1, 2, 7, 8, 5, 6], order=right_to_left, stop_sequences=[[7, 8]])
    assert got.tokens == [1, 2, 7, 8] and got.finish_reason == "stop" and got.advances == [0, 1, 3]
    # Left to right: 7 at the end of call 1, 8 in call 2; the accepted 5 after it is dropped.
    got = end([7, 8, 5, 6], stop_sequences=[[7, 8]])
    assert got.tokens == [7, 8] and got.finish_reason == "stop" and got.advances == [0, 1, 1]


def test_a_marker_completed_by_the_correction() -> None:
    got = end([1, 7, 8, 5, 6], wrong=[3], stop_sequences=[[7, 8]])
    assert got.tokens == [1, 7, 8] and got.finish_reason == "stop" and got.advances == [0, 1, 2]
    assert got.iterations[-1] == Iteration((2, 3, 4, 5), 1, 2, (13,))
    # By an order that comes to it last, when 4, 5 and 6 are accepted already: they are dropped
    got = end([1, 7, 8, 5, 6, 4], order=lambda U: sorted(U, key=lambda j: (j == 3, j)), wrong=[3], stop_sequences=[[7, 8]])
    assert got.tokens == [1, 7, 8] and got.finish_reason == "stop" and got.advances == [0, 1, 3, 1, 1]
    assert got.iterations[-1] == Iteration((3,), 0, 1, (4,))


def test_of_two_markers_the_one_that_ends_earlier_counts() -> None:
    # In one call
    got = end(
        [1, 7, 8, 7, 8], order=lambda U: [*[j for j in U if j != 3], *[j for j in U if j == 3]], W=5, stop_sequences=[[7, 8]]
    )
    assert got.tokens == [1, 7, 8] and got.finish_reason == "stop"
    # The later one first: E is 6, then 2
    got = end([7, 8, 3, 4, 7, 8, 9, 9], W=6, order=right_to_left, stop_sequences=[[7, 8]])
    assert got.tokens == [7, 8] and got.finish_reason == "stop"
    assert got.advances == [0, 1, 2]  # 6; then 5 ... 1 are right, of which 1 and 2 stay
    # Overlapping ones, and a stop id inside a sequence
    assert end([1, 7, 7, 7, 8], order=right_to_left, stop_sequences=[[7, 7], [7, 7, 7]]).tokens == [1, 7, 7]
    assert end([1, 7, 5, 8], stop_ids=[5], stop_sequences=[[7, 5, 8]]).tokens == [1, 7, 5]


def test_a_marker_after_an_open_gap_waits_for_it() -> None:
    order = [4, 5, 1, 2, 3, 6, 7, 8]

    def marker_first(U: Sequence[int]) -> list[int]:
        return sorted(U, key=order.index)

    model = FixedText([1, 2, 3, 7, 8, 6])
    got = packed(model, model.wrong_at(2), 5, 8, order=marker_first, stop_sequences=[[7, 8]])
    # Calls 1 and 2: 4, then 5 1 and the corrected 2.  E is 5 from there on; call 3 fills 3, in a window that ends at E.
    assert [i.order for i in got.iterations] == [(4, 5, 1, 2, 3), (5, 1, 2, 3), (3,)]
    assert got.tokens == [1, 2, 3, 7, 8] and got.finish_reason == "stop" and got.advances == [0, 1, 3, 1]
    # A marker that comes up in the gap ends earlier
    assert end([7, 8, 3, 7, 8, 6], W=5, order=marker_first, stop_sequences=[[7, 8]]).tokens == [7, 8]


def test_a_limit_inside_a_window_and_a_window_beyond_the_limit() -> None:
    for W, L in ((4, 6), (4, 5), (8, 3), (16, 1), (3, 3)):
        for order in ("left_to_right", right_to_left, shuffled(1)):
            for run in (packed, linear, quadratic):
                got = end([1, 2, 3, 4, 5, 6, 7, 8], W=W, L=L, order=order, run=run)
                assert got.tokens == [1, 2, 3, 4, 5, 6, 7, 8][:L] and got.finish_reason == "length"
                assert all(max(i.order) <= L and len(i.order) <= W for i in got.iterations)


def test_a_stop_at_the_limit_is_a_stop_and_one_beyond_it_is_none() -> None:
    assert end([1, 2, 7], L=3, stop_ids=[7]).finish_reason == "stop"
    assert end([1, 7, 8], L=3, stop_sequences=[[7, 8]]).finish_reason == "stop"
    assert end([1, 2, 7], L=2, stop_ids=[7]).finish_reason == "length"
    assert end([1, 7, 8], L=2, stop_sequences=[[7, 8]]).finish_reason == "length"


def test_no_call_is_made_for_no_tokens() -> None:
    for run in (packed, linear, quadratic):
        assert end([1], L=0, run=run) == OrderedGeneration([], "length", [], [])


def test_nothing_after_the_end_is_kept() -> None:
    """A stop at 2 accepted after 4 and 3: they leave P, and nothing later sees them."""
    P, E = accept([Accepted(4, 5, ())], [(3, 6), (2, 7), (1, 4)], 2, 8, Stops([7]))
    assert E == 2 and [(a.position, a.token) for a in P] == [(2, 7), (1, 4)]
    stop, correction = P
    assert [a.position for a in stop.seen] == [4, 3]  # a draft's row was computed before the stop was known
    assert [a.position for a in correction.seen] == [2]  # the correction's row is computed after
    P, E = accept(P, [], 0, E, Stops([7]))
    assert E == 2 and P[0] is stop and P[1] is correction and len(P) == 2


def test_a_correction_beyond_the_end_leaves_no_row_to_process() -> None:
    """Call 2 matches the stop at 2 and corrects 4: the correction is dropped, so the next call has no row N."""

    def order(U: Sequence[int]) -> list[int]:
        return sorted(U, key=[5, 2, 4, 3, 1, 6, 7, 8].index)

    model = FixedText([1, 7, 3, 4, 5])
    for run in (packed, lambda *given, **named: branched(*given, cuts={0}, **named)):
        got = run(model, model.wrong_at(4), 5, 8, order=order, stop_ids=[7])
        assert [(i.order, i.rows) for i in got.iterations] == [((5, 2, 4, 3, 1), (15,)), ((2, 4, 3, 1), (13,)), ((1,), (3,))]
        assert got.tokens == [1, 7] and got.advances == [0, 1, 1, 1]


def test_ends_of_a_set_of_positions() -> None:
    stops = Stops([9], [[7, 8], [8, 8, 8]])
    assert ends({1: 7, 2: 8, 5: 9}, stops) == [2, 5]
    assert ends({1: 7, 3: 8}, stops) == [] and ends({2: 8, 1: 7}, stops) == [2]
    assert ends({1: 8, 2: 8, 3: 8, 4: 8}, stops) == [3, 4]
    assert ends({1: 8}, stops) == [] and ends({}, stops) == []


# Failed rows and bad orders


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("run", [packed, linear, quadratic])
def test_a_failed_verifier_row_ends_with_error_and_keeps_what_came_before(run: Run, bad: float) -> None:
    model = FixedText([1, 2, 3, 4, 5, 6, 7, 8])
    for broken in range(1, 9):

        def verifier(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int], broken: int = broken) -> list[list[float]]:
            return [[bad] * 10 if j == broken else row for j, row in zip(U, model(P, K, U), strict=True)]

        got = run(verifier, model, 4, 8)
        assert (got.tokens, got.finish_reason) == (model.text[: broken - 1], "error") and got.nfe < 20
        got = run(verifier, model, 4, 8, order=right_to_left)
        assert got.finish_reason == "error" and got.tokens == model.text[: len(got.tokens)] and len(got.tokens) < broken
        # The limit decides where it comes first, and a stop that makes the position superfluous does too
        assert run(verifier, model, 4, broken - 1).finish_reason == "length"
        if broken > 1:
            got = run(verifier, model, 4, 8, stop_ids=[model.text[broken - 2]])
            assert (got.tokens, got.finish_reason) == (model.text[: broken - 1], "stop")


@pytest.mark.parametrize("run", [packed, linear, quadratic])
def test_a_failed_row_after_a_stop_of_the_same_call_does_no_harm(run: Run) -> None:
    """In the order 3 1 5 2 4 the stop at 3 is accepted in the call whose row for 5 fails."""
    model = FixedText([1, 2, 7, 4, 5])

    def verifier(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        return [[math.nan] * 10 if j == 5 else row for j, row in zip(U, model(P, K, U), strict=True)]

    def order(U: Sequence[int]) -> list[int]:
        return sorted(U, key=[1, 3, 5, 2, 4].index)

    got = run(verifier, model, 5, 5, order=order, stop_ids=[7])
    assert (got.tokens, got.finish_reason) == ([1, 2, 7], "stop")


@pytest.mark.parametrize("run", [packed, linear, quadratic])
def test_a_failed_proposal_row_leaves_its_position_without_a_draft(run: Run) -> None:
    model = FixedText([1, 2, 3, 4, 5, 6, 7, 8])

    def drafter(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        return [[math.nan] * 10 if j % 3 == 0 else row for j, row in zip(U, model(P, K, U), strict=True)]

    for order in ("left_to_right", right_to_left, "confidence"):
        got = run(model, drafter, 4, 8, order=order)
        assert (got.tokens, got.finish_reason) == (model.text, "length")
        for i in got.iterations:
            assert all(j % 3 for j in i.order[: i.matches])
    # Every third position ends a call, and the drafts after it are not lost on the calls before
    assert max(i.matches for i in run(model, drafter, 4, 8).iterations) == 2


@pytest.mark.parametrize(
    "returned", [[], [1, 2, 3], [1, 2, 3, 3], [1, 2, 3, 5], [1, 2, 3, 4, 4], None, 7, "1234", [[1], 2, 3, 4]]
)
def test_an_order_that_is_no_permutation_is_refused(returned: Any) -> None:
    model = FixedText([1, 2, 3, 4])
    for run in (packed, linear, quadratic):
        with pytest.raises(ValueError, match=r"for the window \[1, 2, 3, 4\], but a permutation of it"):
            run(model, model, 4, 4, order=lambda U: returned)


@pytest.mark.parametrize("order", ["right_to_left", "", None, 3])
def test_an_unknown_order_is_refused(order: Any) -> None:
    with pytest.raises(ValueError, match="'left_to_right', 'confidence' or a function"):
        packed(FixedText([1]), FixedText([1]), 2, 2, order=order)


def test_confidence_ranks_by_score_then_by_position() -> None:
    assert choose("confidence", [3, 4, 5, 6], {6: 0.5, 4: 0.9, 3: 0.5, 9: 1.0}) == [4, 3, 6, 5]
    assert choose("confidence", [3, 4, 5], {}) == [3, 4, 5]
    assert choose("confidence", [3, 4, 5], {5: 0.0}) == [5, 3, 4]
    assert choose("left_to_right", [3, 4, 5], {5: 1.0}) == [3, 4, 5]
    assert ordered_schedules.choose is choose
