"""Totals of a setting by candidate and prompt, and the statistics that the tables and figures are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Interval, paired_interval
from .plan import Candidate, Plan, Setting
from .run_records import Response, Run


class Sums(NamedTuple):
    """What is added up of the responses of one candidate."""

    responses: float
    tokens: float
    nfe: float
    seconds: float
    score: float
    scored: float
    model: float
    first_model: float
    modelled: float
    modelled_nfe: float


class Rate(NamedTuple):
    """A ratio of two sums, by name."""

    above: str
    below: str

    def of(self, sums: Sums) -> float:
        """Return the ratio, not a number where there is nothing below."""
        above, below = getattr(sums, self.above), getattr(sums, self.below)
        return above / below if below > 0 else float("nan")


TOKENS_PER_SECOND = Rate("tokens", "seconds")
TOKENS_PER_NFE = Rate("tokens", "nfe")
SECONDS_PER_NFE = Rate("seconds", "nfe")
#: Mean seconds per response, and mean correctness of those that have a score.
WALL, ACCURACY = Rate("seconds", "responses"), Rate("score", "scored")


@dataclass
class Summary:
    """A setting's complete prompts (every repeat of every candidate is there) and the totals over them."""

    setting: Setting
    prompts: list[str]
    #: [candidates, sums, prompts]
    values: NDArray[np.float64]
    responses: dict[str, list[Response]]
    seed: int
    #: Prompts of the setting that some candidate has not finished, and are left out.
    incomplete: int
    _intervals: dict[Any, Interval] = field(default_factory=dict, repr=False)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self.setting.candidates

    def candidate(self, name: str) -> Candidate | None:
        """A candidate by its name; None where there is none."""
        return next((c for c in self.candidates if c.name == name), None)

    def like(self, schedule: str, other: Candidate) -> Candidate | None:
        """The candidate that differs from ``other`` in its schedule alone (and in its block size: each has its own)."""

        def rest(c: Candidate) -> tuple:
            return c.window, c.order, c.verification, c.adapter, c.external

        return next((c for c in self.candidates if c.schedule == schedule and rest(c) == rest(other)), None)

    def _index(self, candidate: Candidate) -> int:
        return self.candidates.index(candidate)

    def sums(self, candidate: Candidate) -> Sums:
        """The sample's totals."""
        return Sums(*self.values[self._index(candidate)].sum(1).tolist())

    def value(self, candidate: Candidate, rate: Rate) -> float:
        """A rate of the sample."""
        return rate.of(self.sums(candidate))

    def ratio(self, rate: Rate, one: Candidate, base: Candidate) -> Interval:
        """``one``'s rate over ``base``'s, with its paired interval."""
        return self._paired(np.divide, rate, one, base)

    def difference(self, rate: Rate, one: Candidate, base: Candidate) -> Interval:
        """``one``'s rate minus ``base``'s, with its paired interval."""
        return self._paired(np.subtract, rate, one, base)

    def _paired(self, how: np.ufunc, rate: Rate, one: Candidate, base: Candidate) -> Interval:
        key = how, rate, one, base
        if key not in self._intervals:  # tables and figures ask for the same ones

            def of(totals: NDArray[np.float64]) -> NDArray[np.float64]:
                with np.errstate(divide="ignore", invalid="ignore"):
                    return how(totals[0] / totals[1], totals[2] / totals[3])

            rows = [self.values[self._index(c), Sums._fields.index(name)] for c in (one, base) for name in rate]
            self._intervals[key] = paired_interval(np.stack(rows), of, self.seed)
        return self._intervals[key]

    def block_size(self, candidate: Candidate) -> int | None:
        """The block size that was run, the probe's choice included."""
        found = self.responses.get(candidate.name)
        return candidate.block_size if not found else found[0].block_size

    def rows(self, candidate: Candidate) -> int | None:
        """The most input rows of a call after the first."""
        found = self.responses.get(candidate.name)
        return found[0].rows if found else None


def summarise(plan: Plan, run: Run) -> list[Summary]:
    """A summary of each setting of which a prompt is complete, in the plan's order."""
    by_setting: dict[str, list[Response]] = {}
    for response in run.responses.values():
        by_setting.setdefault(response.setting, []).append(response)
    found = [_summary(setting, by_setting.get(setting.name, ()), plan.seed) for setting in plan.settings]
    return [summary for summary in found if summary.prompts]


def _summary(setting: Setting, responses: Sequence[Response], seed: int) -> Summary:
    untimed = [r for r in responses if not r.timed]
    prompts = list(dict.fromkeys(r.prompt for r in untimed))
    done = {(r.candidate, r.prompt, r.repeat) for r in untimed}
    complete = [p for p in prompts if all((c.name, p, k) in done for c in setting.candidates for k in range(setting.repeats))]
    column = {prompt: i for i, prompt in enumerate(complete)}
    row = {c.name: i for i, c in enumerate(setting.candidates)}
    values = np.zeros((len(row), len(Sums._fields), len(complete)))
    kept: dict[str, list[Response]] = {}
    for r in responses:
        if r.prompt not in column or r.candidate not in row or r.repeat >= setting.repeats:
            continue
        cell = values[row[r.candidate], :, column[r.prompt]]
        if not r.timed:
            kept.setdefault(r.candidate, []).append(r)
            scored = r.score is not None
            cell[:6] += (1, r.tokens, r.nfe, r.seconds, r.score or 0.0, scored)
        if r.model_seconds is not None:
            cell[6:9] += (r.model_seconds, r.first_model_seconds or 0.0, 1)
            cell[9] += r.nfe
    return Summary(setting, complete, values, kept, seed, len(prompts) - len(complete))


def model_wall(summary: Summary, candidate: Candidate) -> tuple[float, float] | None:
    """Mean seconds per response in the model's forward and outside it, together the mean wall time; None where not measured.

    Where model time comes from responses of their own, the rest is the wall time of the others minus it.
    """
    sums = summary.sums(candidate)
    if not sums.modelled:
        return None
    inside = Rate("model", "modelled").of(sums)
    return inside, WALL.of(sums) - inside
