"""Probabilities of one position: the processed distribution, the acceptance test, the residual and the categorical draw.

Rows are lists of V floats.  Everything stays in the log domain, so that a probability of 1e-9 keeps its digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def is_finite_row(row: Sequence[float]) -> bool:
    """Return whether the maximum of a row is a finite number; single entries may be -inf (probability 0), none may be NaN."""
    return not any(math.isnan(x) for x in row) and math.isfinite(max(row))


def argmax(row: Sequence[float]) -> int | None:
    """Return the id of the largest entry, the lowest id on ties; None where the row's maximum is not finite."""
    return max(range(len(row)), key=row.__getitem__) if is_finite_row(row) else None


def log_probabilities(
    logits: Sequence[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> list[float] | None:
    """Return the log of the processed distribution: temperature, then top-k, then top-p, then softmax.

    ``top_k`` 0 and ``top_p`` 1 keep every token.  Top-k keeps the k largest logits; top-p keeps the shortest head of the
    descending order whose mass, of what top-k has left, reaches ``top_p``.  Both keep every token tied with the last one kept;
    the others have -inf.  None where the row's maximum is not finite; ValueError for a setting out of range.
    """
    if not (temperature > 0.0 and top_k >= 0 and 0.0 < top_p <= 1.0):
        raise ValueError(f"temperature > 0, top_k >= 0 and 0 < top_p <= 1 are accepted, not {temperature}, {top_k} and {top_p}")
    if not is_finite_row(logits):
        return None
    largest = max(logits)
    z = [(x - largest) / temperature for x in logits]
    if 0 < top_k < len(z):
        z = _keep_at_least(z, sorted(z, reverse=True)[top_k - 1])
    if top_p < 1.0:
        z = _keep_at_least(z, _last_kept_by_top_p(z, top_p))
    log_sum = math.log(math.fsum(math.exp(x) for x in z))
    return [x - log_sum for x in z]


def process(logits: Sequence[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[float] | None:
    """Return the processed distribution itself, exp of `log_probabilities`."""
    log_p = log_probabilities(logits, temperature, top_k, top_p)
    return None if log_p is None else [math.exp(x) for x in log_p]


def _keep_at_least(z: list[float], smallest: float) -> list[float]:
    return [x if x >= smallest else -math.inf for x in z]


def _last_kept_by_top_p(z: list[float], top_p: float) -> float:
    """Return the entry of the last token, in descending order, before which the mass is less than ``top_p``."""
    total = math.fsum(math.exp(x) for x in z)
    before, last = 0.0, max(z)
    for x in sorted(z, reverse=True):
        if before / total >= top_p:
            break
        before, last = before + math.exp(x), x
    return last


def accepts(u: float, log_p_d: float, log_q_d: float) -> bool:
    """Acceptance test of a draft token d: u < min(1, p(d) / Q(d)), strict, for u in (0, 1) and Q(d) > 0."""
    return math.log(u) < log_p_d - log_q_d


def log_residual(log_p: Sequence[float], log_q: Sequence[float]) -> list[float]:
    """Return log [p - Q]₊, not normalised: log p + log1p(-Q/p) where p > Q and -inf elsewhere.

    Where nothing is left (p equals Q up to rounding, so that a rejection had probability 0) the result is log p.
    """
    residual = [_log_difference(x, y) for x, y in zip(log_p, log_q, strict=True)]
    return residual if max(residual) > -math.inf else list(log_p)


def _log_difference(log_p: float, log_q: float) -> float:
    ratio = math.exp(log_q - log_p) if log_p > log_q else 1.0
    return log_p + math.log1p(-ratio) if ratio < 1.0 else -math.inf


def categorical(log_weights: Sequence[float], noise: Sequence[float]) -> int:
    """Draw an id with probability proportional to exp(log_weights) by Gumbel-max: argmax of log weight + Gumbel noise.

    A weight of 0 (-inf) is never drawn.  At least one weight is positive.
    """
    token = argmax([w + g for w, g in zip(log_weights, noise, strict=True)])
    if token is None:
        raise ValueError("a draw needs at least one finite log weight and no NaN")
    return token
