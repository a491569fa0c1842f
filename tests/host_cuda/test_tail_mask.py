"""Who sees whom by csrc/include/packed_ss/tail_mask.h equals the layout's own statement of it, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from packed_ss.layouts.block import BlockCall
from packed_ss.rows import pack_bits

from . import operators


def _calls(block_size: int) -> Iterator[BlockCall]:
    """Every call of a block size: all numbers of verifier rows, all sets of cuts."""
    for verifier_rows, count in itertools.product(range(block_size + 1), range(block_size)):
        for rest in itertools.combinations(range(1, block_size), count):
            yield BlockCall(verifier_rows, block_size, (0, *rest))
        if verifier_rows:
            yield BlockCall(verifier_rows, block_size, ())
    yield BlockCall(1, block_size, (0,), shift=1)


@pytest.mark.parametrize("block_size", range(1, 7))
def test_every_call_of_a_small_block(block_size: int) -> None:
    for call in _calls(block_size):
        words, visible = operators.tail_mask(call)
        assert torch.equal(visible, torch.from_numpy(call.visibility()).int()), call
        assert torch.equal(words, torch.from_numpy(pack_bits(call.visibility())).int()), call


@pytest.mark.parametrize("cuts", [(0,), (0, 4, 9), (0, 1, 2, 3, 5, 8, 13), tuple(range(17))], ids=str)
def test_rows_of_several_words(cuts: tuple[int, ...]) -> None:
    call = BlockCall(16, 17, cuts)
    words, visible = operators.tail_mask(call)
    assert torch.equal(visible, torch.from_numpy(call.visibility()).int())
    assert torch.equal(words, torch.from_numpy(pack_bits(call.visibility())).int())
