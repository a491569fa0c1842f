"""uniform_noise by its CUDA source on the CPU equals plain torch bit for bit, in any order of blocks and threads."""

from __future__ import annotations

import pytest
import torch

from packed_ss.ops import philox

from . import backend

SEEDS = torch.tensor([0, -1, 0x0123456789ABCDEF])
POSITIONS = torch.tensor([[0, 4095], [1, 2**31 - 1], [7, 7]], dtype=torch.int32)


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 4, 7, 111, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("stream", [0, 1, 2])
def test_equals_torch(vocab_size: int, stream: int) -> None:
    u = backend.uniform_noise(SEEDS, POSITIONS, stream, vocab_size)
    assert torch.equal(u, philox.uniform_noise(SEEDS, POSITIONS, stream, vocab_size))


def test_more_rows_than_the_grid_has() -> None:
    position = torch.arange(65_540, dtype=torch.int32).reshape(2, -1)
    u = backend.uniform_noise(SEEDS[:2], position, 1, 1)
    assert torch.equal(u, philox.uniform_noise(SEEDS[:2], position, 1, 1))


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order(seed: int) -> None:
    with backend.kernels().order(seed):
        u = backend.uniform_noise(SEEDS, POSITIONS, 2, 1027)
    assert torch.equal(u, philox.uniform_noise(SEEDS, POSITIONS, 2, 1027))


def test_nothing_to_draw() -> None:
    assert backend.uniform_noise(SEEDS[:0], POSITIONS[:0], 0, 5).shape == (0, 2, 5)
