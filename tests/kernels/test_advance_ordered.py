"""advance_ordered, advance_native, compact_cache and pack_ordered: generations, step by step, against plain lists."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from itertools import islice

import pytest
import torch

from packed_ss.layouts.ordered import OrderedCall
from packed_ss.ordered_state import ORDERED_STATE, OrderedState

from .backends import BACKENDS, Backend
from .ordered_cases import (
    SCHEDULES,
    Step,
    advance,
    buffers,
    check,
    check_rows,
    expected_cache,
    expected_rows,
    generation,
    operands,
    pack,
    prompted,
    start,
    steps,
    target,
)

KINDS = [
    (schedule, order, "")
    for schedule in ("linear", "packed", "quadratic", "branched")
    for order in ("left_to_right", "confidence", "shuffled")
]
KINDS += [("autoregressive", "left_to_right", ""), ("native", "left_to_right", "")]
KINDS += [
    (schedule, "left_to_right", mode)
    for schedule in ("autoregressive", "linear", "packed", "branched")
    for mode in ("rejection", "coupled")
]


@pytest.mark.parametrize(("schedule", "order", "sampled"), KINDS, ids=["-".join(filter(None, kind)) for kind in KINDS])
def test_every_schedule(backend: Backend, schedule: str, order: str, sampled: str) -> None:
    """Windows of 3 to 11, ends inside them, rows without a token, sequences at different stages, with the next rows."""
    reasons, drops, advances = set(), 0, set()
    for seed in range(2 if backend.slow else 9):
        dtype = torch.float64 if seed % 3 == 0 and torch.float64 in backend.dtypes else torch.float32
        W = 3 + seed
        for k, step in enumerate(steps(seed, schedule, W, order, sampled=sampled, dtype=dtype)):
            if backend.slow and k > 3:
                break
            for want in filter(None, check(step, advance(backend, step))):
                reasons.add(want.reason)
                drops += want.moved_from != list(range(len(want.moved_from)))
                advances.add(want.advance)
    if not backend.slow:
        assert reasons >= {"running", "stop", "length"}
        assert max(advances) >= (1 if schedule == "autoregressive" else 3)
        assert drops > 0 or order == "left_to_right"


@pytest.mark.parametrize("W", [1, 2, 40, 300])
@pytest.mark.parametrize("schedule", ["autoregressive", "linear", "packed", "native"])
def test_window_widths(backend: Backend, schedule: str, W: int) -> None:
    """From one position to more than a warp and a block have threads."""
    order = "left_to_right" if schedule == "native" else "confidence"
    for seed in range(1 if backend.slow else 3):
        calls = generation(seed, schedule, W, order, n=2, most=min(2 * W + 3, 350), vocab=2 if W < 9 else 30)
        for step in islice(calls, 2 if backend.slow or W > 99 else 6):
            check(step, advance(backend, step))


def one(W: int, *, prompt: list[int] | None = None, stops: list[list[int]] | None = None, left: int = 20) -> OrderedState:
    """One sequence whose prompt is in the cache."""
    return prompted([prompt or [5, 6]], W, 1, [stops or []], left)


def verify(
    backend: Backend, state: OrderedState, order: list[int], draft: list[int], ids: list[int], stops: list[list[int]]
) -> OrderedState:
    """A call of a verifier's rows alone, its order and draft given."""
    u, W = len(order), state.order.shape[1]
    state.order[0] = torch.tensor(order + [-1] * (W - u))
    state.draft[0] = torch.tensor(draft + [-1] * (W - u))
    step = Step(state, OrderedCall(1, W, True, True, ()), torch.tensor([ids + [0] * (W - u)], dtype=torch.int32))
    step.stops, step.following = [stops], OrderedCall(1, W, True, True, (0,))
    after = advance(backend, step)
    check(step, after)
    return after


def test_a_marker_split_over_two_calls_and_completed_by_a_correction(backend: Backend) -> None:
    stops = [[1, 2, 3]]
    state = one(4, stops=stops)
    state = verify(backend, state, [4, 2, 3, 5], [3, 1, 0, 0], [3, 1, 9, 0], stops)  # 4 and 2 drafted, then 3 corrected: 1 9 3
    assert (state.end.item(), state.stopped.item(), state.waiting.item()) == (22, 0, 3)
    state = one(4, stops=stops)
    state = verify(backend, state, [4, 2, 3, 5], [3, 1, 0, 0], [3, 1, 2, 0], stops)  # 1 2 3 by the correction
    assert (state.end.item(), state.stopped.item(), state.finish_reason.item(), state.length.item()) == (5, 1, 1, 5)
    state = one(4, stops=stops)
    state = verify(backend, state, [3, 2, 4, 5], [2, 9, 0, 0], [2, 1, 0, 0], stops)  # 2 drafted, 1 corrected: 1 2
    state = verify(backend, state, [4, 5, 6], [-1, -1, -1], [3, 0, 0], stops)
    assert (state.end.item(), state.finish_reason.item()) == (5, 1)


def test_a_marker_after_a_gap_drops_what_lies_beyond_it_and_the_gap_stays_open(backend: Backend) -> None:
    stops = [[1, 2], [7]]
    state = one(6, stops=stops)
    state = verify(backend, state, [7, 4, 6, 2, 3, 5], [9, 1, 9, 0, 0, 0], [9, 1, 9, 8, 0, 0], stops)
    assert (state.cached[0, :5].tolist(), state.waiting.item(), state.length.item()) == ([0, 1, 7, 4, 6], 2, 3)
    state = verify(backend, state, [5, 8, 3], [2, 0, 0], [2, 4, 0], stops)  # 1 2 at 4 and 5; 6, 7 and 8 are gone
    assert (state.end.item(), state.finish_reason.item(), state.length.item()) == (6, 0, 3)
    assert state.cached[0, : state.cache_len.item()].tolist() == [0, 1, 4, 2, 5]
    assert (state.first_moved.item(), state.moved_from[0, 2:5].tolist(), state.waiting.item()) == (2, [3, 5, 6], -1)
    assert state.order[0].tolist() == [3, -1, -1, -1, -1, -1]


def test_of_two_markers_the_earlier_one_counts(backend: Backend) -> None:
    stops = [[1], [2, 2]]
    state = one(5, stops=stops)
    state = verify(backend, state, [5, 6, 3, 4, 2], [1, 0, 2, 2, 0], [1, 0, 2, 2, 8], stops)
    assert (state.end.item(), state.waiting.item(), state.finish_reason.item()) == (5, 2, 1)
    assert state.cached[0, : state.cache_len.item()].tolist() == [0, 1, 3, 4]


def test_stops_do_not_reach_into_the_prompt(backend: Backend) -> None:
    stops = [[6, 3]]
    assert verify(backend, one(2, stops=stops), [2, 3], [-1, -1], [3, 0], stops).finish_reason.item() == 0
    assert verify(backend, one(2, prompt=[5], stops=stops), [1, 2], [6, -1], [6, 3], stops).finish_reason.item() == 1


def test_a_failed_row_beyond_the_new_end_is_no_error(backend: Backend) -> None:
    stops = [[1]]
    assert verify(backend, one(3, stops=stops), [2, 4, 3], [1, -1, -1], [1, -1, 0], stops).finish_reason.item() == 1
    assert verify(backend, one(3), [2, 4, 3], [1, -1, -1], [1, -1, 0], []).finish_reason.item() == 3


@pytest.mark.parametrize("schedule", ["packed", "linear", "native"])
def test_a_sequence_that_has_finished_stays_as_it_is(backend: Backend, schedule: str) -> None:
    """Also one that has moved pairs in its last call: they do not move again."""
    for step in steps(3, schedule, 4, n=2, vocab=5)[:3]:
        state = copy.deepcopy(step.state)
        state.finish_reason[0], state.order[0], state.draft[0], state.first_moved[0] = 1, -1, -1, 0
        changed = replace(step, state=state)
        check(changed, advance(backend, changed))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_and_masks_of_the_next_call(backend: Backend, schedule: str) -> None:
    """Those of the layout's definition, of every call of a generation, with missing drafts and of every width."""
    partial = 0
    for seed, W in enumerate((3, 4, 9) if backend.slow else (3, 4, 5, 8, 9, 17, 33)):
        order = "left_to_right" if schedule == "native" else ("confidence", "shuffled")[seed % 2]
        for k, step in enumerate(steps(seed, schedule, W, order)):
            if k == (2 if backend.slow else 8):
                break
            want = expected_rows(step.state, step.call)
            kappa = ((step.state.draft >= 0) & (step.state.order >= 0)).int().cumprod(1).sum(1)
            partial += int(((kappa > 0) & (kappa < step.call.window - 1)).sum()) if step.call.verifies else 0
            check_rows(pack(backend, step.state, step.call), want)
    assert partial > 0 or backend.slow or schedule in ("autoregressive", "native")


@pytest.mark.parametrize(("waiting", "W"), [(1, 31), (1, 32), (0, 64), (5, 9), (31, 16), (40, 33)])
def test_mask_words_at_their_borders(backend: Backend, waiting: int, W: int) -> None:
    r = random.Random(W)
    state, _ = start(r, W, max(waiting, 1), 3, 9, most=100)
    state.tokens[:, :8] = torch.arange(8)
    for i in range(3):
        u, p = r.randint(1, W), r.randint(0, waiting)
        state.order[i] = torch.tensor(r.sample(range(10, 10 + W), u) + [-1] * (W - u))
        state.draft[i] = torch.tensor([r.randint(-1, 8) for _ in range(W)])
        state.waiting[i] = torch.tensor([r.randrange(8) for _ in range(p)] + [-1] * (max(waiting, 1) - p))
    for call in (
        OrderedCall(waiting, W, True, True, (0, W // 2)),
        OrderedCall(waiting, W, True, False, (W - 1,)),
        OrderedCall(waiting, W, False, True, ()),
    ):
        if call.cuts and call.cuts[0]:
            call = replace(call, cuts=(0, *call.cuts))
        check_rows(pack(backend, state, call), expected_rows(state, call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("layers", [1, 3])
def test_cached_pairs_move(backend: Backend, dtype: torch.dtype, layers: int) -> None:
    """Of the sequences of the state alone, in a cache that may have more, and nothing where first_moved is cache_len."""
    rng = torch.Generator().manual_seed(layers)
    cache_len, first_moved = torch.tensor([9, 0, 6, 12]), torch.tensor([2, 0, 6, 11])
    moved_from = torch.zeros(4, 20, dtype=torch.int32)
    for i, (begin, end) in enumerate(zip(first_moved.tolist(), cache_len.tolist(), strict=True)):
        kept = torch.randperm(14 - begin, generator=rng)[: end - begin].sort().values
        moved_from[i, begin:end] = kept + begin
    numbers = cache_len.int(), first_moved.int(), moved_from
    caches = [torch.randn(layers, 5, 15, 2, 3, generator=rng).to(dtype) for _ in range(2)]
    want = [expected_cache(cache, *(t.tolist() for t in numbers)) for cache in caches]
    backend("compact_cache", *caches, *numbers)
    assert all(torch.equal(*pair) for pair in zip(caches, want, strict=True))


def test_cached_pairs_move_in_a_part_of_a_larger_cache(backend: Backend) -> None:
    rng = torch.Generator().manual_seed(0)
    larger = [torch.randn(2, 3, 8, 5, 4, generator=rng) for _ in range(2)]
    moved_from = [[0, 4, 6, 0, 0, 0, 0, 0], [1, 2, 4, 7, 0, 0, 0, 0]]
    numbers = [torch.tensor(values, dtype=torch.int32) for values in ([3, 4], [1, 0], moved_from)]
    want = [cache.clone() for cache in larger]
    for cache in want:
        cache[:, :2, :, 1:3] = expected_cache(cache[:, :2, :, 1:3], *(t.tolist() for t in numbers))
    backend("compact_cache", *(cache[:, :2, :, 1:3] for cache in larger), *numbers)
    assert all(torch.equal(*pair) for pair in zip(larger, want, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_state_holds_nothing_is_written_outside_of_it(backend: Backend, seed: int) -> None:
    """Every tensor of a nonsensical state, and of the rows, lies between margins, which stay as they are."""
    if backend.name in ("torch", "triton"):
        pytest.skip("the compiled kernels promise this")
    r = random.Random(seed)
    calls = steps(seed, ("native", "packed", "quadratic", "linear", "branched")[seed % 5], 4)
    step = replace(calls[seed % 3 % len(calls)], following=calls[0].call)
    state, memory = copy.deepcopy(step.state), []

    def between_margins(t: torch.Tensor) -> torch.Tensor:
        buffer = torch.full((t.numel() + 64,), 123456, dtype=t.dtype)
        memory.append(buffer)
        return buffer[32:-32].view(t.shape).copy_(t)

    for one in ORDERED_STATE:
        t = getattr(state, one.name)
        for _ in range(4 * (one.written and one.name not in ("finish_reason", "advances"))):
            t.view(-1)[r.randrange(t.numel())] = r.choice((-1, 0, 3, 50, 10**6, 10**9, -(10**9)))
        setattr(state, one.name, between_margins(t))
    n = len(step.ids)
    backend(step.operator, *operands(step, state, [*map(between_margins, buffers(n, step.following))]))
    backend("pack_ordered", state.operands(), *target(step.call, [*map(between_margins, buffers(n, step.call))]))
    for buffer in memory:
        assert (buffer[:32] == 123456).all() and (buffer[-32:] == 123456).all()


@pytest.mark.parametrize("name", ["ids", "accepted", "probability"])
def test_negative_control(name: str) -> None:
    """The comparison with the lists sees one wrong operand of a call."""
    wrong = 0
    for seed in range(4):
        kind = {"sampled": "rejection"} if name == "accepted" else {"order": "confidence"}
        for step in steps(seed, "packed", 4, **kind)[1:4]:
            changed = copy.deepcopy(step)
            operand = getattr(changed, name)
            operand.copy_(operand.flip(-1) if name == "probability" else 1 - operand)
            try:
                check(step, advance(BACKENDS[0], changed))
            except AssertionError:
                wrong += 1
    assert wrong > 2
