"""Every schedule in any order: autoregressive, linear, the packed family by its set of branch cuts, and SetDLM's own decoder.

Cuts are ranks of the verification order.  `branched` with the cuts {0} is Algorithm 3, `packed_ss.reference.ordered.packed`, for
every verification mode; with {0 ... W - 1} it is Quadratic-SS.  Names are those of that module.  Each run begins with one counted
call that caches the prompt and accepts nothing (App. E.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from packed_ss.reference.distributions import argmax
from packed_ss.reference.ordered import (
    Accepted,
    Conditional,
    Iteration,
    Order,
    OrderedGeneration,
    Pair,
    accept,
    choose,
    finished,
    top_probability,
    unresolved,
    window,
)
from packed_ss.reference.sequences import leading
from packed_ss.reference.stopping import Stops
from packed_ss.reference.verification import Draft, Greedy, Rule


class _Sequence:
    """P and E, the record of calls, and the position whose verifier row has failed (None while none has)."""

    def __init__(self, L: int, stops: Stops, prompt_length: int = 0) -> None:
        self.P: list[Accepted] = []
        self.E, self.stops, self.prompt_length = L, stops, prompt_length
        self.failed: int | None = None
        self.waiting = 0  # accepted tokens whose rows are still to be processed: the paper's p = |N|
        self.advances = [0] * (L > 0)
        self.iterations: list[Iteration] = []

    @property
    def running(self) -> bool:
        return self.failed is None and bool(unresolved(self.P, self.E))

    def index(self, j: int) -> int:
        """The absolute index, from 0, of output position j: what its noise is addressed by."""
        return self.prompt_length + j - 1

    def commit(self, pi: Sequence[int], C: Sequence[Pair], h: int, failed: Collection[int], rows: tuple[int, ...]) -> None:
        """Append C as the outcome of an iteration; ``failed``: positions whose consulted row has no finite maximum."""
        self.P, self.E = accept(self.P, C, h, self.E, self.stops)
        self.waiting = sum(j <= self.E for j, _ in C[h:])
        self.failed = min((j for j in failed if j <= self.E), default=None)
        self.iterations.append(Iteration(tuple(pi), h, len(C), rows))
        self.advances += [0] * (len(rows) - 1) + [sum(j <= self.E for j, _ in C)]

    def drafts(self, rule: Rule, U: Sequence[int], q: Sequence[Sequence[float]]) -> dict[int, Draft]:
        """Draft the positions of U that are still open, each from its row of q; a failed row leaves none."""
        left = unresolved(self.P, self.E)
        drawn = {j: rule.draft(row, self.index(j)) for j, row in zip(U, q, strict=True) if j in left}
        return {j: d for j, d in drawn.items() if d is not None}

    def generation(self) -> OrderedGeneration:
        return finished(self.P, self.E, self.failed, self.stops, self.advances, self.iterations)


def autoregressive(
    verifier: Conditional,
    L: int,
    *,
    rule: Rule | None = None,
    prompt_length: int = 0,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
) -> OrderedGeneration:
    """One token per call, left to right: the output, or the law, that every left-to-right schedule must reproduce.

    ``rule``: greedy by default.  ``prompt_length``: tokens before position 1, for the addresses of the noise.
    """
    s = _Sequence(L, Stops(stop_ids, stop_sequences), prompt_length)
    while s.running:
        pi = window(s.P, s.E, 1)
        C, h, failed = _verify(s, rule or Greedy(), verifier(s.P, [], pi), {}, pi)
        s.commit(pi, C, h, failed, (s.waiting + 1,))
    return s.generation()


def linear(
    verifier: Conditional,
    drafter: Conditional,
    W: int,
    L: int,
    *,
    rule: Rule | None = None,
    order: Order = "left_to_right",
    prompt_length: int = 0,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
) -> OrderedGeneration:
    """Linear-SS: a call drafts every open position of the window from P (advance 0), the next verifies them.

    The order is fixed before the drafting call.  Confidence is that of the verifier's most likely token at each position in the
    iteration before (App. E.6): the verifying call has a row for every rank, which sees the drafts at all earlier ranks.
    """
    rule = _rule_for(rule, order)
    s = _Sequence(L, Stops(stop_ids, stop_sequences), prompt_length)
    scores: dict[int, float] = {}
    while s.running:
        U = window(s.P, s.E, W)
        pi = choose(order, U, scores)
        D = s.drafts(rule, U, drafter(s.P, [], U))
        p = [verifier(s.P, _pairs(D, pi[:r]), [pi[r]])[0] for r in range(len(pi))]
        C, h, failed = _verify(s, rule, p, D, pi)
        scores = {j: top for j, row in zip(pi, p, strict=True) if (top := top_probability(row)) is not None}
        s.commit(pi, C, h, failed, (s.waiting + len(U), 2 * len(U)))
    return s.generation()


def branched(
    verifier: Conditional,
    drafter: Conditional,
    W: int,
    L: int,
    *,
    cuts: Collection[int],
    rule: Rule | None = None,
    order: Order = "left_to_right",
    prompt_length: int = 0,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
) -> OrderedGeneration:
    """One call verifies D and, for each cut c, proposes every open position of the window from P and the drafts at c ranks.

    After h accepted drafts the next draft comes from the largest cut c <= h.  Confidence is the probability that the drafter gave
    a draft token when it was proposed (App. E.6).  0 is a cut, and none is W or more: a branch there would have nothing to draft.
    """
    if 0 not in cuts or not all(0 <= c < W for c in cuts):
        raise ValueError(f"the cuts contain 0 and lie in 0 ... {W - 1}, which {sorted(cuts)} do not")
    rule = _rule_for(rule, order)
    s = _Sequence(L, Stops(stop_ids, stop_sequences), prompt_length)
    D: dict[int, Draft] = {}
    scores: dict[int, float] = {}
    while s.running:
        U = window(s.P, s.E, W)
        pi = choose(order, U, scores)
        kappa = leading(j in D for j in pi)
        regions = [c for c in cuts if c < len(U)]
        # in one model call:
        K = _pairs(D, pi[:kappa])
        p = [verifier(s.P, K[:r], [pi[r]])[0] for r in range(min(kappa + 1, len(U)))]
        q = {c: drafter(s.P, K[:c], U) for c in regions if c <= kappa}

        C, h, failed = _verify(s, rule, p, D, pi)
        s.commit(pi, C, h, failed, (s.waiting + (2 + len(regions)) * len(U),))
        proposal = q[max(c for c in q if c <= h)]
        D = s.drafts(rule, U, proposal)
        scores = {j: top for j, row in zip(U, proposal, strict=True) if (top := top_probability(row)) is not None}
    return s.generation()


def quadratic(verifier: Conditional, drafter: Conditional, W: int, L: int, **settings: Any) -> OrderedGeneration:
    """Quadratic-SS: a branch for every number of accepted drafts that leaves a position open; settings as in `branched`."""
    return branched(verifier, drafter, W, L, cuts=range(W), **settings)


def native(
    conditional: Conditional,
    W: int,
    L: int,
    *,
    threshold: float = 0.9,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
) -> OrderedGeneration:
    """SetDLM's own decoder: sliding window, argmax tokens, all positions of probability ``threshold`` or more, at least the best.

    Ties for the best go to the leftmost.  A call's tokens join P in textual order, and the next call processes their rows.
    """
    s = _Sequence(L, Stops(stop_ids, stop_sequences))
    while s.running:
        U = window(s.P, s.E, W)
        rows = dict(zip(U, conditional(s.P, [], U), strict=True))
        top = {j: probability for j, row in rows.items() if (probability := top_probability(row)) is not None}
        best = max(top, key=lambda j: (top[j], -j), default=None)
        C = [(j, token) for j, row in rows.items() if (token := argmax(row)) is not None and (top[j] >= threshold or j == best)]
        s.commit(U, C, 0, rows.keys() - top.keys(), (s.waiting + len(U),))
    return s.generation()


def _rule_for(rule: Rule | None, order: Order) -> Rule:
    """The rule, greedy by default; ValueError for sampling in an order that would depend on what was drawn."""
    if rule is not None and not isinstance(rule, Greedy) and order != "left_to_right":
        raise ValueError(
            f"order is {order!r} with sampling, but left_to_right is accepted there: another order would depend on the draws"
        )
    return rule or Greedy()


def _pairs(D: Mapping[int, Draft], positions: Sequence[int]) -> list[Pair]:
    """The drafts at some positions, in their order; positions without one are passed over."""
    return [(j, D[j].token) for j in positions if j in D]


def _verify(
    s: _Sequence, rule: Rule, p: Sequence[Sequence[float]], D: Mapping[int, Draft], pi: Sequence[int]
) -> tuple[list[Pair], int, list[int]]:
    """Check the drafts along the order against their verifier rows (lines 9 and 10 for any rule).

    Returns the accepted pairs (h leading drafts, then the correction, which also stands where there is no draft, unless all of
    the window matched), h, and the position whose row failed, if one was consulted.
    """
    C: list[Pair] = []
    for h, (j, row) in enumerate(zip(pi, p, strict=False)):
        if j not in D:
            token = rule.target(row, s.index(j))
            return (C, h, [j]) if token is None else ([*C, (j, token)], h, [])
        verdict = rule.verify(row, D[j], s.index(j))
        if verdict is None:
            return C, h, [j]
        matched, token = verdict
        C.append((j, token))
        if not matched:
            return C, h, []
    return C, len(C), []
