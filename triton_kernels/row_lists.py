"""Which row of logits a program is about, its settings, and its split: what kernels of the row operators share.

A launch has one program for each sequence, entry and *split* of the vocabulary.  A split is as long whatever the number of rows,
so that a draw is a function of its row, settings, seed and position alone, whatever the schedule.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from . import tiles

#: Temperatures below this are greedy (packed_ss.sampling.GREEDY_BELOW).
GREEDY_BELOW = tl.constexpr(1e-5)
_MOST_PROGRAMS = 2**31 - 1


def programs(op: str, count: int) -> tuple[int]:
    """The grid of so many programs."""
    if count > _MOST_PROGRAMS:
        raise ValueError(f"{op}: logits must be few enough for 2^31 - 1 programs, got {count} of them.")
    return (count,)


def row_operands(logits: Tensor, rows: Tensor | None, positions: Tensor | None) -> tuple[object, ...]:
    """logits, strides, V and R, rows, positions and their stride, as kernels take them."""
    return (logits, logits.stride(0), logits.stride(1), logits.shape[2], logits.shape[1], rows, positions,
            0 if positions is None else positions.stride(0))


def split_tile(vocab: int) -> tuple[tiles.RowTile, int]:
    """How rows are cut, and into how many splits."""
    tile = tiles.row_tile(vocab)
    return tile, -(-vocab // tile.ids)


@triton.jit
def task_of_program(entries, splits):
    """(sequence as int64, entry, split) of this program; splits of a row are neighbours."""
    program = tl.program_id(0)
    pair = program // splits
    return (pair // entries).to(tl.int64), pair % entries, program % splits


@triton.jit
def locate(i, j, entries, rows_in_call, rows_ptr, positions_ptr, position_stride):
    """(whether anybody asks for it, row, position) of entry j of sequence i; rows_ptr or positions_ptr may be None."""
    row = j
    position = j * 0
    if rows_ptr is not None:
        row = tl.load(rows_ptr + i * entries + j)
    if positions_ptr is not None:
        position = tl.load(positions_ptr + i * position_stride + j)
    return (row >= 0) & (row < rows_in_call) & (position >= 0), row, position


@triton.jit
def load_split(row_ptr, split, vocab_size, SPLIT: tl.constexpr):
    """(ids int32, logits float32) of a split of the row that row_ptr points to; -inf past the end."""
    ids = split * SPLIT + tl.arange(0, SPLIT)
    return ids, tl.load(row_ptr + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)


@triton.jit
def load_settings(i, temperature_ptr, top_k_ptr, top_p_ptr, vocab_size):
    """Of sequence i, temperature float32, whether it is greedy, and whether top-k and top-p filter; 1 where it is greedy."""
    temperature = tl.load(temperature_ptr + i)
    greedy = (temperature >= GREEDY_BELOW) == 0  # NaN too
    top_k = tl.load(top_k_ptr + i)
    by_k = (greedy == 0) & (top_k > 0) & (top_k < vocab_size)
    by_p = (greedy == 0) & (tl.load(top_p_ptr + i) < 1.0)
    return tl.where(greedy, 1.0, temperature.to(tl.float32)), greedy, by_k, by_p
