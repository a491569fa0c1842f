"""Every schedule under every verification mode: autoregressive, linear, and the packed family by its set of branch cuts.

`branched` with the cuts {0} is Packed-SS, with {0 ... W} Quadratic-SS; anything between is a subset of the branches.  Names are
those of `packed_ss.reference.algorithms`, which states the packed schedule line by line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from packed_ss.reference.algorithms import Drafter, Verifier
from packed_ss.reference.stopping import FinishReason, Generation, Stops, ending
from packed_ss.reference.verification import Draft, Rule, draft_from, verify_draft


class _Sequence:
    """The prefix P, the record of calls, and the reason it ended (None while it runs)."""

    def __init__(self, prompt: Sequence[int], L: int, stops: Stops) -> None:
        self.P, self.L, self.stops = list(prompt), L, stops
        self.prompt_length = len(prompt)
        self.advances: list[int] = []
        self.reason: FinishReason | None = None if L > 0 else "length"

    def append(self, C: Sequence[int], failed: bool) -> int:
        """Append C up to its ending, as the outcome of one call, and return the advance a."""
        a, self.reason = ending(self.P[self.prompt_length :], C, self.L, self.stops, failed)
        self.P = self.P + list(C[:a])
        self.advances.append(a)
        return a

    def generation(self) -> Generation:
        assert self.reason is not None
        return Generation(self.P[self.prompt_length :], self.reason, self.advances)


def autoregressive(
    verifier: Verifier,
    prompt: Sequence[int],
    L: int,
    *,
    rule: Rule,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
) -> Generation:
    """One token per call, at most L: the output, or the law, that every other schedule must reproduce."""
    s = _Sequence(prompt, L, Stops(stop_ids, stop_sequences))
    while s.reason is None:
        C, _, failed = verify_draft(rule, verifier(s.P, []), [], len(s.P))
        s.append(C, failed)
    return s.generation()


def linear(
    verifier: Verifier,
    drafter: Drafter,
    prompt: Sequence[int],
    W: int,
    L: int,
    *,
    rule: Rule,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
    initial_extra_mask: bool = True,
    two_call_start: bool = False,
) -> Generation:
    """Linear-SS: a call drafts W tokens from P (advance 0), the next verifies them.

    ``initial_extra_mask``: the first call is a prefill, which verifies one token and drafts the W after it from the prompt
    alone, so that the second call verifies.  ``two_call_start`` (it overrides the former): the prefill only verifies one token,
    and the second call drafts.  With neither, the first call drafts from the prompt.
    """
    s = _Sequence(prompt, L, Stops(stop_ids, stop_sequences))
    D = _start(s, verifier, drafter, W, rule, initial_extra_mask, two_call_start)
    while s.reason is None:
        if D is None:
            D = _propose(s, drafter, W, rule)
        C, _, failed = verify_draft(rule, verifier(s.P, [d.token for d in D]), D, len(s.P))
        s.append(C, failed)
        D = None
    return s.generation()


def branched(
    verifier: Verifier,
    drafter: Drafter,
    prompt: Sequence[int],
    W: int,
    L: int,
    *,
    cuts: Collection[int],
    rule: Rule,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
    initial_extra_mask: bool = True,
    two_call_start: bool = False,
) -> Generation:
    """One call verifies D and proposes W positions from (P, d_1 ... d_c) for each cut c; 0 is a cut, none exceeds W.

    After h accepted drafts the next draft comes from the largest cut c <= h.  It keeps the positions still open: W - (a - c).
    The start is as in `linear`, except that with neither option the first call is a regular one with an empty draft, as in
    Algorithm 1.
    """
    if 0 not in cuts or not all(0 <= c <= W for c in cuts):
        raise ValueError(f"the cuts contain 0 and lie in 0 ... {W}, which {sorted(cuts)} do not")
    s = _Sequence(prompt, L, Stops(stop_ids, stop_sequences))
    D = _start(s, verifier, drafter, W, rule, initial_extra_mask, two_call_start) or []
    while s.reason is None:
        n = len(s.P)
        d = [draft.token for draft in D]
        # in one model call:
        p = verifier(s.P, d)
        q = {c: drafter(s.P + d[:c], W) for c in cuts if c <= len(D)}

        C, h, failed = verify_draft(rule, p, D, n)
        a = s.append(C, failed)
        c = max(cut for cut in q if cut <= h)
        if s.reason is None:  # then a = h + 1 > c
            D = draft_from(rule, q[c][a - c :], n + a)
    return s.generation()


def quadratic(
    verifier: Verifier,
    drafter: Drafter,
    prompt: Sequence[int],
    W: int,
    L: int,
    *,
    rule: Rule,
    stop_ids: Collection[int] = (),
    stop_sequences: Sequence[Sequence[int]] = (),
    initial_extra_mask: bool = True,
    two_call_start: bool = False,
) -> Generation:
    """Quadratic-SS: a branch for every possible number of accepted drafts, `branched` with the cuts 0 ... W."""
    return branched(
        verifier,
        drafter,
        prompt,
        W,
        L,
        cuts=range(W + 1),
        rule=rule,
        stop_ids=stop_ids,
        stop_sequences=stop_sequences,
        initial_extra_mask=initial_extra_mask,
        two_call_start=two_call_start,
    )


def _start(
    s: _Sequence, verifier: Verifier, drafter: Drafter, W: int, rule: Rule, initial_extra_mask: bool, two_call_start: bool
) -> list[Draft] | None:
    """Run the calls before the first regular one (App. E.2) and return the draft they leave; None if there are none to run."""
    if s.reason is not None or not (initial_extra_mask or two_call_start):
        return None
    n = len(s.P)
    q = [] if two_call_start else drafter(s.P, W + 1)
    C, _, failed = verify_draft(rule, verifier(s.P, []), [], n)
    a = s.append(C, failed)
    if two_call_start and s.reason is None:
        return _propose(s, drafter, W, rule)
    return draft_from(rule, q[a:], n + a)


def _propose(s: _Sequence, drafter: Drafter, W: int, rule: Rule) -> list[Draft]:
    """Run one call that only drafts the W positions after P."""
    s.advances.append(0)
    return draft_from(rule, drafter(s.P, W), len(s.P))
