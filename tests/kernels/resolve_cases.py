"""Calls of the resolves: random state and logits, a backend's result, and what the reference makes of the same in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.layouts.block import BlockCall
from packed_ss.reference.distributions import log_probabilities
from packed_ss.reference.stopping import Stops, ending
from packed_ss.reference.verification import Draft, draft_from, make_rule, verify_draft
from packed_ss.state import FINISH_REASONS, DecodeState

from .backends import Backend

MASK = 77


@dataclass
class Case:
    """One call of a resolve: logits [N, R, V] and state before it, its shape, and how it samples."""

    logits: Tensor
    state: DecodeState
    call: BlockCall
    mode: str = "greedy"
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    stops: list[list[int]] = field(default_factory=list)

    def set_stops(self, stops: list[list[int]]) -> None:
        """Puts stop ids and sequences into the state."""
        longest = max((len(stop) for stop in stops), default=1)
        rows = [[-1] * (longest - len(stop)) + stop for stop in stops]
        self.stops = stops
        self.state.stops = torch.tensor(rows, dtype=torch.int32).view(len(stops), longest)


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
    **sampling: Any,
) -> Case:
    """A call in the middle of a generation.  ``agree``: how often a verifier row favours its draft token; ``drafts``: |D|."""
    rng = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng, dtype=torch.int32)

    b, v, width = call.block_size, call.verifier_rows, call.block_size - 1
    value = torch.promote_types(dtype, torch.float32)
    prompts = [integers(0, vocab, int(integers(1, 6, 1))).tolist() for _ in range(n)]
    seeds = torch.randint(-(2**63), 2**63 - 1, (n,), generator=rng).tolist()
    state = DecodeState.start(
        prompts,
        max_new_tokens=40,
        block_size=b,
        capacity=64,
        stops=(),
        seeds=seeds,
        device=torch.device("cpu"),
        log_q=(vocab, value) if mode == "rejection" else None,
    )
    new = integers(0, 9, n) if call.shift == 0 else integers(0, 1, n)
    for i, prompt in enumerate(prompts):
        state.tokens[i, len(prompt) : len(prompt) + int(new[i])] = integers(0, vocab, int(new[i]))
    state.length += new
    state.cache_len.copy_(state.length - 1)
    state.limit.copy_(state.length + integers(1, 2 * b + 3, n))
    state.nfe.copy_(integers(1, 4, n) if call.shift == 0 else integers(0, 1, n))
    state.advances[:, 0] = new
    if v > 1:
        state.draft.copy_(integers(0, vocab, n, width))
        state.draft_len.copy_(integers(0, width + 1, n) if drafts is None else torch.full((n,), drafts))
    logits = torch.randn(n, call.rows, vocab, generator=rng) * scale
    case = Case(logits, state, call, mode, **sampling)
    if mode == "rejection" and v > 1:
        noise = torch.randn(n, width, vocab, generator=rng) * scale
        for i in range(n):
            for j in range(width):
                log_q = log_probabilities(noise[i, j].tolist(), case.temperature, case.top_k, case.top_p)
                state.draft_log_q[i, j] = torch.tensor(log_q, dtype=value)
                state.draft[i, j] = torch.multinomial(state.draft_log_q[i, j].exp(), 1, generator=rng)[0]
    favoured = torch.rand(n, v, generator=rng) < agree
    for i in range(n):
        for r in range(min(v, int(state.draft_len[i]))):
            if favoured[i, r]:
                logits[i, r, int(state.draft[i, r])] = logits[i, r].max() + 4 * scale
    case.logits = logits.to(dtype)
    return case


def finish(case: Case, i: int, reason: str) -> None:
    """Marks a sequence as finished before the call."""
    case.state.finish_reason[i] = FINISH_REASONS.index(reason)
    case.state.draft_len[i] = 0


def moved(state: DecodeState, device: str) -> DecodeState:
    """A copy of the state on a device."""
    return DecodeState(**{f.name: getattr(state, f.name).to(device, copy=True) for f in fields(state)})


def operands(case: Case, state: DecodeState, next_rows: tuple[BlockCall, Sequence[Tensor]] | None = None) -> list[Any]:
    """What the case's operator takes after the logits, in schema order."""
    call = case.call
    arguments = [*state.operands(), call.verifier_rows, call.block_size, list(call.cuts), call.shift]
    if next_rows is None:
        arguments += [MASK, 0, [], None, None, None]
    else:
        arguments += [MASK, next_rows[0].verifier_rows, list(next_rows[0].cuts), *next_rows[1]]
    if case.mode != "greedy":
        arguments += [state.seed, case.temperature, case.top_k, case.top_p]
    return [*arguments, state.draft_log_q] if case.mode == "rejection" else arguments


def run(backend: Backend, case: Case, next_call: BlockCall | None = None) -> tuple[DecodeState, list[Tensor]]:
    """The state after the call, and the next call's ids, positions and slots where its shape is given; on the CPU."""
    if case.logits.dtype not in backend.dtypes:
        pytest.skip(f"{backend.name} has no resolve of {case.logits.dtype}")
    state = moved(case.state, backend.device)
    rows: list[Tensor] = []
    if next_call is not None:
        shape = (case.state.length.shape[0], next_call.rows)
        rows = [torch.full(shape, -5, dtype=torch.int32, device=backend.device) for _ in range(3)]
    backend.ops[f"resolve_{case.mode}"](
        case.logits.to(backend.device), *operands(case, state, (next_call, rows) if next_call is not None else None)
    )
    return moved(state, "cpu"), [buffer.cpu() for buffer in rows]


@dataclass
class Expected:
    """One sequence after the call.  ``exact_draft``: no proposal row without a finite maximum cut the draft short."""

    tokens: list[int]
    finish_reason: str
    nfe: int
    advance: int
    draft: list[Draft]
    exact_draft: bool = True


def expected(case: Case, i: int) -> Expected:
    """Sequence i after the call, by the reference."""
    state, call = case.state, case.call
    n, prompt, nfe = int(state.length[i]), int(state.prompt_length[i]), int(state.nfe[i])
    tokens, reason = state.tokens[i, :n].tolist(), FINISH_REASONS[int(state.finish_reason[i])]
    if reason != "running":
        return Expected(tokens, reason, nfe, 0, [])
    rule = make_rule(case.mode, int(state.seed[i]), case.temperature, case.top_k, case.top_p)
    v, b, W = call.verifier_rows, call.block_size, call.block_size - 1
    a, region, skipped = 0, 0, 0
    if v:
        count = min(int(state.draft_len[i]), v - 1)
        D = [
            Draft(int(state.draft[i, j]), state.draft_log_q[i, j].tolist() if case.mode == "rejection" else None)
            for j in range(count)
        ]
        C, h, failed = verify_draft(rule, case.logits[i, : count + 1].tolist(), D, n)
        ids = {stop[0] for stop in case.stops if len(stop) == 1}
        stops = Stops(ids, [stop for stop in case.stops if len(stop) > 1])
        a, ended = ending(tokens[prompt:], C, int(state.limit[i]) - prompt, stops, failed)
        tokens = tokens + C[:a]
        if ended is not None:
            return Expected(tokens, ended, nfe + 1, a, [])
        if call.cuts:
            region = max(k for k, cut in enumerate(call.cuts) if cut <= h)
            skipped = a - call.cuts[region]
    if not call.cuts:
        return Expected(tokens, reason, nfe + 1, a, [])
    begin = v + region * b
    proposals = case.logits[i, begin + 1 - call.shift : begin + b][skipped:]
    D = draft_from(rule, proposals[:W].tolist(), len(tokens))
    return Expected(tokens, reason, nfe + 1, a, D, len(D) == len(proposals[:W]))


def check(case: Case, after: DecodeState) -> list[Expected]:
    """Compares every sequence of the state after the call with the reference, which is returned."""
    before, results = case.state, []
    for i in range(before.length.shape[0]):
        want = expected(case, i)
        n = len(want.tokens)
        assert int(after.length[i]) == n
        assert after.tokens[i, :n].tolist() == want.tokens
        assert FINISH_REASONS[int(after.finish_reason[i])] == want.finish_reason
        assert int(after.nfe[i]) == want.nfe
        assert int(after.cache_len[i]) == int(before.cache_len[i]) + want.advance
        advances = before.advances[i].clone()
        if want.nfe > int(before.nfe[i]):
            advances[int(before.nfe[i])] = want.advance
        assert after.advances[i].tolist() == advances.tolist()
        count = len(want.draft)
        if want.exact_draft or case.mode == "rejection":
            assert int(after.draft_len[i]) == count
        else:
            assert int(after.draft_len[i]) >= count
        assert after.draft[i, :count].tolist() == [d.token for d in want.draft]
        if case.mode == "rejection" and count:
            log_q = torch.tensor([d.log_q for d in want.draft], dtype=torch.float64)
            torch.testing.assert_close(after.draft_log_q[i, :count].double(), log_q, atol=1e-5, rtol=1e-5)
        results.append(want)
    for name in ("limit", "prompt_length", "stops", "seed"):
        assert torch.equal(getattr(after, name), getattr(before, name)), name
    return results


def expected_rows(state: DecodeState, call: BlockCall) -> list[list[list[int]]]:
    """ids, positions and slots of a call's rows, written out from the layout's definition."""
    ids, positions, slots = [], [], []
    for i in range(state.length.shape[0]):
        n = int(state.length[i])
        known = [int(state.tokens[i, n - 1]), *state.draft[i, : int(state.draft_len[i])].tolist()]
        known += [MASK] * (call.block_size - len(known))
        row_ids, offsets = known[: call.verifier_rows], list(range(call.verifier_rows))
        for cut in call.cuts:
            row_ids = row_ids + [known[cut]] + [MASK] * (call.block_size - 1)
            offsets += range(cut, cut + call.block_size)
        ids.append(row_ids)
        positions.append([n - 1 + offset for offset in offsets])
        slots.append([int(state.cache_len[i]) + r for r in range(call.rows)])
    return [ids, positions, slots]


def with_logits(case: Case, logits: Tensor) -> Case:
    """The same call on other logits, with a state of its own."""
    return replace(case, logits=logits, state=copy.deepcopy(case.state))
