"""resolve_ordered, resolve_native, compact_cache and pack_ordered: whole generations, step by step, against plain lists."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import pytest
import torch

from packed_ss.layouts.ordered import OrderedCall
from packed_ss.ordered_state import OrderedState

from .backends import Backend
from .ordered_cases import (
    SCHEDULES,
    Step,
    check,
    check_rows,
    expected_cache,
    expected_rows,
    generation,
    moved_to,
    operands,
    pack,
    pack_operands,
    resolve,
    start,
    steps,
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
    """Windows of 3 to 9, ends inside them, rows without a token, sequences at different stages."""
    backend.need("resolve_native" if schedule == "native" else "resolve_ordered")
    reasons, drops, advances = set(), 0, set()
    for seed in range(2 if backend.slow else 7):
        dtype = torch.float64 if seed % 3 == 0 and torch.float64 in backend.dtypes else torch.float32
        W = 3 + seed
        for k, step in enumerate(steps(seed, schedule, W, order, sampled=sampled, dtype=dtype)):
            if backend.slow and k > 3:
                break
            for want in filter(None, check(step, resolve(backend, step))):
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
    backend.need("resolve_native" if schedule == "native" else "resolve_ordered")
    order = "left_to_right" if schedule == "native" else "confidence"
    for seed in range(1 if backend.slow else 3):
        calls = generation(seed, schedule, W, order, n=2, most=min(2 * W + 3, 350), vocab=2 if W < 9 else 30)
        for step in islice(calls, 2 if backend.slow or W > 99 else 6):
            check(step, resolve(backend, step))


def one(
    W: int, *, waiting: int = 1, prompt: list[int] | None = None, stops: list[list[int]] | None = None, left: int = 20
) -> OrderedState:
    """One sequence whose prompt is in the cache."""
    prompt = prompt or [5, 6]
    state = OrderedState.start(
        [prompt],
        max_new_tokens=left,
        window=W,
        waiting=waiting,
        capacity=64,
        stops=stops or [],
        seeds=[0],
        device=torch.device("cpu"),
    )
    state.cache_len.copy_(state.prompt_length)
    return state


def verify(
    backend: Backend, state: OrderedState, order: list[int], draft: list[int], ids: list[int], stops: list[list[int]]
) -> OrderedState:
    """A call of a verifier's rows alone, its order and draft given."""
    u, W = len(order), state.order.shape[1]
    state.order[0] = torch.tensor(order + [-1] * (W - u))
    state.draft[0] = torch.tensor(draft + [-1] * (W - u))
    step = Step(state, OrderedCall(1, W, True, True, ()), torch.tensor([ids + [0] * (W - u)], dtype=torch.int32), stops=stops)
    after = resolve(backend, step)
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
    assert (state.moved.item(), state.source[0, 2:5].tolist(), state.waiting.item()) == (2, [3, 5, 6], -1)
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
        state = moved_to(step.state, "cpu")
        state.finish_reason[0], state.order[0], state.draft[0], state.moved[0] = 1, -1, -1, 0
        changed = replace(step, state=state)
        check(changed, resolve(backend, changed))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_and_masks_of_the_next_call(backend: Backend, schedule: str) -> None:
    """Those of the layout's definition, of every call of a generation, with missing drafts and of every width."""
    backend.need("pack_ordered")
    partial = 0
    for seed, W in enumerate((3, 4, 9) if backend.slow else (3, 4, 5, 8, 9, 17, 33)):
        order = "left_to_right" if schedule == "native" else ("confidence", "shuffled")[seed % 2]
        for k, step in enumerate(steps(seed, schedule, W, order)):
            if k == (2 if backend.slow else 8):
                break
            want = expected_rows(step.state, step.call)
            partial += any(0 < count < step.call.window for count in want[4][:, 1].tolist())
            check_rows(pack(backend, step.state, step.call), want)
    assert partial > 0 or backend.slow or schedule in ("autoregressive", "native")


@pytest.mark.parametrize(("waiting", "W"), [(1, 31), (1, 32), (0, 64), (5, 9), (31, 16), (40, 33)])
def test_mask_words_at_their_borders(backend: Backend, waiting: int, W: int) -> None:
    backend.need("pack_ordered")
    r = random.Random(W)
    state, _ = start(r, W, max(waiting, 1), 3, 9, most=100)
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
    """Of the sequences of the state alone, in a cache that may have more, and nothing where moved is cache_len."""
    backend.need("compact_cache")
    if dtype not in backend.dtypes:
        pytest.skip(f"{backend.name} has no {dtype}")
    rng = torch.Generator().manual_seed(layers)
    cache_len, moved = torch.tensor([9, 0, 6, 12]), torch.tensor([2, 0, 6, 11])
    source = torch.zeros(4, 20, dtype=torch.int32)
    for i in range(4):
        kept = sorted(torch.randperm(14 - int(moved[i]), generator=rng)[: int(cache_len[i] - moved[i])].tolist())
        source[i, int(moved[i]) : int(cache_len[i])] = torch.tensor(kept, dtype=torch.int32) + moved[i]
    keys, values = (torch.randn(layers, 5, 15, 2, 3, generator=rng).to(dtype) for _ in range(2))
    want = [expected_cache(cache, cache_len.tolist(), source.tolist(), moved.tolist()) for cache in (keys, values)]
    got = [cache.to(backend.device, copy=True) for cache in (keys, values)]
    backend.ops["compact_cache"](*got, *(t.int().to(backend.device) for t in (cache_len, source, moved)))
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(got, want, strict=True))


def test_cached_pairs_move_in_a_part_of_a_larger_cache(backend: Backend) -> None:
    backend.need("compact_cache")
    rng = torch.Generator().manual_seed(0)
    whole = [torch.randn(2, 3, 8, 5, 4, generator=rng) for _ in range(2)]
    source = [[0, 4, 6, 0, 0, 0, 0, 0], [1, 2, 4, 7, 0, 0, 0, 0]]
    numbers = [torch.tensor(values, dtype=torch.int32) for values in ([3, 4], source, [1, 0])]
    want = [cache.clone() for cache in whole]
    for cache in want:
        cache[:, :2, :, 1:3] = expected_cache(cache[:, :2, :, 1:3], *(t.tolist() for t in numbers))
    got = [cache.to(backend.device, copy=True) for cache in whole]
    backend.ops["compact_cache"](*(cache[:, :2, :, 1:3] for cache in got), *(t.to(backend.device) for t in numbers))
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(got, want, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_state_holds_nothing_is_written_outside_of_it(backend: Backend, seed: int) -> None:
    """Every tensor of a nonsensical state lies between margins, which stay as they are."""
    if backend.name in ("torch", "triton"):
        pytest.skip("the compiled kernels promise this")
    backend.need("resolve_ordered", "resolve_native", "pack_ordered")
    r = random.Random(seed)
    calls = list(generation(seed, ("native", "packed", "quadratic", "linear", "branched")[seed % 5], 4))
    step = calls[seed % 3 % len(calls)]
    margins = []

    def between_margins(t: torch.Tensor) -> torch.Tensor:
        whole = torch.full((t.numel() + 64,), 123456, dtype=t.dtype, device=backend.device)
        margins.append((whole, t.numel()))
        inner = whole[32 : 32 + t.numel()].view(t.shape)
        inner.copy_(t)
        return inner

    names = ("tokens", "length", "cache_len", "nfe", "end", "stopped", "order", "draft", "waiting", "cached")
    for name in names:
        t = getattr(step.state, name)
        for _ in range(4):
            t.view(-1)[r.randrange(t.numel())] = r.choice((-1, 0, 3, 50, 10**6, 10**9, -(10**9)))
    state = step.state
    for name in (*names, "finish_reason", "advances", "source", "moved", "retained"):
        setattr(state, name, between_margins(getattr(state, name)))
    for name in ("prompt_length", "stops"):
        setattr(state, name, getattr(state, name).to(backend.device))
    backend.ops["resolve_native" if step.native else "resolve_ordered"](*operands(step, state))
    n, call = len(step.ids), step.call
    shapes = ((n, call.rows),) * 3 + ((n, call.rows, -(-call.rows // 32)), (n, 2))
    backend.ops["pack_ordered"](*pack_operands(state, call, [between_margins(torch.zeros(shape).int()) for shape in shapes]))
    for whole, size in margins:
        assert (whole[:32] == 123456).all() and (whole[32 + size :] == 123456).all()
