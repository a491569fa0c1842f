from __future__ import annotations

import pytest

from packed_ss.reference.stopping import Stops, ending


def test_the_first_stop_of_a_run_wins() -> None:
    stops = Stops({7, 8}, [[1, 2]])
    assert stops.first([], [3, 7, 8]) == 2
    assert stops.first([], [1, 2, 7]) == 2
    assert stops.first([], [7, 1, 2]) == 1
    assert stops.first([], [1, 3, 2]) is None


def test_a_stop_sequence_may_begin_in_an_earlier_call_but_not_in_the_prompt() -> None:
    stops = Stops((), [[1, 2, 3]])
    assert stops.first([9, 1, 2], [3, 4]) == 1
    assert stops.first([9, 1], [2, 3]) == 2
    assert stops.first([2], [3, 4]) is None
    assert Stops((), [[1, 1]]).first([1], [1]) == 1


@pytest.mark.parametrize(
    ("C", "L", "expected"),
    [
        ([1, 2, 3], 9, (3, None)),
        ([1, 2, 3], 5, (3, "length")),
        ([1, 2, 3], 4, (2, "length")),
        ([1, 7, 3], 9, (2, "stop")),
        ([1, 7, 3], 4, (2, "stop")),  # exactly at the limit
        ([1, 7, 3], 3, (1, "length")),  # beyond it
    ],
)
def test_the_advance_is_the_smallest_of_run_limit_and_stop(C: list[int], L: int, expected: tuple[int, str | None]) -> None:
    assert ending([4, 4], C, L, Stops({7})) == expected


def test_a_failed_row_counts_only_if_it_is_reached() -> None:
    assert ending([], [1, 2], 9, Stops(), failed=True) == (2, "error")
    assert ending([], [], 9, Stops(), failed=True) == (0, "error")
    assert ending([], [1, 7], 9, Stops({7}), failed=True) == (2, "stop")
    assert ending([], [1, 2], 2, Stops(), failed=True) == (2, "length")


def test_an_empty_stop_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="one token at least"):
        Stops((), [[1], []])
