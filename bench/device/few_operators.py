"""A few cases of every operator, for tools under which a run takes many times as long: what "sanitizer" runs."""

from __future__ import annotations

from .operators import cases, check
from .record import Results
from .stages import Bench

#: Of the cases of an operator, the first and every so many after it.
EVERY = 3


def run(bench: Bench, results: Results) -> None:
    """Every EVERY-th case of each operator, with every kernel there is."""
    seen: dict[str, int] = {}
    chosen = []
    for case in cases(bench.device):
        if seen.setdefault(case.operator, 0) % EVERY == 0:
            chosen.append(case)
        seen[case.operator] += 1
    check(bench, results, chosen)
