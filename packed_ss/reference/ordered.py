"""Algorithm 3 of the paper, line by line, under the paper's names, and the serial reference of Proposition C.1.

P holds the accepted (position, token) pairs in acceptance order, D maps positions to draft tokens, pi is the order of the window
U, E the last position to generate.  Positions are output positions, numbered from 1 after the prompt.  Python counts ranks from
0: the paper's π(r) is pi[r - 1].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from packed_ss.reference.distributions import argmax, process
from packed_ss.reference.sequences import leading
from packed_ss.reference.stopping import FinishReason, Generation, Stops

Pair = tuple[int, int]
"""An output position and a token."""


@dataclass(frozen=True, eq=False)
class Accepted:
    """An accepted pair, and the accepted pairs that its own row attends to, in order, besides the prompt and itself.

    ``seen`` is fixed by the call that processes the row: a draft's in the call that accepts it, a correction's in the next one.
    It can hold pairs that a stop has dropped since, for what was computed stays as computed.
    """

    position: int
    token: int
    seen: tuple[Accepted, ...] = field(repr=False)


Conditional = Callable[[Sequence[Accepted], Sequence[Pair], Sequence[int]], Sequence[Sequence[float]]]
"""conditional(P, K, U): a row of V logits for each position of U, for the token at that position.

Given are the prompt (the function knows it), the accepted pairs P in acceptance order, and after them the pairs K, in order, each
of which sees P and the ones before it.  The rows do not see each other.  Verifier and drafter can be the same conditional.
"""

Order = str | Callable[[Sequence[int]], Sequence[int]]
"""An order policy: "left_to_right", "confidence", or a function from a window (ascending positions) to a permutation of it."""


class Iteration(NamedTuple):
    """One iteration: the order π of the window, h, A before the stopping rule, and the uncached rows of each call (Table 2)."""

    order: tuple[int, ...]
    matches: int
    accepted: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class OrderedGeneration(Generation):
    """A `Generation` in any order, with its iterations.

    ``tokens`` are in textual order; after an error, those before the first open position.  ``advances`` begins with the 0 of the
    call that caches the prompt.  Pairs that a later stop drops stay counted in the advance of the call that accepted them.
    """

    iterations: list[Iteration]


def packed(
    verifier: Conditional,
    drafter: Conditional,
    W: int,
    L: int,
    *,
    order: Order = "left_to_right",
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
) -> OrderedGeneration:
    """Algorithm 3: Packed-SS with any-order greedy decoding, window W, at most L new tokens.

    A consulted verifier row without a finite maximum ends the generation with "error", unless a stop makes its position
    superfluous; a proposal row without one leaves its position without a draft.
    """
    stops = Stops(stop_ids, stop_sequences)
    P: list[Accepted] = []  # line 1
    D: dict[int, int] = {}
    E, t = L, 1
    scores: dict[int, float] = {}
    failed: int | None = None
    waiting = 0  # accepted tokens whose rows are still to be processed: the paper's p = |N|
    advances, iterations = [0] * (L > 0), []
    while failed is None and unresolved(P, E):  # line 2
        U = window(P, E, W)  # lines 3 and 4
        pi = choose(order, U, scores)  # line 5
        kappa = leading(j in D for j in pi)  # line 6
        # in one model call:
        K = [(j, D[j]) for j in pi[:kappa]]
        v = [argmax(verifier(P, K[:r], [pi[r]])[0]) for r in range(min(kappa + 1, len(U)))]  # line 7
        q = drafter(P, [], U)
        z = {j: argmax(row) for j, row in zip(U, q, strict=True)}  # line 8

        h = leading(D[pi[r]] == v[r] for r in range(kappa))  # line 9
        A = min(h + 1, len(U))  # line 10
        C = [(pi[r], token) for r in range(A) if (token := v[r]) is not None]
        P, E = accept(P, C, h, E, stops)  # lines 11 to 13
        J = unresolved(P, E).intersection(U)  # line 14
        D = {j: token for j in J if (token := z[j]) is not None}  # line 15
        scores = {j: top for j, row in zip(U, q, strict=True) if (top := top_probability(row)) is not None}
        t = t + 1  # line 16

        failed = pi[h] if len(C) < A and pi[h] <= E else None
        iterations.append(Iteration(tuple(pi), h, len(C), (waiting + 3 * len(U),)))
        advances.append(sum(j <= E for j, _ in C))
        waiting = sum(j <= E for j, _ in C[h:])
    return finished(P, E, failed, stops, advances, iterations)  # line 18


def serial(
    verifier: Conditional,
    L: int,
    iterations: Iterable[Iteration],
    *,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
) -> list[int]:
    """The serial reference of Proposition C.1: one token after the other, at the positions that a run's iterations accepted.

    Iteration t generates A_t tokens greedily at π_t(1) ... π_t(A_t), each conditioned on P_{t-1} and on those before it in the
    group.  Returns the tokens in textual order.  ValueError where the iterations leave a position open.
    """
    stops = Stops(stop_ids, stop_sequences)
    P: list[Accepted] = []
    E = L
    for iteration in iterations:
        group: list[Pair] = []
        for j in iteration.order[: iteration.accepted]:
            token = argmax(verifier(P, group, [j])[0])
            if token is None:
                raise ValueError(f"the verifier row of position {j} has no finite maximum, which the run must have reported")
            group.append((j, token))
        P, E = accept(P, group, iteration.matches, E, stops)
    if left := unresolved(P, E):
        raise ValueError(f"the iterations leave the positions {sorted(left)} open, but all positions up to {E} must be accepted")
    return textual(P, E)


# The parts that every schedule shares.


def unresolved(P: Sequence[Accepted], E: int) -> set[int]:
    """Return the positions 1 ... E that P does not hold."""
    return set(range(1, E + 1)) - {a.position for a in P}


def window(P: Sequence[Accepted], E: int, W: int) -> list[int]:
    """Return U, ascending: the open positions among the W consecutive ones from the leftmost open one on, none after E."""
    open_positions = unresolved(P, E)
    return sorted(j for j in open_positions if j < min(open_positions) + W)


def choose(order: Order, U: Sequence[int], scores: Mapping[int, float]) -> list[int]:
    """Return the order policy's permutation of the window U; ``scores`` are the confidences that an earlier call left.

    "confidence" (App. E.6): by decreasing score, ties in textual order, positions without a score last.  ValueError for an
    unknown policy and for a function that does not return a permutation.
    """
    if order == "left_to_right":
        return list(U)
    if order == "confidence":
        return sorted(U, key=lambda j: (-scores.get(j, -1.0), j))
    if not callable(order):
        raise ValueError(f"order is {order!r}, but 'left_to_right', 'confidence' or a function of the window is accepted")
    returned = order(tuple(U))
    pi = list(returned) if isinstance(returned, Iterable) else [returned]
    if len(pi) != len(U) or any(j not in pi for j in U):
        raise ValueError(f"the order function returned {pi} for the window {list(U)}, but a permutation of it is accepted")
    return pi


def top_probability(row: Sequence[float]) -> float | None:
    """Return the probability of the most likely token, at temperature 1; None where the row's maximum is not finite."""
    p = process(row)
    return None if p is None else max(p)


def accept(P: Sequence[Accepted], C: Sequence[Pair], h: int, E: int, stops: Stops) -> tuple[list[Accepted], int]:
    """Append C to P by lines 11 to 13, and return the new P and E.

    The first h pairs of C are drafts, whose rows belong to this call and see everything before them; the others' rows belong to
    the next call, and see what the stopping rule has left.
    """
    E = min([E, *ends({a.position: a.token for a in P} | dict(C), stops)])
    seen = list(P)
    for j, token in C[:h]:
        seen.append(Accepted(j, token, tuple(seen)))
    kept = [a for a in seen if a.position <= E]
    for j, token in C[h:]:
        if j <= E:
            kept.append(Accepted(j, token, tuple(kept)))
    return kept, E


def ends(tokens: Mapping[int, int], stops: Stops) -> list[int]:
    """Return the last positions of all end markers in ``tokens`` (position -> token) that are complete.

    A stop id is one, and a stop sequence at consecutive positions, all of them accepted (App. E.2).
    """
    sequences = [[token] for token in stops.ids] + stops.sequences
    return [j for j in tokens for s in sequences if all(tokens.get(j - len(s) + 1 + i) == token for i, token in enumerate(s))]


def textual(P: Sequence[Accepted], E: int) -> list[int]:
    """Return the tokens of the positions 1 ... E in textual order, up to the first open one."""
    tokens = {a.position: a.token for a in P}
    return [tokens[j] for j in range(1, E + 1)[: leading(j in tokens for j in range(1, E + 1))]]


def finished(
    P: Sequence[Accepted], E: int, failed: int | None, stops: Stops, advances: list[int], iterations: list[Iteration]
) -> OrderedGeneration:
    """Return the record of a generation that has nothing left to do, or whose verifier row at ``failed`` has no argmax."""
    stopped = bool(ends({a.position: a.token for a in P}, stops))
    reason: FinishReason = "error" if failed is not None else "stop" if stopped else "length"
    return OrderedGeneration(textual(P, E), reason, advances, iterations)
