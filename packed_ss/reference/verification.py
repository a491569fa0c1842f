"""The three verification modes, as rules for one position, and the left-to-right check of a draft under any of them.

A rule turns rows of logits into tokens.  ``position`` is the absolute index, from 0, of the token in question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from packed_ss.reference.distributions import accepts, argmax, categorical, log_probabilities, log_residual
from packed_ss.reference.philox import ACCEPT, DRAFT, TARGET, Randomness
from packed_ss.reference.sequences import present

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy decoding."""


class Draft(NamedTuple):
    """A draft token and the log of the distribution it was drawn from (None where no rule will ask for it)."""

    token: int
    log_q: list[float] | None = None


class Rule(Protocol):
    """How one position is drafted, verified and sampled; None stands for a row without a finite maximum."""

    def draft(self, q: Sequence[float], position: int) -> Draft | None:
        """Draw the draft token of a position from its proposal logits."""

    def target(self, p: Sequence[float], position: int) -> int | None:
        """Draw the AR or bonus token of a position from its verifier logits."""

    def verify(self, p: Sequence[float], d: Draft, position: int) -> tuple[bool, int] | None:
        """Return (True, the draft token) if it is accepted, else (False, the correction)."""


class Greedy:
    """Argmax everywhere: accept d = argmax p."""

    def draft(self, q: Sequence[float], position: int) -> Draft | None:
        d = argmax(q)
        return None if d is None else Draft(d)

    def target(self, p: Sequence[float], position: int) -> int | None:
        return argmax(p)

    def verify(self, p: Sequence[float], d: Draft, position: int) -> tuple[bool, int] | None:
        v = self.target(p, position)
        return None if v is None else (d.token == v, v)


class _Sampled:
    """What rejection and coupled sampling share: the processed distribution, the noise, and the draw of a target token."""

    def __init__(self, randomness: Randomness, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> None:
        self.randomness, self.temperature, self.top_k, self.top_p = randomness, temperature, top_k, top_p

    def target(self, p: Sequence[float], position: int) -> int | None:
        log_p = self._distribution(p)
        return None if log_p is None else self._draw(log_p, position, TARGET)

    def _distribution(self, row: Sequence[float]) -> list[float] | None:
        return log_probabilities(row, self.temperature, self.top_k, self.top_p)

    def _draw(self, log_weights: Sequence[float], position: int, stream: int) -> int:
        return categorical(log_weights, self.randomness.gumbel(position, stream, len(log_weights)))


class Rejection(_Sampled):
    """Rejection sampling (Algorithm 2): the AR law, whatever the drafter."""

    def draft(self, q: Sequence[float], position: int) -> Draft | None:
        log_q = self._distribution(q)
        return None if log_q is None else Draft(self._draw(log_q, position, DRAFT), log_q)

    def verify(self, p: Sequence[float], d: Draft, position: int) -> tuple[bool, int] | None:
        log_p = self._distribution(p)
        if log_p is None:
            return None
        assert d.log_q is not None
        if accepts(self.randomness.uniform(position, ACCEPT), log_p[d.token], d.log_q[d.token]):
            return True, d.token
        return False, self._draw(log_residual(log_p, d.log_q), position, TARGET)


class Coupled(_Sampled):
    """Drafter and verifier draw with the same noise: the AR text of the same seed, token by token, whatever the drafter."""

    def draft(self, q: Sequence[float], position: int) -> Draft | None:
        d = self.target(q, position)
        return None if d is None else Draft(d)

    def verify(self, p: Sequence[float], d: Draft, position: int) -> tuple[bool, int] | None:
        v = self.target(p, position)
        return None if v is None else (d.token == v, v)


def make_rule(verification: str, seed: int = 0, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Rule:
    """Return the rule named "greedy", "rejection" or "coupled"; any of them is greedy below a temperature of 1e-5."""
    if verification not in ("greedy", "rejection", "coupled"):
        raise ValueError(f"verification is 'greedy', 'rejection' or 'coupled', not {verification!r}")
    if verification == "greedy" or temperature < GREEDY_BELOW:
        return Greedy()
    kind = Rejection if verification == "rejection" else Coupled
    return kind(Randomness(seed), temperature, top_k, top_p)


def draft_from(rule: Rule, q: Sequence[Sequence[float]], position: int) -> list[Draft]:
    """Draft the positions ``position``, ``position`` + 1, ... from the proposal rows ``q``, up to the first failed row."""
    return present(rule.draft(row, position + j) for j, row in enumerate(q))


def verify_draft(rule: Rule, p: Sequence[Sequence[float]], D: Sequence[Draft], n: int) -> tuple[list[int], int, bool]:
    """Check a draft left to right against its |D| + 1 verifier rows (Algorithm 1 lines 5-6, Algorithm 2 lines 5-8).

    Returns the accepted tokens C (the h leading drafts, then the correction or bonus), h, and whether the row after C failed.
    """
    C: list[int] = []
    for h, d in enumerate(D):
        verdict = rule.verify(p[h], d, n + h)
        if verdict is None:
            return C, h, True
        accepted, token = verdict
        C.append(token)
        if not accepted:
            return C, h, False
    bonus = rule.target(p[len(D)], n + len(D))
    return (C, len(D), True) if bonus is None else ([*C, bonus], len(D), False)
