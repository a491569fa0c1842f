"""Calls of the block layout: random state and logits, a backend's results, and what the reference makes of them in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from packed_ss.layouts.block import BlockCall
from packed_ss.reference.sequences import leading
from packed_ss.reference.stopping import Stops, ending
from packed_ss.reference.verification import Draft, Rule, make_rule, verify_draft
from packed_ss.state import FINISH_REASONS, RUNNING, BlockState, sampling_settings, stops_tensor

from .backends import Backend
from .row_cases import BEFORE, DRAFT, TARGET, Setting, drafted, wide

MASK = 77


@dataclass
class Case:
    """One call: logits [N, R, V] and state before it, its shape, and how it samples; stops by sequence."""

    logits: Tensor
    state: BlockState
    call: BlockCall
    mode: str
    settings: list[Setting]
    stops: list[list[list[int]]] = field(default_factory=list)

    def set_stops(self, stops: Sequence[Sequence[Sequence[int]]]) -> None:
        """Put each sequence's stop ids and sequences into the state."""
        self.stops = [[list(stop) for stop in one] for one in stops]
        self.state.stops = stops_tensor(self.stops)

    def rule(self, i: int) -> Rule:
        """The reference's for sequence i."""
        seed, setting = int(self.state.seed[i]), self.settings[i]
        if self.mode == "coupled" and not setting.greedy:
            return make_rule("coupled", seed, *setting)
        return make_rule("greedy") if self.mode == "greedy" else setting.rule(seed)


def random_case(
    seed: int,
    *,
    vocab: int,
    call: BlockCall,
    mode: str = "greedy",
    n: int = 3,
    dtype: torch.dtype = torch.float32,
    agree: float = 0.7,
    drafts: int | None = None,
    scale: float = 3.0,
    settings: Sequence[Setting] = (Setting(),),
) -> Case:
    """A call in the middle of a generation.  ``agree``: how often a verifier row favours its draft token; ``drafts``: |D|."""
    rng = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng, dtype=torch.int32)

    b, v, width = call.block_size, call.verifier_rows, call.block_size - 1
    value = wide(dtype)
    each = [settings[i % len(settings)] for i in range(n)]
    prompts = [integers(0, vocab, int(integers(1, 6, 1))).tolist() for _ in range(n)]
    seeds = torch.randint(-(2**63), 2**63 - 1, (n,), generator=rng).tolist()
    state = BlockState.start(
        prompts,
        max_new_tokens=40,
        block_size=b,
        capacity=64,
        sampling=sampling_settings(seeds, *zip(*each, strict=True)),
        stops=stops_tensor([[]] * n),
        device=torch.device("cpu"),
        log_q=(vocab, value) if mode == "rejection" else None,
    )
    new = integers(0, 9, n) if call.shift == 0 else integers(0, 1, n)
    for i, prompt in enumerate(prompts):
        state.tokens[i, len(prompt) : len(prompt) + int(new[i])] = integers(0, vocab, int(new[i]))
    state.length += new
    state.order += new[:, None]
    state.cache_len.copy_(state.length - 1)
    state.limit.copy_(state.length + integers(1, 2 * b + 3, n))
    state.nfe.copy_(integers(1, 4, n) if call.shift == 0 else integers(0, 1, n))
    state.advances[:, 0] = new
    state.retained.copy_(integers(-1, call.rows, n, width))  # of the call before: no longer to be drawn from
    logits = torch.randn(n, call.rows, vocab, generator=rng) * scale
    case = Case(logits, state, call, mode, each, [[]] * n)
    if v > 1:
        counts = integers(0, width + 1, n) if drafts is None else torch.full((n,), drafts)
        draft = integers(0, vocab, n, width)
        if mode == "rejection":
            draft, log_q = drafted(torch.randn(n, width, vocab, generator=rng) * scale, width, each, 1.0, seed=seed)
            state.draft_log_q.copy_(log_q)
        for i, count in enumerate(counts.tolist()):
            # Behind the end there are -1, or, where a row in between had no token, others' tokens.
            draft[i, count:] = torch.where(torch.arange(count, width) > count, integers(-1, vocab, width - count), -1)
        state.draft.copy_(draft)
    favoured = torch.rand(n, v, generator=rng) < agree
    for i in range(n):
        for r, token in enumerate(state.draft[i, :v].tolist()):
            if favoured[i, r] and token >= 0:
                logits[i, r, token] = logits[i, r].max() + 4 * scale
    case.logits = logits.to(dtype)
    return case


def finish(case: Case, i: int, reason: str) -> None:
    """Mark a sequence as finished before the call."""
    case.state.finish_reason[i] = FINISH_REASONS.index(reason)


def buffers(n: int, call: BlockCall) -> list[Tensor]:
    return [torch.full((n, call.rows), BEFORE, dtype=torch.int32) for _ in range(4)]


def pack(backend: Backend, state: BlockState, call: BlockCall) -> list[list[list[int]]]:
    """ids, positions, slots and predicts of a call's rows."""
    rows = buffers(len(state.length), call)
    backend("pack_block", state.operands(), MASK, call.verifier_rows, call.block_size, list(call.cuts), rows)
    return [buffer.tolist() for buffer in rows]


def run(backend: Backend, case: Case, following: BlockCall | None = None, *, all_rows: bool = False) -> BlockState:
    """The state after the call, composed as `packed_ss.resolve` does.

    With ``all_rows`` the tokens of all rows come before the advance, else the draft is drawn afterwards.  The rows of the call
    ``following`` are compared with the layout's definition.
    """
    backend.need(case.logits.dtype)
    state, call, logits, n = copy.deepcopy(case.state), case.call, case.logits, len(case.state.length)
    predicts = torch.tensor(expected_rows(state, call)[3], dtype=torch.int32).view(n, call.rows)
    ids = torch.full((n, call.rows if all_rows else call.verifier_rows), BEFORE, dtype=torch.int32)
    predicts, draft = predicts[:, : ids.shape[1]], None if all_rows else state.draft
    accepted = None
    if ids.shape[1] and case.mode == "rejection":
        assert not all_rows
        accepted = torch.full_like(ids, BEFORE)
        backend("verify_rows", logits, predicts, *state.sampling, state.draft, state.draft_log_q, ids, accepted)
    elif ids.shape[1] and case.mode == "greedy":
        backend("argmax_rows", logits, None, predicts, draft, ids, None)
    elif ids.shape[1]:
        backend("draw_rows", logits, None, predicts, draft, *state.sampling, TARGET, ids, None, None, 0)
    next_rows = advance(backend, state, call, ids, accepted, following)
    drawn_later = bool(call.cuts) and not all_rows
    kept = [expected(case, i).retained if drawn_later else [] for i in range(n)]
    assert state.retained.tolist() == [rows + [-1] * (state.draft.shape[1] - len(rows)) for rows in kept]
    if drawn_later:
        assert (state.draft == -1).all()
        next_ids = next_rows[0] if next_rows and following.verifier_rows and len(following.cuts) < 2 else None
        if case.mode == "greedy":
            backend("argmax_rows", logits, state.retained, state.order, None, state.draft, None)
        else:
            stream = TARGET if case.mode == "coupled" else DRAFT
            log_q = state.draft_log_q if case.mode == "rejection" else None
            backend(
                "draw_rows", logits, state.retained, state.order, None, *state.sampling, stream, state.draft, log_q, next_ids, 1
            )  # fmt: skip
            if next_ids is not None:
                assert next_ids.tolist() == expected_rows(state, following)[0]
    return state


def advance(
    backend: Backend,
    state: BlockState,
    call: BlockCall,
    ids: Tensor,
    accepted: Tensor | None = None,
    following: BlockCall | None = None,
) -> list[Tensor]:
    """Advance the state in place; returns the next rows, which must be those of the layout's definition."""
    rows = [] if following is None else buffers(len(state.length), following)
    target = (0, 0, []) if following is None else (MASK, following.verifier_rows, list(following.cuts))
    backend(
        "advance_block", ids, accepted, state.operands(), call.verifier_rows, call.block_size, list(call.cuts), call.shift,
        *target, rows,
    )  # fmt: skip
    if following is not None:
        assert [buffer.tolist() for buffer in rows] == expected_rows(state, following, pending=True)
    return rows


@dataclass
class Expected:
    """One sequence after the call: its draft by entry, None where a row has no token, and the rows that it is from."""

    tokens: list[int]
    finish_reason: str
    nfe: int
    advance: int = 0
    draft: list[Draft | None] = field(default_factory=list)
    retained: list[int] = field(default_factory=list)


def expected(case: Case, i: int) -> Expected:
    """Sequence i after the call, by the reference."""
    state, call = case.state, case.call
    n, prompt, nfe = int(state.length[i]), int(state.prompt_length[i]), int(state.nfe[i])
    tokens, reason = state.tokens[i, :n].tolist(), FINISH_REASONS[int(state.finish_reason[i])]
    if reason != "running":
        return Expected(tokens, reason, nfe)
    rule = case.rule(i)
    v, b, W = call.verifier_rows, call.block_size, call.block_size - 1
    a, region, skipped = 0, 0, 0
    if v:
        count = leading(token >= 0 for token in state.draft[i, : v - 1].tolist())
        D = [
            Draft(int(state.draft[i, j]), state.draft_log_q[i, j].tolist() if case.mode == "rejection" else None)
            for j in range(count)
        ]
        C, h, failed = verify_draft(rule, case.logits[i, : count + 1].tolist(), D, n)
        ids = {stop[0] for stop in case.stops[i] if len(stop) == 1}
        stops = Stops(ids, [stop for stop in case.stops[i] if len(stop) > 1])
        a, ended = ending(tokens[prompt:], C, int(state.limit[i]) - prompt, stops, failed)
        tokens = tokens + C[:a]
        if ended is not None:
            return Expected(tokens, ended, nfe + 1, a)
        if call.cuts:
            region = max(k for k, cut in enumerate(call.cuts) if cut <= h)
            skipped = a - call.cuts[region]
    if not call.cuts:
        return Expected(tokens, reason, nfe + 1, a)
    begin = v + region * b
    retained = list(range(begin + 1 - call.shift, begin + b))[skipped:][:W]
    draft = [rule.draft(case.logits[i, row].tolist(), len(tokens) + j) for j, row in enumerate(retained)]
    return Expected(tokens, reason, nfe + 1, a, draft, retained)


def check(case: Case, after: BlockState) -> list[Expected]:
    """Compare every sequence of the state after the call with the reference, which is returned."""
    before, results = case.state, []
    for i in range(len(before.length)):
        want = expected(case, i)
        n, running = len(want.tokens), int(before.finish_reason[i]) == RUNNING
        assert int(after.length[i]) == n
        assert after.tokens[i, :n].tolist() == want.tokens
        assert FINISH_REASONS[int(after.finish_reason[i])] == want.finish_reason
        assert int(after.nfe[i]) == want.nfe
        assert int(after.cache_len[i]) == int(before.cache_len[i]) + want.advance
        advances = before.advances[i].clone()
        if running:
            advances[int(before.nfe[i])] = want.advance
        assert after.advances[i].tolist() == advances.tolist()
        drafts = [-1 if d is None else d.token for d in want.draft]
        assert after.draft[i].tolist() == drafts + [-1] * (after.draft.shape[1] - len(drafts))
        order = list(range(n, n + after.order.shape[1])) if running else before.order[i].tolist()
        assert after.order[i].tolist() == order
        if case.mode == "rejection":
            for j, d in enumerate(want.draft):
                if d is not None:
                    log_q = torch.tensor(case.settings[i].log_p(case.logits[i, want.retained[j]].tolist()), dtype=torch.float64)
                    torch.testing.assert_close(after.draft_log_q[i, j].double(), log_q, atol=1e-5, rtol=1e-5)
        results.append(want)
    for name in ("limit", "prompt_length", "stops", "seed", "temperature", "top_k", "top_p"):
        assert torch.equal(getattr(after, name), getattr(before, name)), name
    return results


def check_call(backend: Backend, case: Case, following: BlockCall | None = None) -> list[Expected]:
    """Compare the call with the reference in each form in which it is computed."""
    results = check(case, run(backend, case, following))
    if case.mode == "greedy" or (case.mode == "coupled" and not backend.slow):
        check(case, run(backend, case, following, all_rows=True))
    return results


def expected_rows(state: BlockState, call: BlockCall, pending: bool = False) -> list[list[list[int]]]:
    """ids, positions, slots and predicts of a call's rows, written out from the layout's definition.

    With ``pending`` entries of the draft that are yet to be drawn count as there.
    """
    ids, positions, slots, predicts = [], [], [], []
    for i in range(len(state.length)):
        n, running = int(state.length[i]), int(state.finish_reason[i]) == RUNNING
        draft = state.draft[i].tolist()
        there = [d >= 0 or (pending and row >= 0) for d, row in zip(draft, state.retained[i].tolist(), strict=True)]
        kappa = leading(there)
        known = [int(state.tokens[i, n - 1]), *(token if token >= 0 else MASK for token in draft)]
        row_ids, offsets = known[: call.verifier_rows], list(range(call.verifier_rows))
        asked = [n + r if r <= kappa else -1 for r in range(call.verifier_rows)]
        for cut in call.cuts:
            row_ids = row_ids + [known[cut]] + [MASK] * (call.block_size - 1)
            offsets += range(cut, cut + call.block_size)
            least = 2 - call.shift if call.verifier_rows else 1
            asked += [n - 1 + call.shift + cut + k if cut <= kappa and k >= least else -1 for k in range(call.block_size)]
        ids.append(row_ids)
        positions.append([n - 1 + offset for offset in offsets])
        slots.append([int(state.cache_len[i]) + r for r in range(call.rows)])
        predicts.append(asked if running else [-1] * call.rows)
    return [ids, positions, slots, predicts]


def with_logits(case: Case, logits: Tensor) -> Case:
    """The same call on other logits, with a state of its own."""
    return replace(case, logits=logits, state=copy.deepcopy(case.state))


def one(call: BlockCall, draft: Sequence[int], **changes: Any) -> BlockState:
    """One running sequence of ten tokens, 10 to 19, of which four are the prompt's, before a call."""
    b = call.block_size
    state = BlockState.start(
        [list(range(10, 20))],
        max_new_tokens=changes.pop("left", 20),
        block_size=b,
        capacity=64,
        sampling=sampling_settings([0], [0.0], [0], [1.0]),
        stops=stops_tensor([changes.pop("stops", [])]),
        device=torch.device("cpu"),
    )
    state.cache_len.fill_(9)
    state.prompt_length.fill_(4)
    state.draft[0, : len(draft)] = torch.tensor(draft, dtype=torch.int32)
    return state
