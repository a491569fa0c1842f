"""tail_attention and rope_store compiled for every target: at the shapes of the checkpoints, and every tile of the table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .compiling import TARGETS, TENSOR_CORE, Launch, recorded

pytest.importorskip("triton")

from packed_ss.triton_kernels import tiles
from packed_ss.triton_kernels.rope_store import rope_store
from packed_ss.triton_kernels.tail_attention import attend

#: Query heads, key heads, elements of a head: of the 3B, 8B and 14B checkpoints, and of Qwen3-1.7B.
SHAPES = {"3B, 8B, 14B": (32, 8, 128), "Qwen3-1.7B": (16, 8, 128)}
#: Of one call of autoregressive, of packed with blocks of 32, and of quadratic with blocks of 16 or a chunk of a prompt.
ROWS = (1, 64, 289)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def launches(
    target: int,
    heads: int,
    kv_heads: int,
    size: int,
    rows: int,
    dtype: torch.dtype = torch.bfloat16,
    n: int = 1,
    slots: int = 4096,
    invariant: bool = False,
) -> list[Launch]:
    """What one layer of a call launches, with its views of a cache and of a qkv tensor."""
    with recorded(target) as made:
        qkv = empty(n, rows, heads + 2 * kv_heads, size, dtype=dtype)
        keys, values = (empty(n, slots + 100, kv_heads, size, dtype=dtype).narrow(1, 0, slots) for _ in range(2))
        scale, places = empty(n, rows), empty(n, rows, dtype=torch.int32)
        q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=2)
        q = rope_store(q, k, v, empty(n, rows, size // 2), empty(n, rows, size // 2), scale, places, keys, values)
        mask = empty(1, rows, -(-rows // 32), dtype=torch.int32)
        out = attend(q, keys, values, empty(n, dtype=torch.int32), mask, 0.1, invariant=invariant)
        assert out.shape == q.shape
        assert out.is_contiguous()
    return made


def check_attention(launch: Launch) -> None:
    code = launch.compiled()
    code.check()
    narrow = launch.arguments["q_ptr"] != torch.float32
    if narrow:
        wide = launch.arguments["BLOCK_M"] >= 64  # rows that one instruction of a warp group takes
        assert code.uses(TENSOR_CORE[launch.target if wide else 80]), f"{code}: no tensor cores"
    ahead = "cp.async.cg.shared.global" if launch.stages > 1 else "ld.global.v4.b32"
    assert code.uses(ahead), f"{code}: keys are not fetched ahead, or not 16 bytes at a time"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_checkpoints(shape: str, rows: int, target: int) -> None:
    rope, attention, *combine = launches(target, *SHAPES[shape], rows)
    check_attention(attention)
    for launch in (rope, *combine):
        launch.compiled().check()
    assert rope.compiled().uses("ld.global.v4.b32")
    assert rope.compiled().uses("st.global.v4.b32")
    assert attention.arguments["SINGLE"] == (not combine)
    if target >= 90:  # as many programs as fill 132 multiprocessors at once
        assert (
            attention.grid
            == {
                (4, 1): (1, 32, 8),
                (4, 64): (2, 8, 8),
                (4, 289): (10, 1, 8),
                (2, 1): (1, 32, 8),
                (2, 64): (1, 16, 8),
                (2, 289): (5, 3, 8),
            }[SHAPES[shape][0] // 8, rows]
        )


@pytest.mark.parametrize("target", TARGETS)
def test_every_tile(target: int) -> None:
    """Of the table, each with the largest heads that it serves."""
    for (generation, itemsize, size), table in tiles._ATTENTION.items():
        if generation != target:
            continue
        for tile in table:
            dtype = torch.bfloat16 if itemsize == 2 else torch.float32
            attention = launches(target, 32, 8, size, tile.lanes // 4, dtype)[1]
            arguments = attention.arguments
            assert (arguments["BLOCK_M"], arguments["BLOCK_N"], attention.warps) == (tile.lanes, tile.keys, tile.warps)
            check_attention(attention)
