from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest

from packed_ss.reference.distributions import accepts, argmax, categorical, log_probabilities, log_residual, process
from packed_ss.reference.philox import ACCEPT, DRAFT, TARGET, Randomness
from packed_ss.reference.verification import Draft, Rejection
from tests.support.enumeration import chi_square_ok

INF, NAN = math.inf, math.nan


def logs(probabilities: list[float]) -> list[float]:
    return [math.log(x) if x > 0.0 else -INF for x in probabilities]


def test_argmax_takes_the_lowest_id_on_ties() -> None:
    assert argmax([1.0, 3.0, 3.0, 2.0]) == 1
    assert argmax([-INF, -1e300, -INF]) == 1


@pytest.mark.parametrize("row", [[NAN, 0.0], [0.0, 1.0, NAN], [-INF, -INF], [INF, 0.0]])
def test_a_row_without_a_finite_maximum_has_no_argmax_and_no_distribution(row: list[float]) -> None:
    assert argmax(row) is None
    assert log_probabilities(row, 0.7, 1, 0.5) is None
    assert process(row) is None


def test_softmax_with_temperature() -> None:
    expected = [math.exp(x / 0.5) for x in (0.0, 1.0, -1.0)]
    assert process([0.0, 1.0, -1.0], 0.5) == pytest.approx([x / sum(expected) for x in expected], rel=1e-14)
    assert process([-INF, 2.0, 2.0]) == [0.0, 0.5, 0.5]


def test_extreme_logits_and_temperatures_do_not_overflow() -> None:
    assert process([1e4, 1e4 - 1.0, -1e300], 1e-5) == [1.0, 0.0, 0.0]
    assert process([-1e308, 1e308, -3.0]) == [0.0, 1.0, 0.0]
    assert log_probabilities([0.0, -900.0]) == [0.0, -900.0]


def test_top_k_keeps_the_k_largest_and_their_ties() -> None:
    row = [1.0, 3.0, 2.0, 2.0, 0.0]
    assert [x > 0.0 for x in process(row, top_k=1) or []] == [False, True, False, False, False]
    assert [x > 0.0 for x in process(row, top_k=2) or []] == [False, True, True, True, False]
    assert process(row, top_k=5) == process(row, top_k=99) == process(row)


def test_top_p_keeps_the_head_that_reaches_the_mass_and_its_ties() -> None:
    row = logs([0.5, 0.25, 0.125, 0.125])
    assert process(row, top_p=0.4) == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert process(row, top_p=0.51) == pytest.approx([2 / 3, 1 / 3, 0.0, 0.0])
    assert process(row, top_p=0.76) == pytest.approx([0.5, 0.25, 0.125, 0.125])  # the two last are tied
    assert process(row, top_p=1e-9) == pytest.approx([1.0, 0.0, 0.0, 0.0])
    # the boundary is a mass before the token that equals top_p: the token is not needed
    assert process([0.0, 0.0 - math.log(2.0), -math.log(2.0)], top_p=0.5) == pytest.approx([1.0, 0.0, 0.0])


def test_top_p_counts_the_mass_that_top_k_left_and_both_follow_the_temperature() -> None:
    row = logs([0.4, 0.3, 0.2, 0.1])
    # top-k leaves 4/7 and 3/7: 0.5 is reached by the first alone, which has 0.4 of the whole
    assert process(row, top_k=2, top_p=0.5) == pytest.approx([1.0, 0.0, 0.0, 0.0])
    # at temperature 1/2 the masses are as 16 : 9 : 4 : 1
    assert process(row, 0.5, top_p=0.55) == pytest.approx([16 / 25, 9 / 25, 0.0, 0.0])


@pytest.mark.parametrize("setting", [(0.0, 0, 1.0), (-1.0, 0, 1.0), (1.0, -1, 1.0), (1.0, 0, 0.0), (1.0, 0, 1.5)])
def test_settings_out_of_range_are_refused(setting: tuple[float, int, float]) -> None:
    with pytest.raises(ValueError, match="accepted"):
        process([0.0, 1.0], *setting)


def test_acceptance_is_strict_and_a_token_without_target_mass_is_never_accepted() -> None:
    assert accepts(0.24, math.log(0.2), math.log(0.8))
    assert not accepts(0.26, math.log(0.2), math.log(0.8))
    assert not accepts(0.5, math.log(0.5), 0.0)  # u equal to the ratio
    assert accepts(1.0 - 2.0**-24, math.log(0.3), math.log(0.3))  # p = Q: always
    assert not accepts(2.0**-33, -INF, 0.0)
    assert not accepts(0.1, NAN, -1.0)


def test_residual_of_four_tokens() -> None:
    p, q = [0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.2]
    residual = [math.exp(x) for x in log_residual(logs(p), logs(q))]
    assert residual == pytest.approx([0.0, 0.1, 0.0, 0.2], abs=1e-15)  # not softmax of the clamped difference


def test_residual_of_zero_masses() -> None:
    assert log_residual([-INF, 0.0, -INF], [0.0, -INF, -INF]) == [-INF, 0.0, -INF]


def test_an_empty_residual_is_the_target_itself() -> None:
    p = logs([0.25, 0.75])
    assert log_residual(p, p) == p
    # a difference below the last digit leaves nothing either, and no logarithm of 0
    assert log_residual([0.0, -40.0], [-1e-18, -39.0]) == [0.0, -40.0]


@pytest.mark.parametrize("ratio", [1e-3, 1e-5, 1e-7, 1e-8, 1e-12])
def test_residual_keeps_the_digits_of_a_small_ratio(ratio: float) -> None:
    """log(1 - Q/p) without log1p has a relative error of about 1e-16 / ratio."""
    residual = log_residual([0.0, -50.0], [math.log(ratio), 0.0])[0]
    assert residual == pytest.approx(-ratio - ratio**2 / 2.0 - ratio**3 / 3.0 - ratio**4 / 4.0, rel=1e-11, abs=0.0)


def test_residual_against_fractions() -> None:
    small = Fraction(1, 2**29)
    p, q = [Fraction(7, 16), Fraction(1, 2), Fraction(1, 16)], [small, Fraction(1, 3), Fraction(2, 3) - small]
    residual = log_residual([math.log(x) for x in p], [math.log(x) for x in q])
    for x, y, got in zip(p, q, residual, strict=True):
        assert math.exp(got) == pytest.approx(float(max(x - y, Fraction(0))), rel=1e-14, abs=0.0)


def test_categorical_never_draws_a_token_without_mass() -> None:
    assert categorical([-INF, -30.0, -INF], [22.9, -2.8, 22.9]) == 1
    with pytest.raises(ValueError, match="finite"):
        categorical([-INF, -INF], [0.0, 0.0])


def test_categorical_has_its_law() -> None:
    p = [0.1, 0.6, 0.3]
    for stream in (DRAFT, TARGET):
        counts = Counter((categorical(logs(p), Randomness(seed).gumbel(11, stream, 3)),) for seed in range(10_000))
        assert chi_square_ok(counts, {(token,): mass for token, mass in enumerate(p)})


def test_one_position_of_rejection_sampling_has_the_target_law_and_accepts_the_overlap() -> None:
    """Lemma B.3, with Q drawn under top-k: the coin must use the distribution that the draw used."""
    p_row, q_row = logs([0.1, 0.2, 0.3, 0.4]), logs([0.5, 0.3, 0.05, 0.15])
    p, q = process(p_row, 0.9, 3) or [], process(q_row, 0.9, 3) or []
    tokens: Counter[tuple[int, ...]] = Counter()
    verdicts: Counter[tuple[int, ...]] = Counter()
    for seed in range(10_000):
        rule = Rejection(Randomness(seed), 0.9, 3)
        draft = rule.draft(q_row, 4)
        assert draft is not None
        accepted, token = rule.verify(p_row, draft, 4) or (False, -1)
        tokens[token,] += 1
        verdicts[int(accepted),] += 1
    overlap = sum(min(x, y) for x, y in zip(p, q, strict=True))
    assert chi_square_ok(tokens, {(token,): mass for token, mass in enumerate(p) if mass > 0.0})
    assert chi_square_ok(verdicts, {(1,): overlap, (0,): 1.0 - overlap})


def test_a_raw_q_beside_a_processed_draw_is_caught() -> None:
    p_row, q_row = logs([0.1, 0.2, 0.3, 0.4]), logs([0.5, 0.3, 0.05, 0.15])
    tokens: Counter[tuple[int, ...]] = Counter()
    for seed in range(10_000):
        rule = Rejection(Randomness(seed), 1.0, 2)
        draft = rule.draft(q_row, 4)
        assert draft is not None
        tokens[(rule.verify(p_row, Draft(draft.token, q_row), 4) or (False, -1))[1],] += 1
    law = {(token,): mass for token, mass in enumerate(process(p_row, 1.0, 2) or []) if mass > 0.0}
    assert not chi_square_ok(tokens, law)


def test_the_coin_has_its_own_stream() -> None:
    coins = [Randomness(seed).uniform(4, ACCEPT) for seed in range(100)]
    assert all(coin not in {Randomness(seed).uniform(4, stream) for stream in (DRAFT, TARGET)} for seed, coin in enumerate(coins))
