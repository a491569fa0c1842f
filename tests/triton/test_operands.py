"""Kernels take a state, and the rows that they write, as the lists say: a field that is missing would shift all others."""

from __future__ import annotations

from typing import Any

import pytest

from packed_ss.operands import Operand
from packed_ss.ordered_state import ORDERED_STATE
from packed_ss.rows import BLOCK_ROWS, ORDERED_ROWS
from packed_ss.state import BLOCK_STATE

pytest.importorskip("triton")

from packed_ss.triton_kernels import advance_block, advance_ordered, pack_ordered

from packed_ss import triton_kernels
from packed_ss.ops import _TORCH_KERNELS


def pointers(*lists: tuple[Operand, ...]) -> list[str]:
    return [f"{one.name}_ptr" for operands in lists for one in operands]


@pytest.mark.parametrize("kernel", [advance_block.advance_sequence, advance_block.pack_rows], ids=["advance", "pack"])
def test_block(kernel: Any) -> None:
    names, state = kernel.arg_names, pointers(BLOCK_STATE)
    assert names[: len(state)] == state
    rows = names.index("ids_ptr")
    assert names[rows : rows + len(BLOCK_ROWS)] == pointers(BLOCK_ROWS)


@pytest.mark.parametrize(
    "kernel",
    [advance_ordered.advance_sequence, advance_ordered.advance_sequence_native, pack_ordered.pack_rows],
    ids=["advance", "native", "pack"],
)
def test_ordered(kernel: Any) -> None:
    wanted = pointers(ORDERED_STATE, ORDERED_ROWS)
    assert kernel.arg_names[: len(wanted)] == wanted


def test_every_operator_has_kernels() -> None:
    assert list(triton_kernels.operators()) == [name for name in triton_kernels.MODULES if name in _TORCH_KERNELS]
    assert set(triton_kernels.MODULES) == set(_TORCH_KERNELS)
