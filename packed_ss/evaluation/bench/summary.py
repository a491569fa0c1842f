"""Totals of a cell by contender and prompt, and the statistics that the tables and figures are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .bootstrap import RESAMPLES, Interval, percentile_interval, resampled_totals
from .plan import Cell, Contender, Plan
from .records import Response, Run

#: What is added up of a prompt's responses.
STATISTICS = (
    "responses",
    "tokens",
    "nfe",
    "seconds",
    "score",
    "scored",
    "model",
    "first_model",
    "modelled",
    "modelled_nfe",
    "modelled_seconds",
)

#: A statistic of totals: rows are `STATISTICS`, columns are resamples (or one column: the sample itself).
Statistic = Callable[["Sums"], NDArray[np.float64]]


class Sums:
    """Totals [STATISTICS, samples] of one contender, by name."""

    def __init__(self, totals: NDArray[np.float64]) -> None:
        self._totals = totals

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        if name not in STATISTICS:
            raise AttributeError(name)
        return self._totals[STATISTICS.index(name)]

    def rate(self, above: str, below: str) -> NDArray[np.float64]:
        """A ratio of totals, not a number where there is nothing below."""
        with np.errstate(divide="ignore", invalid="ignore"):
            top, bottom = getattr(self, above), getattr(self, below)
            return np.where(bottom > 0, top / bottom, np.nan)


def tokens_per_second(sums: Sums) -> NDArray[np.float64]:
    return sums.rate("tokens", "seconds")


def tokens_per_nfe(sums: Sums) -> NDArray[np.float64]:
    return sums.rate("tokens", "nfe")


def seconds_per_nfe(sums: Sums) -> NDArray[np.float64]:
    return sums.rate("seconds", "nfe")


def wall(sums: Sums) -> NDArray[np.float64]:
    """Mean seconds per response."""
    return sums.rate("seconds", "responses")


def accuracy(sums: Sums) -> NDArray[np.float64]:
    """Mean correctness per response, of those that have a score."""
    return sums.rate("score", "scored")


@dataclass
class Summary:
    """A cell's complete prompts (every repeat of every contender is there) and the totals over them."""

    cell: Cell
    prompts: list[str]
    #: [contenders, STATISTICS, prompts]
    values: NDArray[np.float64]
    responses: dict[str, list[Response]]
    seed: int
    #: Prompts of the cell that some contender has not finished, and are left out.
    incomplete: int

    @property
    def contenders(self) -> tuple[Contender, ...]:
        return self.cell.contenders

    def contender(self, name: str) -> Contender | None:
        """A contender by its name; None where there is none."""
        return next((c for c in self.contenders if c.name == name), None)

    def like(self, schedule: str, other: Contender) -> Contender | None:
        """The contender that differs from ``other`` in its schedule alone (and in its block size: each has its own)."""

        def rest(c: Contender) -> tuple:
            return c.window, c.order, c.verification, c.adapter, c.peer

        return next((c for c in self.contenders if c.schedule == schedule and rest(c) == rest(other)), None)

    def _index(self, contender: Contender) -> int:
        return self.contenders.index(contender)

    def sums(self, contender: Contender) -> Sums:
        """The sample's totals, one column."""
        return Sums(self.values[self._index(contender)].sum(1, keepdims=True))

    @cached_property
    def _resampled(self) -> NDArray[np.float64]:
        k, s, p = self.values.shape
        return resampled_totals(self.values.reshape(k * s, p), RESAMPLES, self.seed).reshape(RESAMPLES, k, s)

    def resampled(self, contender: Contender) -> Sums:
        """The resamples' totals; every contender of the cell has the same prompts drawn."""
        return Sums(self._resampled[:, self._index(contender)].T)

    def value(self, contender: Contender, statistic: Statistic) -> float:
        """A statistic of the sample."""
        return float(statistic(self.sums(contender))[0])

    def ratio(self, statistic: Statistic, one: Contender, base: Contender) -> Interval:
        """``one``'s statistic over ``base``'s, with its paired interval."""
        with np.errstate(divide="ignore", invalid="ignore"):
            samples = statistic(self.resampled(one)) / statistic(self.resampled(base))
        return percentile_interval(self.value(one, statistic) / self.value(base, statistic), samples)

    def difference(self, statistic: Statistic, one: Contender, base: Contender) -> Interval:
        """``one``'s statistic minus ``base``'s, with its paired interval."""
        samples = statistic(self.resampled(one)) - statistic(self.resampled(base))
        return percentile_interval(self.value(one, statistic) - self.value(base, statistic), samples)

    def block_size(self, contender: Contender) -> int | None:
        """The block size that was run, the probe's choice included."""
        found = self.responses.get(contender.name)
        return contender.block_size if not found else found[0].block_size

    def rows(self, contender: Contender) -> int | None:
        """The most input rows of a call after the first."""
        found = self.responses.get(contender.name)
        return found[0].rows if found else None


def summarise(plan: Plan, run: Run) -> list[Summary]:
    """A summary of each cell of which a prompt is complete, in the plan's order."""
    by_cell: dict[str, list[Response]] = {}
    for response in run.responses.values():
        by_cell.setdefault(response.cell, []).append(response)
    found = [_summary(cell, by_cell.get(cell.name, ()), plan.seed) for cell in plan.cells]
    return [summary for summary in found if summary.prompts]


def _summary(cell: Cell, responses: Sequence[Response], seed: int) -> Summary:
    untimed = [r for r in responses if not r.timed]
    prompts = list(dict.fromkeys(r.prompt for r in untimed))
    done = {(r.contender, r.prompt, r.repeat) for r in untimed}
    whole = [p for p in prompts if all((c.name, p, k) in done for c in cell.contenders for k in range(cell.repeats))]
    column = {prompt: i for i, prompt in enumerate(whole)}
    row = {c.name: i for i, c in enumerate(cell.contenders)}
    values = np.zeros((len(row), len(STATISTICS), len(whole)))
    kept: dict[str, list[Response]] = {}
    for r in responses:
        if r.prompt not in column or r.contender not in row or r.repeat >= cell.repeats:
            continue
        cells = values[row[r.contender], :, column[r.prompt]]
        if not r.timed:
            kept.setdefault(r.contender, []).append(r)
            scored = r.score is not None
            cells[:6] += (1, r.tokens, r.nfe, r.seconds, r.score or 0.0, scored)
        if r.model_seconds is not None:
            cells[6:9] += (r.model_seconds, r.first_model_seconds or 0.0, 1)
            cells[9] += r.nfe
        if r.model_seconds is not None and not r.timed:
            cells[10] += r.seconds
    return Summary(cell, whole, values, kept, seed, len(prompts) - len(whole))


def model_wall(summary: Summary, contender: Contender) -> tuple[float, float] | None:
    """Mean seconds per response in the model's forward and outside it, together the mean wall time; None where not measured.

    Where model time comes from responses of their own, the rest is the wall time of the others minus it.
    """
    sums = summary.sums(contender)
    if not sums.modelled[0]:
        return None
    inside, whole = float(sums.rate("model", "modelled")[0]), float(wall(sums)[0])
    return inside, whole - inside
