"""Paired percentile bootstrap over prompts (App. E.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 20_000
#: Resamples at once: no more than fit into the cache of a core.
_BATCH = 500


class Interval(NamedTuple):
    """A statistic of the sample, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def paired_interval(
    values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]], seed: int = 0
) -> Interval:
    """Return a statistic of totals with its interval; ``values`` [K, prompts], of which the same prompts are drawn for all K.

    A prompt's value holds all of its repeats, so that they stay together.  ``statistic`` maps totals [K, ...] over prompts to
    [...].  One prompt leaves nothing to draw: the interval is its value.  Raise ValueError where there is no prompt.
    """
    prompts = values.shape[1]
    if not prompts:
        raise ValueError("a bootstrap over no prompts was asked for, but it takes at least one")
    value = float(statistic(values.sum(1)))
    if prompts == 1:
        return Interval(value, value, value)
    from scipy import stats

    found = stats.bootstrap(
        tuple(values),
        lambda *drawn, axis: statistic(np.stack([one.sum(axis) for one in drawn])),
        n_resamples=RESAMPLES,
        batch=_BATCH,
        vectorized=True,
        paired=True,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))
