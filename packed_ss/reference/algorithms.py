"""Algorithms 1 and 2 of the paper, line by line, under the paper's names.

P is the verified prefix, D the draft, Q the distributions it was drawn from, h the number of accepted drafts, C the accepted
tokens, A their number, a the advance.  Python counts from 0: the paper's d^(i), p^(i), z^(i) are D[i - 1], p[i - 1], z[i - 1].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from packed_ss.reference.distributions import accepts, argmax, categorical, log_probabilities, log_residual
from packed_ss.reference.philox import ACCEPT, DRAFT, TARGET, Randomness
from packed_ss.reference.sequences import leading, present
from packed_ss.reference.stopping import FinishReason, Generation, Stops, ending

Verifier = Callable[[Sequence[int], Sequence[int]], Sequence[Sequence[float]]]
"""verifier(P, D): |D| + 1 rows of V logits; row i (from 0) predicts the token after P, D[:i]."""

Drafter = Callable[[Sequence[int], int], Sequence[Sequence[float]]]
"""drafter(P, m): m rows of V logits; row j (from 0) predicts the token at position |P| + j from P alone."""


def packed(
    verifier: Verifier,
    drafter: Drafter,
    prompt: Sequence[int],
    W: int,
    L: int,
    *,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
    initial_extra_mask: bool = True,
) -> Generation:
    """Algorithm 1: Packed-SS with left-to-right greedy decoding, speculative width W, at most L new tokens.

    ``initial_extra_mask``: the first call proposes W + 1 positions (App. E.2), so that W drafts are left after its one token;
    False is Algorithm 1 as it stands.  A consulted verifier row without a finite maximum ends the generation with "error"; a
    proposal row without one ends the draft before it.
    """
    stops = Stops(stop_ids, stop_sequences)
    P, t = list(prompt), 1  # line 1
    D: list[int] = []
    advances: list[int] = []
    reason: FinishReason | None = None if L > 0 else "length"
    while reason is None:  # line 2
        # in one model call:
        v = [argmax(row) for row in verifier(P, D)]  # line 3
        z = [argmax(row) for row in drafter(P, W + 1 if t == 1 and initial_extra_mask else W)]  # line 4

        h = leading(D[i] == v[i] for i in range(len(D)))  # line 5
        C = present([*D[:h], v[h]])  # line 6: A = h + 1, or h where row h + 1 has failed
        a, reason = ending(P[len(prompt) :], C, L, stops, failed=v[h] is None)  # line 7
        C = C[:a]  # line 8
        P = P + C  # line 9
        D = present(z[a:])  # line 10
        t = t + 1  # line 11
        advances.append(a)
    return Generation(P[len(prompt) :], reason, advances)  # line 13


def packed_sampling(
    verifier: Verifier,
    drafter: Drafter,
    prompt: Sequence[int],
    W: int,
    L: int,
    *,
    randomness: Randomness,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
    initial_extra_mask: bool = True,
) -> Generation:
    """Algorithm 2: Packed-SS with left-to-right rejection sampling.

    p and Q are log-probabilities of the processed distribution; draws are by Gumbel-max with the noise of the token's absolute
    position.  Everything else is as in `packed`.
    """

    def distribution(row: Sequence[float]) -> list[float] | None:
        return log_probabilities(row, temperature, top_k, top_p)

    stops = Stops(stop_ids, stop_sequences)
    P, t = list(prompt), 1  # line 1
    D: list[int] = []
    Q: list[list[float]] = []
    advances: list[int] = []
    reason: FinishReason | None = None if L > 0 else "length"
    while reason is None:  # line 2
        n = len(P)
        # in one model call:
        p = [distribution(row) for row in verifier(P, D)]  # line 3
        q = [distribution(row) for row in drafter(P, W + 1 if t == 1 and initial_extra_mask else W)]  # line 4

        u = [randomness.uniform(n + i, ACCEPT) for i in range(len(D))]  # line 5
        h = leading(_accepted(u[i], p[i], Q[i], D[i]) for i in range(len(D)))  # line 6
        C = D[:h]
        target = p[h]
        if target is not None:
            R = log_residual(target, Q[h]) if h < len(D) else target
            c = categorical(R, randomness.gumbel(n + h, TARGET, len(R)))  # line 7
            C = [*C, c]  # line 8: A = h + 1
        a, reason = ending(P[len(prompt) :], C, L, stops, failed=target is None)  # line 9
        C = C[:a]  # line 10
        P = P + C  # line 11
        Q = present(q[a:])  # line 12
        D = [categorical(Q[j], randomness.gumbel(n + a + j, DRAFT, len(Q[j]))) for j in range(len(Q))]  # lines 12 and 13
        t = t + 1  # line 14
        advances.append(a)
    return Generation(P[len(prompt) :], reason, advances)  # line 16


def _accepted(u: float, log_p: Sequence[float] | None, log_q: Sequence[float], d: int) -> bool:
    return log_p is not None and accepts(u, log_p[d], log_q[d])
