"""Calls of the ordered layout's operators: random generations, a backend's results, and the same step on plain lists."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from packed_ss.layouts.ordered import OrderedCall
from packed_ss.ops import advance_ordered as plain
from packed_ss.ordered_state import OrderedState
from packed_ss.reference.ordered import choose, ends
from packed_ss.reference.sequences import leading
from packed_ss.reference.stopping import Stops
from packed_ss.rows import ORDERED_ROWS
from packed_ss.schedules import Branched, ordered_schedule
from packed_ss.state import FINISH_REASONS, RUNNING, sampling_settings, stops_tensor

from .backends import Backend

MASK = 77
SPARE = 10_000
SCHEDULES: dict[str, str | Branched] = {
    "autoregressive": "autoregressive",
    "linear": "linear",
    "packed": "packed",
    "quadratic": "quadratic",
    "native": "native",
    "branched": Branched((0, 2)),
}


@dataclass
class Step:
    """One call: the state before it, the results of its rows, how they advance it, and the call whose rows they write."""

    state: OrderedState
    call: OrderedCall
    ids: Tensor
    probability: Tensor | None = None
    accepted: Tensor | None = None
    by_confidence: bool = False
    native: bool = False
    threshold: float = 0.9
    stops: list[list[list[int]]] = field(default_factory=list)
    following: OrderedCall | None = None

    @property
    def operator(self) -> str:
        """The operator that advances the state."""
        return "advance_native" if self.native else "advance_ordered"


def operands(step: Step, state: OrderedState, rows: Sequence[Tensor]) -> list[Any]:
    """What the step's operator takes, in schema order."""
    call = step.call
    shape = target(step.following, rows) if step.following is not None else [0, 0, 0, 0, False, False, [], []]
    if step.native:
        return [step.ids, step.probability, state.operands(), call.window, step.threshold, *shape]
    return [
        step.ids, step.probability, step.accepted, state.operands(), call.waiting_rows, call.window, call.verifies,
        list(call.cuts), step.by_confidence, *shape,
    ]  # fmt: skip


def target(call: OrderedCall, rows: Sequence[Tensor]) -> list[Any]:
    """What operators take to write the rows of a call."""
    return [MASK, SPARE, call.waiting_rows, call.window, call.drafts, call.verifies, list(call.cuts), list(rows)]


def buffers(n: int, call: OrderedCall) -> list[Tensor]:
    shapes = [(n, call.rows)] * 4 + [(n, call.rows, -(-call.rows // 32))]
    return [torch.full(shape, -5, dtype=torch.int32) for shape in shapes]


def advance(backend: Backend, step: Step) -> OrderedState:
    """The state after the call; the next rows, where they are written, are those of the layout's definition."""
    state = copy.deepcopy(step.state)
    rows = [] if step.following is None else buffers(len(state.length), step.following)
    backend(step.operator, *operands(step, state, rows))
    if step.following is not None:
        check_rows(rows, expected_rows(state, step.following, pending=True))
        if not (state.retained >= 0).any():
            check_rows(rows, pack(backend, state, step.following))
    return state


def pack(backend: Backend, state: OrderedState, call: OrderedCall) -> list[Tensor]:
    """ids, positions, slots, predicts and tail_mask of a call's rows."""
    rows = buffers(len(state.length), call)
    backend("pack_ordered", state.operands(), *target(call, rows))
    return rows


# Random generations.


def prompted(prompts: list[list[int]], W: int, waiting: int, stops: list[list[list[int]]], most: int) -> OrderedState:
    """A state with the prompts in the cache, and the first window."""
    n = len(prompts)
    state = OrderedState.start(
        prompts,
        max_new_tokens=most,
        window=W,
        waiting=waiting,
        capacity=most + 6,
        sampling=sampling_settings(range(n), [0.0] * n, [0] * n, [1.0] * n),
        stops=stops_tensor(stops),
        device=torch.device("cpu"),
    )
    state.cache_len.copy_(state.prompt_length)
    return state


def start(
    r: random.Random, W: int, waiting: int, n: int, vocab: int, most: int = 16
) -> tuple[OrderedState, list[list[list[int]]]]:
    """n prompts in the cache, the first window, and each sequence's stops, of one to three tokens or none."""
    prompts = [[r.randrange(vocab) for _ in range(r.randint(1, 5))] for _ in range(n)]
    stops = [
        [[r.randrange(vocab) for _ in range(r.choice((1, 2, 2, 3)))] for _ in range(r.choice((0, 1, 2, 3)))] for _ in prompts
    ]
    limits = [r.randint(1, most) for _ in prompts]
    state = prompted(prompts, W, waiting, stops, most)
    for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        state.end[i] = len(prompt) + limit
        state.order[i, min(W, limit) :] = -1
    return state, stops


def results(
    r: random.Random,
    state: OrderedState,
    call: OrderedCall,
    vocab: int,
    *,
    agree: float = 0.75,
    fail: float,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Tokens and probabilities of M and R: a verifier row agrees with its draft often, some rows have none, many tie."""
    n = state.length.shape[0]
    ids = torch.tensor([[r.randrange(vocab) for _ in range(call.head_rows)] for _ in range(n)], dtype=torch.int32)
    ids = ids.view(n, call.head_rows)
    for i in range(n):
        for k in range(call.head_rows):
            rank, draft = k % call.window, int(state.draft[i, k % call.window])
            if call.verifies and k < call.window and draft >= 0 and r.random() < agree:
                ids[i, rank] = draft
            elif r.random() < fail * (1 if call.verifies and k < call.window else 2):
                ids[i, k] = -1
    probability = torch.tensor([[r.randint(1, 20) / 20 for _ in range(call.head_rows)] for _ in range(n)], dtype=dtype)
    return ids, probability.view(n, call.head_rows).masked_fill(ids < 0, 0)


@cache
def steps(*arguments: Any, **settings: Any) -> tuple[Step, ...]:
    """`generation`, kept: nobody changes its steps."""
    return tuple(generation(*arguments, **settings))


def generation(
    seed: int,
    schedule: str,
    W: int,
    order: str = "left_to_right",
    *,
    sampled: str = "",
    vocab: int = 4,
    n: int = 3,
    most: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Iterator[Step]:
    """The calls of n sequences until all have finished, each with a state of its own; plain torch takes them along.

    ``order``: a name, or "shuffled" for an order of the host's.  ``sampled``: "" or, left to right, "rejection" or "coupled",
    whose draft is drawn after the advance.  Every other call writes the rows of the next one, in its full shape.
    """
    r = random.Random(seed)
    cycle = ordered_schedule(SCHEDULES[schedule], W).cycle
    width, waiting = max(call.window for call in cycle), max(call.waiting_rows for call in cycle)
    state, stops = start(r, width, waiting, n, vocab, most)
    step = Step(state, OrderedCall(0, width, False, False, ()), torch.zeros((n, 0), dtype=torch.int32), stops=stops)
    plain.advance_ordered(*operands(step, state, []))
    for calls in itertools.count():
        for k, call in enumerate(cycle):
            progress = state.progress()
            if not any(progress.open_positions):
                return
            following = cycle[(k + 1) % len(cycle)] if (calls + k + seed) % 2 else None
            if r.random() < 0.7:  # as a decoder does where rows cost time
                u = max(progress.open_positions)
                call = OrderedCall(
                    min(call.waiting_rows, max(progress.waiting)),
                    u,
                    call.drafts,
                    call.verifies,
                    tuple(cut for cut in call.cuts if cut < u),
                )
            if order == "shuffled" and k == 0:
                _shuffle(r, state)
            fail = 0.01 if schedule == "native" else 0.05  # native consults every row
            ids, probability = results(r, state, call, vocab, fail=fail, dtype=dtype)
            step = Step(copy.deepcopy(state), call, ids, probability, None, order == "confidence", schedule == "native")
            step.stops, step.following = stops, following
            if not step.by_confidence and not step.native:
                step.probability = None
            if sampled:
                step.ids = ids[:, : call.verifies * call.window].contiguous()
                step.accepted = _accepted(step) if sampled == "rejection" and call.verifies else None
            yield step
            rows = [] if following is None else buffers(n, following)
            getattr(plain, step.operator)(*operands(step, state, rows))
            if sampled and call.cuts:
                drawn = torch.tensor([[r.randrange(-1, vocab) for _ in range(width)] for _ in range(n)], dtype=torch.int32)
                state.draft.copy_(torch.where(state.retained >= 0, drawn, -1))


def _shuffle(r: random.Random, state: OrderedState) -> None:
    for i in range(len(state.order)):
        ranks = list(range(int((state.order[i] >= 0).sum())))
        r.shuffle(ranks)
        for values in (state.order, state.draft):
            values[i, : len(ranks)] = values[i, ranks]


def _accepted(step: Step) -> Tensor:
    """What verify_rows says where ``ids`` have the draft: 1 as long as they do, then 0; ids are -1 after the first other."""
    window = step.call.window
    drafted = step.state.draft[:, :window]
    same = ((step.ids == drafted) & (drafted >= 0)).int().cumprod(1)
    step.ids = torch.where(torch.arange(window) > same.sum(1, keepdim=True), -1, step.ids).contiguous().int()
    return same.int()


# The same step on plain lists.


@dataclass
class Expected:
    """One sequence after a call; slots are the positions in the cache."""

    tokens: dict[int, int]
    slots: list[int]
    waiting: list[int]
    order: list[int]
    draft: dict[int, int]
    end: int
    stopped: bool
    reason: str
    advance: int
    retained: list[int]
    moved_from: list[int]


def expected(step: Step, i: int) -> Expected:
    """Sequence i, which is running, after the call: Algorithm 3, lines 9-15, or the native decoder's step."""
    s, call, begin = step.state, step.call, int(step.state.prompt_length[i])
    tokens = {j: token for j, token in enumerate(s.tokens[i].tolist()) if token >= 0}
    slots, waiting = s.cached[i, : int(s.cache_len[i])].tolist(), [j for j in s.waiting[i].tolist() if j >= 0]
    pi = [j for j in s.order[i, : call.window].tolist() if j >= 0]
    D = {j: token for j, token in zip(pi, s.draft[i].tolist(), strict=False) if token >= 0}
    ids, end, u = step.ids[i].tolist(), int(s.end[i]), len(pi)
    probability = step.probability[i].tolist() if step.probability is not None else [0.0] * len(ids)
    if call.waiting_rows or step.native:
        slots, waiting = slots + waiting, []
    h, failed, C = 0, None, []
    if step.native:
        found = [r for r in range(u) if ids[r] >= 0]
        best = max(found, key=lambda r: (probability[r], -r), default=None)
        threshold = torch.tensor(step.threshold, dtype=step.probability.dtype).item()
        C = [(pi[r], ids[r]) for r in found if probability[r] >= threshold or r == best]
        failed = min((pi[r] for r in range(u) if ids[r] < 0), default=None)
    elif call.verifies:
        yes = [ids[r] == D.get(pi[r]) if step.accepted is None else bool(step.accepted[i, r]) for r in range(u)]
        h = leading(yes[r] and pi[r] in D for r in range(u))
        C = [(pi[r], D[pi[r]]) for r in range(h)] + [(pi[r], ids[r]) for r in range(h, min(h + 1, u)) if ids[r] >= 0]
        failed = pi[h] if h < u and ids[h] < 0 else None
    tokens |= dict(C)
    slots += [j for j, _ in C[:h]]
    waiting = [*waiting, *(j for j, _ in C[h:])]
    generated = {j: token for j, token in tokens.items() if j >= begin}
    mine = step.stops[i]
    stops = Stops([stop[0] for stop in mine if len(stop) == 1], [stop for stop in mine if len(stop) > 1])
    found_ends = ends(generated, stops)
    end = min([end, *(j + 1 for j in found_ends)])
    moved_from = [slot for slot, j in enumerate(slots) if j < end]
    slots, waiting = [slots[slot] for slot in moved_from], [j for j in waiting if j < end]
    tokens = {j: token for j, token in tokens.items() if j < end}
    open_positions = [j for j in range(begin, end) if j not in tokens]
    reason = ("stop" if found_ends else "length") if not open_positions else "running"
    if failed is not None and failed < end:
        reason = "error"
    going = reason == "running"

    first = call.window * call.verifies
    drawn_later = len(ids) == first
    region = dict.fromkeys(pi, -1)
    if call.cuts:
        first += call.window * max(k for k, cut in enumerate(call.cuts) if cut <= h)
        if not drawn_later:
            region = {j: first + r for r, j in enumerate(pi)}
    proposed = {j: ids[row] for j, row in region.items() if row >= 0 and ids[row] >= 0}
    a = min(h + 1, u) if call.verifies else 0
    retained = [first + r for r in range(a, u)] if call.cuts and drawn_later and going else []
    if not call.verifies and not step.native:
        return Expected(
            tokens, slots, waiting, pi, proposed if call.cuts else D, end, bool(found_ends), reason, 0, retained, moved_from
        )
    U = [j for j in open_positions if j < open_positions[0] + s.order.shape[1]] if going else []
    if not call.cuts:
        region = {j: r for r, j in enumerate(pi)}
    scores = {j: probability[row] for j, row in region.items() if row >= 0 and ids[row] >= 0}
    order = choose("confidence" if step.by_confidence else "left_to_right", U, scores)
    draft = {} if step.native else {j: proposed[j] for j in U if j in proposed}
    return Expected(
        tokens, slots, waiting, order, draft, end, bool(found_ends), reason, sum(j < end for j, _ in C), retained, moved_from
    )


def check(step: Step, after: OrderedState) -> list[Expected | None]:
    """Compares every sequence of the state after the call with the lists' step, which is returned; None where it had finished."""
    before, out = step.state, []
    for i in range(before.length.shape[0]):
        if before.finish_reason[i]:
            _check_finished(step, after, i)
            out.append(None)
            continue
        want = expected(step, i)
        T, W = before.tokens.shape[1], before.order.shape[1]
        assert after.tokens[i].tolist() == [want.tokens.get(j, -1) for j in range(T)]
        kept = len(want.slots)
        assert int(after.cache_len[i]) == kept
        assert after.cached[i, :kept].tolist() == want.slots
        dropped = next((slot for slot, j in enumerate(want.moved_from) if slot != j), kept)
        assert int(after.first_moved[i]) == dropped
        assert after.moved_from[i, dropped:kept].tolist() == want.moved_from[dropped:]
        assert after.waiting[i].tolist() == want.waiting + [-1] * (before.waiting.shape[1] - len(want.waiting))
        assert after.order[i].tolist() == want.order + [-1] * (W - len(want.order))
        if step.native:
            assert torch.equal(after.draft[i], before.draft[i])
        else:
            assert after.draft[i].tolist() == [want.draft.get(j, -1) for j in want.order] + [-1] * (W - len(want.order))
        assert after.retained[i].tolist() == want.retained + [-1] * (W - len(want.retained))
        assert int(after.end[i]) == want.end
        assert bool(after.stopped[i]) == want.stopped
        assert FINISH_REASONS[int(after.finish_reason[i])] == want.reason
        assert int(after.length[i]) == next(j for j in range(int(before.prompt_length[i]), T) if j not in want.tokens)
        calls = int(before.nfe[i])
        assert int(after.nfe[i]) == calls + 1
        advances = before.advances[i].clone()
        advances[calls] = want.advance
        assert torch.equal(after.advances[i], advances)
        out.append(want)
    for name in ("prompt_length", "stops", "seed"):
        assert torch.equal(getattr(after, name), getattr(before, name)), name
    return out


def _check_finished(step: Step, after: OrderedState, i: int) -> None:
    """A sequence that had finished stays as it is; nothing of it moves, and nothing is to be drawn."""
    before = step.state
    for name in ("tokens", "length", "cache_len", "finish_reason", "nfe", "end", "stopped", "order", "draft"):
        assert torch.equal(getattr(after, name)[i], getattr(before, name)[i]), name
    kept = int(before.cache_len[i])
    assert torch.equal(after.cached[i, :kept], before.cached[i, :kept])
    assert torch.equal(after.advances[i, : int(before.nfe[i])], before.advances[i, : int(before.nfe[i])])
    assert int(after.first_moved[i]) == kept
    assert (after.retained[i] == -1).all()


def expected_rows(state: OrderedState, call: OrderedCall, pending: bool = False) -> list[Tensor]:
    """What `pack` returns, written out from the layout's definition.

    With ``pending`` entries of the draft that are yet to be drawn count as there.
    """
    n = state.length.shape[0]
    ids, positions, slots, predicts = [], [], [], []
    mask = torch.zeros((n, call.rows, 32 * -(-call.rows // 32)), dtype=torch.bool)
    for i in range(n):
        due = [j for j in state.waiting[i, : call.waiting_rows].tolist() if j >= 0]
        pi = [j for j in state.order[i, : call.window].tolist() if j >= 0]
        draft, retained = state.draft[i, : len(pi)].tolist(), state.retained[i, : len(pi)].tolist()
        there = [d >= 0 or (pending and row >= 0) for d, row in zip(draft, retained, strict=True)]
        p, u, cache_len = len(due), len(pi), int(state.cache_len[i])
        beyond = [-1] * (call.window - u)
        stands_for = due + [-1] * (call.waiting_rows - p) + (pi + beyond) * (call.drafts + call.verifies + len(call.cuts))
        known = [int(state.tokens[i, j]) for j in due] + [MASK] * (call.waiting_rows - p)
        if call.drafts:
            known += [token if token >= 0 else MASK for token in draft] + [MASK] * (call.window - u)
        ids.append(known + [MASK] * (call.rows - len(known)))
        positions.append([max(j, 0) for j in stands_for])
        tail = [row if row < call.waiting_rows else row - call.waiting_rows + p for row in range(call.rows)]
        slots.append([cache_len + t if j >= 0 else SPARE for t, j in zip(tail, stands_for, strict=True)])
        kappa = leading(there)
        asked = [-1] * (call.waiting_rows + call.drafts * call.window)
        if call.verifies:
            asked += [j if r <= kappa else -1 for r, j in enumerate(pi)] + beyond
        for cut in call.cuts:
            asked += [j if cut <= kappa and cut + call.verifies <= r else -1 for r, j in enumerate(pi)] + beyond
        predicts.append(asked if int(state.finish_reason[i]) == RUNNING else [-1] * call.rows)
        seen = call.visibility(p, there)
        for row in range(call.rows):
            for other in seen[row].nonzero()[0].tolist():
                mask[i, row, tail[other]] = True
    bits = mask.view(n, call.rows, -1, 32).long() << torch.arange(32)
    words = bits.sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).int()
    return [
        *(torch.tensor(values, dtype=torch.int32).view(n, call.rows) for values in (ids, positions, slots, predicts)),
        words,
    ]


def check_rows(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Compare rows and mask."""
    for one, ours, theirs in zip(ORDERED_ROWS, got, want, strict=True):
        assert torch.equal(ours, theirs), one.name


def expected_cache(
    cache: Tensor, cache_len: Sequence[int], first_moved: Sequence[int], moved_from: Sequence[Sequence[int]]
) -> Tensor:
    """Cached pairs [layers, N, C, Hkv, D] after they have moved."""
    out = cache.clone()
    for i, (begin, end) in enumerate(zip(first_moved, cache_len, strict=True)):
        for slot in range(begin, end):
            out[:, i, slot] = cache[:, i, moved_from[i][slot]]
    return out
