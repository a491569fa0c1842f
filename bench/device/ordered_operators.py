"""Cases of the ordered layout's operators for stage "operators": each beside its plain-torch version, with random operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from packed_ss import ops
from packed_ss.layouts.ordered import OrderedCall
from packed_ss.ordered_state import OrderedState

from .operators import ERRORS, Case, Kernel

_W, _N, _VOCAB = 8, 3, 1003
PACKED, QUADRATIC = OrderedCall(1, _W, True, True, (0,)), OrderedCall(1, _W, True, True, tuple(range(_W)))
LINEAR = OrderedCall(1, _W, False, False, (0,)), OrderedCall(0, _W, True, True, ())
NATIVE = OrderedCall(_W, _W, False, False, (0,))


def cases(device: torch.device) -> Iterator[Case]:
    """Three sequences in the middle of their work, one of which has finished."""
    for dtype in tuple(ERRORS) if device.type == "cuda" else (torch.float32,):
        yield from _rows(device, dtype)
    for call in (PACKED, QUADRATIC, *LINEAR, NATIVE):
        yield _pack(device, call)
    for call in (PACKED, QUADRATIC, *LINEAR):
        for by_confidence in (False, True):
            yield _resolve(device, call, by_confidence)
    yield _resolve(device, NATIVE, False)
    yield _compact(device)


def _rows(device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(4)
    logits = (3 * torch.randn(_N, 2 * _W, _VOCAB, generator=generator)).to(device, dtype)
    logits[1, 2], logits[2, 5, 7] = -torch.inf, torch.nan
    rows = torch.tensor([[0, _W], [3, 5], [_W, 0]], dtype=torch.int32, device=device)
    places = torch.arange(20, 20 + _N * _W, dtype=torch.int32, device=device).view(_N, _W)
    seed = torch.tensor([3, -9, 2**40], dtype=torch.int64, device=device)
    log_q = (2 * torch.randn(_N, _W, _VOCAB, generator=generator)).log_softmax(-1).to(device)
    draft = log_q.argmax(-1).int()
    draft[:, -2:] = -1
    name = str(dtype).removeprefix("torch.")
    for probability in (False, True):
        yield _compared(
            "argmax_rows",
            f"{name}, probability {probability}",
            1e-5,
            lambda kernel, probability=probability: kernel(logits, probability),
        )
    for top_k, top_p in ((0, 1.0), (20, 0.9)):
        sampling = (seed, 0.8, top_k, top_p)

        def drawn(kernel: Kernel, sampling: tuple = sampling) -> tuple[Tensor, Tensor]:
            ids, stored = torch.full((_N, _W), -7, dtype=torch.int32, device=device), torch.zeros_like(log_q)
            kernel(logits, rows, places, *sampling, 0, ids, stored)
            meant = (ids >= 0).unsqueeze(-1)
            return ids, torch.where(meant, stored.exp(), 0)

        shown = f"{name}, top-k {top_k} top-p {top_p}"
        yield _compared("draw_rows", shown, 1e-4, drawn)
        yield _compared(
            "verify_rows", shown, 0.0, lambda kernel, sampling=sampling: kernel(logits, rows, places, *sampling, draft, log_q)
        )


def _compared(operator: str, name: str, accepted: float, results: Callable[[Kernel], tuple[Tensor, ...]]) -> Case:
    """Integers must be equal, and floats close."""
    want = results(ops._TORCH_KERNELS[operator])

    def error(kernel: Kernel) -> float:
        largest = 0.0
        for a, b in zip(results(kernel), want, strict=True):
            if not a.is_floating_point():
                largest = largest if torch.equal(a, b) else float("inf")
            elif a.numel():
                largest = max(largest, float((a - b).abs().max()))
        return largest

    return Case(operator, name, accepted, error)


def _results_of(call: OrderedCall, generator: torch.Generator, state: OrderedState) -> tuple[Tensor, Tensor]:
    """Tokens of a call's rows, the first two drafts right, and their probabilities."""
    device, n = state.length.device, state.length.shape[0]
    ids = torch.randint(0, 5, (n, call.head_rows), generator=generator, dtype=torch.int32).to(device)
    if call.verifies:
        ids[:, :2] = torch.where(state.draft[:, :2] >= 0, state.draft[:, :2], ids[:, :2])
    return ids, torch.rand(ids.shape, generator=generator).to(device)


def _started(device: torch.device, call: OrderedCall) -> OrderedState:
    """Three iterations on, from tokens drawn at random, in the order of confidence but for native."""
    generator, native = torch.Generator().manual_seed(call.rows), call == NATIVE
    prompts = [torch.randint(5, _VOCAB, (length,), generator=generator).tolist() for length in (5, 9, 3)]
    state = OrderedState.start(
        prompts,
        max_new_tokens=40,
        window=_W,
        waiting=_W if native else 1,
        capacity=60,
        stops=[[9], [3, 4]],
        seeds=[3, 4, -5],
        device=device,
    )
    state.cache_len.copy_(state.prompt_length)
    for _ in range(3):
        _advance(ops._TORCH_KERNELS, state, NATIVE if native else PACKED, generator, not native)
    if call == LINEAR[1]:
        _advance(ops._TORCH_KERNELS, state, LINEAR[0], generator, True)
    state.finish_reason[2] = 2
    for tensor in (state.order, state.draft, state.waiting):
        tensor[2] = -1
    return state


def _advance(kernels: Any, state: OrderedState, call: OrderedCall, generator: torch.Generator, by_confidence: bool) -> None:
    ids, probability = _results_of(call, generator, state)
    if call == NATIVE:
        kernels["resolve_native"](ids, probability, *state.operands(), _W, 0.7)
    else:
        kernels["resolve_ordered"](
            ids, probability, None, *state.operands(), call.waiting_rows, _W, call.verifies, list(call.cuts), by_confidence
        )


def _resolve(device: torch.device, call: OrderedCall, by_confidence: bool) -> Case:
    start, operator = _started(device, call), "resolve_native" if call == NATIVE else "resolve_ordered"

    def results(kernel: Kernel) -> tuple[Tensor, ...]:
        state = OrderedState(**{f.name: getattr(start, f.name).clone() for f in dataclasses.fields(start)})
        _advance({operator: kernel}, state, call, torch.Generator().manual_seed(9), by_confidence)
        slot = torch.arange(state.tokens.shape[1], device=device)
        cached = slot < state.cache_len[:, None]
        moves = cached & (slot >= state.moved[:, None])
        return (
            state.tokens[:, :-1],
            state.length,
            state.cache_len,
            state.finish_reason,
            state.nfe,
            state.advances,
            state.end,
            state.stopped,
            state.order,
            state.draft,
            state.waiting,
            state.cached * cached,
            state.source * moves,
            state.moved,
            state.retained[:, 1],
        )

    order = "confidence" if by_confidence else "textual order"
    name = f"{call.waiting_rows} waiting, {'verifies' if call.verifies else 'proposes'}, cuts {call.cuts}, {order}"
    return _compared(operator, name, 0.0, results)


def _pack(device: torch.device, call: OrderedCall) -> Case:
    state = _started(device, call)

    def results(kernel: Kernel) -> tuple[Tensor, ...]:
        buffers = [torch.full((_N, call.rows), -1, dtype=torch.int32, device=device) for _ in range(3)]
        mask = torch.full((_N, call.rows, -(-call.rows // 32)), -1, dtype=torch.int32, device=device)
        consulted = torch.full((_N, 2), -1, dtype=torch.int32, device=device)
        kernel(
            state.tokens,
            state.cache_len,
            state.order,
            state.draft,
            state.waiting,
            3,
            200,
            call.waiting_rows,
            _W,
            call.drafts,
            call.verifies,
            list(call.cuts),
            *buffers,
            mask,
            consulted,
        )
        return (*buffers, mask, consulted)

    return _compared("pack_ordered", f"{call.rows} rows", 0.0, results)


def _compact(device: torch.device) -> Case:
    generator = torch.Generator().manual_seed(2)
    caches = [torch.randn(2, _N, 40, 2, 64, generator=generator).to(device, torch.bfloat16) for _ in range(2)]
    cache_len, moved = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([30, 12, 9], [4, 12, 8]))
    source = torch.arange(40, dtype=torch.int32, device=device).repeat(_N, 1)
    source[0, 4:] += 1
    source[0, 20:] += 3
    source[2, 8] = 11

    def results(kernel: Kernel) -> tuple[Tensor, ...]:
        keys, values = (cache.clone() for cache in caches)
        kernel(keys, values, cache_len, source.clamp(max=39), moved)
        return keys, values

    return _compared("compact_cache", "three sequences", 0.0, results)
