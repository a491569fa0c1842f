"""The paired bootstrap: against closed forms and plain resampling, and what it keeps together."""

from __future__ import annotations

import numpy as np
import pytest

from packed_ss.evaluation.bench.bootstrap import Interval, paired_interval


def _values(prompts: int) -> np.ndarray:
    """Tokens and seconds of two decoders."""
    random = np.random.default_rng(5)
    tokens = random.integers(20, 200, prompts).astype(float)
    return np.stack([tokens, tokens * random.uniform(0.9, 1.4, prompts), tokens, tokens * random.uniform(0.5, 1.1, prompts)])


def _ratio(totals: np.ndarray) -> np.ndarray:
    a, b, c, d = totals
    return (c / d) / (a / b)


def test_intervals_are_those_of_prompts_drawn_with_replacement():
    values, random = _values(25), np.random.default_rng(2)
    samples = [_ratio(values[:, random.integers(0, 25, 25)].sum(1)) for _ in range(20_000)]
    low, high = np.percentile(samples, (2.5, 97.5))
    found = paired_interval(values, _ratio, seed=1)
    assert abs(found.low - low) < 0.04 * (high - low) and abs(found.high - high) < 0.04 * (high - low)
    assert found.low < found.value < found.high and found.value == pytest.approx(_ratio(values.sum(1)))


def test_the_same_prompts_are_drawn_for_all_rows():
    values = np.array([[1.0, 10.0, 100.0], [-2.0, -20.0, -200.0]])
    assert paired_interval(values, lambda totals: totals[0] * 2 + totals[1]) == (0.0, 0.0, 0.0)


def test_the_seed_decides():
    one, again, other = (paired_interval(_values(30), _ratio, seed) for seed in (3, 3, 4))
    assert one == again != other and other.value == one.value


def test_one_prompt_and_none():
    assert paired_interval(np.array([[3.0]]), lambda totals: totals[0]) == Interval(3.0, 3.0, 3.0)
    with pytest.raises(ValueError, match="over no prompts"):
        paired_interval(np.empty((2, 0)), lambda totals: totals[0])
