"""Cases of the ordered layout's operators for stage "operators"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from packed_ss import ops
from packed_ss.layouts.ordered import OrderedCall
from packed_ss.ordered_state import OrderedState
from packed_ss.rows import Rows
from packed_ss.state import stops_tensor

from .operators import MASK, VOCAB, Case, compared, settings

_W, _N, _SPARE = 8, 3, 200
PACKED, QUADRATIC = OrderedCall(1, _W, True, True, (0,)), OrderedCall(1, _W, True, True, tuple(range(_W)))
LINEAR = OrderedCall(1, _W, False, False, (0,)), OrderedCall(0, _W, True, True, ())
NATIVE = OrderedCall(_W, _W, False, False, (0,))


def cases(device: torch.device) -> Iterator[Case]:
    """Make cases of three sequences in the middle of their work, one of which has finished."""
    for call in (PACKED, QUADRATIC, *LINEAR, NATIVE):
        state = _started(device, call)
        arguments = (state.operands(), MASK, _SPARE, *_shape(call), _buffers(state, call))
        yield compared("pack_ordered", f"{call.rows} rows", 0.0, arguments)
    for call in (PACKED, QUADRATIC, *LINEAR):
        for by_confidence in (False, True):
            yield _advance(device, call, by_confidence)
    yield _advance(device, NATIVE, False)
    yield _compact(device)


def _shape(call: OrderedCall) -> tuple[Any, ...]:
    return call.waiting_rows, call.window, call.drafts, call.verifies, list(call.cuts)


def _buffers(state: OrderedState, call: OrderedCall) -> list[Tensor]:
    n = state.length.shape[0]
    mask = torch.zeros((n, call.rows, -(-call.rows // 32)), dtype=torch.int32, device=state.length.device)
    return Rows.empty(n, call.rows, state.cache_len, mask).operands(5)


def _arguments(
    state: OrderedState, call: OrderedCall, generator: torch.Generator, by_confidence: bool, following: OrderedCall | None
) -> tuple[Any, ...]:
    """Tokens of a call's rows, the first two drafts right, and their probabilities, for the advance operator of the call."""
    n, device = state.length.shape[0], state.length.device
    ids = torch.randint(0, 5, (n, call.head_rows), generator=generator, dtype=torch.int32).to(device)
    if call.verifies:
        ids[:, :2] = torch.where(state.draft[:, :2] >= 0, state.draft[:, :2], ids[:, :2])
    probability = torch.rand(ids.shape, generator=generator).to(device)
    rest = (0, 0, 0, 0, False, False, [], [])
    if following is not None:
        rest = (MASK, _SPARE, *_shape(following), _buffers(state, following))
    if call == NATIVE:
        return ids, probability, state.operands(), _W, 0.7, *rest
    shape = (call.waiting_rows, call.window, call.verifies, list(call.cuts), by_confidence)
    return ids, probability if by_confidence else None, None, state.operands(), *shape, *rest


def _operator(call: OrderedCall) -> str:
    return "advance_native" if call == NATIVE else "advance_ordered"


def _started(device: torch.device, call: OrderedCall) -> OrderedState:
    """Three iterations on, from tokens drawn at random, in the order of confidence but for native."""
    generator, native = torch.Generator().manual_seed(call.rows), call == NATIVE
    state = OrderedState.start(
        [torch.randint(5, VOCAB, (length,), generator=generator).tolist() for length in (5, 9, 3)],
        max_new_tokens=40,
        window=_W,
        waiting=_W if native else 1,
        capacity=60,
        sampling=dict(zip(("seed", "temperature", "top_k", "top_p"), settings(device), strict=True)),
        stops=stops_tensor([[[9], [3, 4]]] * _N),
        device=device,
    )
    state.cache_len.copy_(state.prompt_length)
    for one in [NATIVE] * 3 if native else [PACKED] * 3 + [LINEAR[0]] * (call == LINEAR[1]):
        ops._TORCH_KERNELS[_operator(one)](*_arguments(state, one, generator, not native, None))
    state.finish_reason[2] = 2
    for tensor in (state.order, state.draft, state.waiting, state.retained):
        tensor[2] = -1
    return state


def _advance(device: torch.device, call: OrderedCall, by_confidence: bool) -> Case:
    state = _started(device, call)
    names = list(OrderedState.__dataclass_fields__)[: len(state.operands())]
    arguments = _arguments(state, call, torch.Generator().manual_seed(9), by_confidence, call)

    def observe(_: Any, arguments: tuple[Any, ...]) -> Iterator[Tensor]:
        """Everything but what nobody reads: the spare column, slots not in use, and those that nothing moves to."""
        after = dict(zip(names, next(one for one in arguments if isinstance(one, list)), strict=True))
        slot = torch.arange(after["tokens"].shape[1], device=device)
        used = slot < after["cache_len"][:, None]
        after["tokens"], after["cached"] = after["tokens"][:, :-1], after["cached"] * used
        after["moved_from"] = after["moved_from"] * (used & (slot >= after["first_moved"][:, None]))
        yield from after.values()
        yield from arguments[-1]

    order = "confidence" if by_confidence else "textual order"
    name = f"{call.waiting_rows} waiting, {'verifies' if call.verifies else 'proposes'}, cuts {call.cuts}, {order}"
    return compared(_operator(call), name, 0.0, arguments, observe)


def _compact(device: torch.device) -> Case:
    generator = torch.Generator().manual_seed(2)
    caches = [torch.randn(2, _N, 40, 2, 64, generator=generator).to(device, torch.bfloat16) for _ in range(2)]
    cache_len, first_moved = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([30, 12, 9], [4, 12, 8]))
    moved_from = torch.arange(40, dtype=torch.int32, device=device).repeat(_N, 1)
    moved_from[0, 4:] += 1
    moved_from[0, 20:] += 3
    moved_from[2, 8] = 11
    return compared("compact_cache", "three sequences", 0.0, (*caches, cache_len, first_moved, moved_from.clamp(max=39)))
