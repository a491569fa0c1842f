"""Paired percentile bootstrap over prompts (App. E.5)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 20_000
#: Prompt indices drawn at once, which bounds the memory.
_CHUNK = 2**21


class Interval(NamedTuple):
    """A statistic of the sample, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def resampled_totals(values: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> NDArray[np.float64]:
    """Totals [resamples, K] of ``values`` [K, P] over P prompts drawn with replacement, the same ones for all K.

    A prompt's value holds all of its repeats, so that they stay together.  Every statistic of App. E.5 is a function of such
    totals.  Raises ValueError where there is no prompt.
    """
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    prompts = table.shape[1]
    if not prompts:
        raise ValueError("a bootstrap over no prompts was asked for, but it takes at least one")
    random = np.random.default_rng(seed)
    totals = np.empty((resamples, len(table)))
    most = max(1, _CHUNK // prompts)
    for first in range(0, resamples, most):
        count = min(most, resamples - first)
        drawn = random.integers(0, prompts, (count, prompts)) + prompts * np.arange(count)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * prompts).reshape(count, prompts)
        totals[first : first + count] = times @ table.T
    return totals


def percentile_interval(value: float, samples: ArrayLike) -> Interval:
    """The 2.5 % and 97.5 % points of a statistic's ``samples`` around its ``value``; those that are not numbers do not count."""
    found = np.asarray(samples, dtype=np.float64)
    found = found[np.isfinite(found)]
    if not len(found):
        return Interval(float(value), float("nan"), float("nan"))
    low, high = np.percentile(found, (2.5, 97.5))
    return Interval(float(value), float(low), float(high))
