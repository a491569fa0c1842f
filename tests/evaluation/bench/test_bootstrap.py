"""The paired bootstrap against scipy's, and what it keeps together."""

from __future__ import annotations

import time

import numpy as np
import pytest
from scipy import stats

from packed_ss.evaluation.bench.bootstrap import percentile_interval, resampled_totals


def _values(prompts: int) -> np.ndarray:
    """Tokens and seconds of two decoders."""
    random = np.random.default_rng(5)
    tokens = random.integers(20, 200, prompts).astype(float)
    return np.stack([tokens, tokens * random.uniform(0.9, 1.4, prompts), tokens, tokens * random.uniform(0.5, 1.1, prompts)])


def _ratio(a, b, c, d, axis=-1):
    return (c.sum(axis) / d.sum(axis)) / (a.sum(axis) / b.sum(axis))


def test_intervals_are_those_of_scipy():
    values = _values(25)
    a, b, c, d = resampled_totals(values, seed=1).T
    ours = percentile_interval(float(_ratio(*values)), (c / d) / (a / b))
    theirs = stats.bootstrap(
        tuple(values),
        _ratio,
        n_resamples=20_000,
        paired=True,
        vectorized=True,
        method="percentile",
        batch=2000,
        rng=np.random.default_rng(2),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert abs(ours.low - theirs.low) < 0.04 * width and abs(ours.high - theirs.high) < 0.04 * width
    assert ours.low < ours.value < ours.high and ours.value == pytest.approx(float(_ratio(*values)))


def test_resamples_draw_whole_prompts_and_the_same_ones_for_all_rows():
    powers = 100.0 ** np.arange(4)  # a total tells how often each of four prompts was drawn
    totals = resampled_totals([powers, -2 * powers], resamples=50, seed=0)
    assert np.array_equal(totals[:, 1], -2 * totals[:, 0])
    for total in totals[:, 0]:
        drawn = [int(total // power) % 100 for power in powers]
        assert sum(drawn) == 4 and sum(n * power for n, power in zip(drawn, powers, strict=True)) == total
    assert len(np.unique(totals[:, 0])) > 10


def test_the_seed_decides_and_chunks_do_not_repeat():
    values = _values(30)
    one, again, other = (resampled_totals(values, 70_001, seed) for seed in (3, 3, 4))  # more than one chunk
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    assert len(np.unique(one[:, 1])) > 69_000
    assert abs(one[:, 0].mean() / values[0].sum() - 1) < 0.01


def test_all_of_gsm8k_takes_no_time():
    begin = time.process_time()
    resampled_totals(np.ones((40, 1319)))
    print(f"{time.process_time() - begin:.2f} s of processor time")


def test_one_prompt_none_and_what_is_no_number():
    assert resampled_totals([[3.0]], 5).tolist() == [[3.0]] * 5
    with pytest.raises(ValueError, match="over no prompts"):
        resampled_totals(np.empty((2, 0)))
    interval = percentile_interval(2.0, [1.0, np.nan, 3.0, np.inf])
    assert (interval.low, interval.high) == (1.05, 2.95)
    assert np.isnan(percentile_interval(2.0, [np.nan]).low)
