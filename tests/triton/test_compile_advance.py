"""The operators of both layouts' states, and compact_cache, compiled for every target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.layouts.block import BlockCall
from packed_ss.layouts.ordered import OrderedCall
from packed_ss.operands import Operand
from packed_ss.ordered_state import ORDERED_STATE
from packed_ss.state import BLOCK_STATE

from .compiling import TARGETS, Launch, recorded

pytest.importorskip("triton")

from packed_ss.triton_kernels import advance_block, advance_ordered, compact_cache, pack_ordered

BLOCK_CALLS = {
    "prompt": BlockCall(1, 32, (0,), shift=1),
    "packed": BlockCall(32, 32, (0,)),
    "verify": BlockCall(32, 32, ()),
    "propose": BlockCall(0, 32, (0,)),
    "quadratic": BlockCall(16, 16, tuple(range(16))),
}
#: By batch and window.
ORDERED_CALLS = {(1, 8): OrderedCall(1, 8, True, True, (0,)), (8, 16): OrderedCall(1, 16, True, True, tuple(range(16)))}
MASK, SPARE_SLOT = 100, 4112


def integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def state(operands: tuple[Operand, ...], n: int, width: int, waiting: int = 1) -> list[Tensor]:
    sizes = {"N": n, "T": 4113, "W": width, "calls": 1027, "S": 3, "M": 2, "P": waiting}
    return [integers(*(sizes[symbol] for symbol in one.shape)) for one in operands]


def rows(n: int, count: int, masks: bool = False) -> list[Tensor]:
    return [integers(n, count) for _ in range(4)] + [integers(n, count, -(-count // 32))] * masks


def check(launches: list[Launch], *names: str) -> None:
    assert [launch.kernel.__name__ for launch in launches] == list(names)
    for launch in launches:
        launch.compiled().check()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BLOCK_CALLS)
def test_block(name: str, target: int) -> None:
    """Tokens of all rows or of the verifier's alone, with and without the rows of the next call."""
    call = BLOCK_CALLS[name]
    following = call if call.verifier_rows > 1 else BlockCall(call.block_size, call.block_size, ())
    n, shape = 3, (call.verifier_rows, call.block_size, list(call.cuts))
    with recorded(target) as made:
        for columns, accepted, next_rows in (
            (call.rows, None, rows(n, following.rows)),
            (call.verifier_rows, integers(n, call.verifier_rows), rows(n, following.rows)),
            (call.rows, None, []),
        ):
            advance_block.advance_block(
                integers(n, columns), accepted, state(BLOCK_STATE, n, call.block_size - 1), *shape, call.shift, MASK,
                following.verifier_rows, list(following.cuts), next_rows,
            )  # fmt: skip
        advance_block.pack_block(state(BLOCK_STATE, n, call.block_size - 1), MASK, *shape, rows(n, call.rows))
    check(made, *["advance_sequence"] * 3, "pack_rows")
    assert [launch.grid for launch in made] == [(n,)] * 3 + [(n, -(-call.rows // 128))]


def following(call: OrderedCall, n: int) -> list[Any]:
    """What comes behind an operator's own arguments: the next call's rows."""
    shape = [call.waiting_rows, call.window, call.drafts, call.verifies, list(call.cuts)]
    return [MASK, SPARE_SLOT, *shape, rows(n, call.rows, masks=True)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "W"), ORDERED_CALLS)
def test_ordered(n: int, W: int, target: int) -> None:
    call = ORDERED_CALLS[n, W]
    with recorded(target) as made:
        given = integers(n, call.head_rows), torch.empty(n, call.head_rows, device="cuda"), None
        later = integers(n, W), None, integers(n, W)
        own = [1, W, True, list(call.cuts)]
        advance_ordered.advance_ordered(*given, state(ORDERED_STATE, n, W), *own, W == 16, *following(call, n))
        advance_ordered.advance_ordered(*later, state(ORDERED_STATE, n, W), *own, False, *following(call, n))
        native = OrderedCall(W, W, False, True, ())
        advance_ordered.advance_native(
            integers(n, W), torch.empty(n, W, device="cuda"), state(ORDERED_STATE, n, W, W), W, 0.9, *following(native, n)
        )
        pack_ordered.pack_ordered(state(ORDERED_STATE, n, W), *following(call, n))
    check(made, "advance_sequence", "advance_sequence", "advance_sequence_native", "pack_rows")
    assert [launch.grid for launch in made] == [(n,)] * 3 + [(n, -(-call.rows // 64))]


def test_wide_windows_and_other_calls() -> None:
    """A wide window, calls that only verify or only propose, and none whose next rows are written."""
    with recorded(90) as made:
        for W, verifies, cuts, columns in ((64, True, [], 1), (16, True, [0], 2), (16, False, [0], 1), (16, False, [0], 0)):
            advance_ordered.advance_ordered(
                integers(1, columns * W), None, None, state(ORDERED_STATE, 1, W), 1, W, verifies, cuts, False,
                0, 0, 0, 0, False, False, [], [],
            )  # fmt: skip
        double = torch.empty(1, 16, dtype=torch.float64, device="cuda")
        advance_ordered.advance_native(
            integers(1, 16), double, state(ORDERED_STATE, 1, 16, 16), 16, 0.9, 0, 0, 0, 0, False, False, [], []
        )
    check(made, *["advance_sequence"] * 4, "advance_sequence_native")


@pytest.mark.parametrize("target", TARGETS)
def test_compact_cache(target: int) -> None:
    with recorded(target) as made:
        keys, values = (torch.empty(28, 1, 4113, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        compact_cache.compact_cache(keys, values, integers(1), integers(1), integers(1, 4113))
    check(made, "move_slots")
    assert made[0].grid == (28, 2)
    assert made[0].compiled().uses("ld.global.v4.b32")
