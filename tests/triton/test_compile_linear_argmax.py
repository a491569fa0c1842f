"""linear_argmax compiled for every target: at the heads of the checkpoints, and every tile of the table."""

from __future__ import annotations

import pytest
import torch

from .compiling import TARGETS, TENSOR_CORE, Launch, recorded

pytest.importorskip("triton")

from packed_ss.triton_kernels import tiles
from packed_ss.triton_kernels.linear_argmax import linear_argmax

#: Vocabulary and hidden size.
HEADS = {"3B": (131072, 3072), "8B": (131072, 4096), "14B": (131072, 5120), "Qwen3-1.7B": (151936, 2048)}
#: Of one call of autoregressive, the verifier's of packed, packed, and quadratic with blocks of 16.
ROWS = (1, 32, 64, 272)


def launches(target: int, vocab: int, size: int, rows: int, dtype: torch.dtype = torch.bfloat16) -> list[Launch]:
    """What the head of a call launches; its rows are the last of a longer tensor."""
    with recorded(target) as made:
        x = torch.empty(1, rows + 100, size, dtype=dtype, device="cuda").narrow(1, 100, rows)
        ids = linear_argmax(x, torch.empty(vocab, size, dtype=dtype, device="cuda"))
        assert ids.shape == (1, rows)
    return made


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("head", HEADS)
def test_checkpoints(head: str, rows: int, target: int) -> None:
    score, combine = launches(target, *HEADS[head], rows)
    code = score.compiled()
    code.check()
    combine.compiled().check()
    assert code.uses(TENSOR_CORE[target]), f"{code}: no tensor cores"
    assert code.uses("cp.async.cg.shared.global"), f"{code}: weights are not fetched ahead, 16 bytes at a time"
    assert score.grid == (-(-rows // score.arguments["ROWS"]) * -(-HEADS[head][0] // score.arguments["IDS"]),)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_other_dtypes(dtype: torch.dtype, rows: int, target: int) -> None:
    for launch in launches(target, 131072, 4096, rows, dtype):
        launch.compiled().check()


@pytest.mark.parametrize("target", TARGETS)
def test_a_hidden_size_that_no_block_divides(target: int) -> None:
    for launch in launches(target, 1000, 1208, 64):
        launch.compiled().check()


def test_every_tile_of_the_table_is_reached() -> None:
    for (generation, itemsize), listed in tiles._HEAD.items():
        reached = {tiles.head_tile(rows, itemsize, generation) for rows in range(1, 300)}
        assert reached == set(listed)


def test_rows_are_added_up_alike_whatever_their_number() -> None:
    """On tensor cores the depth of a block and of an instruction decide; from sm_90 on the least tile is one instruction."""
    for (generation, itemsize), listed in tiles._HEAD.items():
        assert len({tile.depth for tile in listed}) == 1
        assert generation == 80 or itemsize == 4 or listed[0].rows == 64
