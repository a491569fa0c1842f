"""The exact law of a sampled text, by enumeration in float64, and the test that counts of texts follow it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from scipy.stats import chi2

from packed_ss.reference import Stops, argmax, process

Verifier = Callable[[Sequence[int], Sequence[int]], Sequence[Sequence[float]]]


def exact_law(
    verifier: Verifier,
    prompt: Sequence[int],
    length: int,
    stops: Collection[int] = (),
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_sequences: Sequence[Sequence[int]] = (),
) -> dict[tuple[int, ...], float]:
    """Return the probability of every possible text of AR sampling: its first ``length`` new tokens, fewer after a stop.

    ``verifier(P, D)`` returns |D| + 1 rows of V logits; it is asked with an empty D only, once for each of up to V^(length - 1)
    prefixes.  ``stops`` are stop ids.  Texts of probability 0 are absent.
    """
    ending = Stops(stops, stop_sequences)
    law: dict[tuple[int, ...], float] = {}
    running: dict[tuple[int, ...], float] = {(): 1.0}
    while running:
        extended: dict[tuple[int, ...], float] = {}
        for text, mass in running.items():
            row = verifier([*prompt, *text], [])[0]
            for token, probability in enumerate(_processed(row, temperature, top_k, top_p)):
                if probability > 0.0:
                    finished = len(text) + 1 == length or ending.first(text, [token]) is not None
                    (law if finished else extended)[(*text, token)] = mass * probability
        running = extended
    return law


def _processed(row: Sequence[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    if temperature < 1e-5:
        best = argmax(row)
        return [float(token == best) for token in range(len(row))]
    probabilities = process(row, temperature, top_k, top_p)
    if probabilities is None:
        raise ValueError("a row without a finite maximum has no distribution; rows with one are accepted")
    return probabilities


def chi_square(counts: Mapping[Any, int], law: Mapping[Any, float]) -> tuple[float, int]:
    """Return Pearson's statistic and its degrees of freedom, cells with an expectation below 5 merged into one.

    If the merged cell is still below 5, the next smallest cells join it.  An impossible text gives an infinite statistic.
    """
    total = sum(counts.values())
    if total == 0:
        raise ValueError("counts of no texts at all were given; at least one text is accepted")
    if any(count > 0 and text not in law for text, count in counts.items()):
        return float("inf"), max(1, len(law) - 1)
    cells = sorted((mass * total, counts.get(text, 0)) for text, mass in law.items())
    expected, observed = 0.0, 0
    while cells and (cells[0][0] < 5.0 or 0.0 < expected < 5.0):
        smallest = cells.pop(0)
        expected, observed = expected + smallest[0], observed + smallest[1]
    if expected > 0.0:
        cells.append((expected, observed))
    return sum((n - e) ** 2 / e for e, n in cells), len(cells) - 1


def chi_square_ok(counts: Mapping[Any, int], law: Mapping[Any, float], false_alarm: float = 1e-9) -> bool:
    """Return whether ``counts`` of texts pass a chi-square test against ``law``; counts that follow it fail at that rate."""
    statistic, degrees = chi_square(counts, law)
    return degrees == 0 or statistic <= float(chi2.isf(false_alarm, degrees))
