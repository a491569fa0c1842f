"""The language-model head and its argmax in one pass over the weights: the logits are never written.

A program multiplies a tile of rows by a tile of the vocabulary, in blocks of the hidden size, and keeps of each row the largest
logit and the lowest id that has it.  A second kernel combines the tiles.  What a row gets does not depend on how many others
there are: blocks of the hidden size are added up in one order, and tiles of rows differ only in how many fragments they have.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops import checks

from . import tiles
from .checks import DTYPES, check_on_device
from .scores import NOTHING, is_finite, order_key, pack, packed_id, packed_key


@triton.jit(do_not_specialize=["rows", "total", "row_tiles", "vocab_tiles"])
def score_tiles(x_ptr, weight_ptr, best_ptr, x_n, x_r, weight_v, rows, total, size, vocab, row_tiles, vocab_tiles,
                DIVIDES: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, IDS: tl.constexpr, DEPTH: tl.constexpr):
    """Program (tile of the vocabulary, tile of rows); programs that share weights are neighbours and meet in the L2 cache.

    Reads weights once, element size * V * H bytes, and x with every tile of the vocabulary, from the L2 cache; writes
    best [N R, vocab_tiles] int64, packed: 8 bytes a row and tile.  DIVIDES: DEPTH divides H.
    """
    row_tile = tl.program_id(0) % row_tiles
    vocab_tile = tl.program_id(0) // row_tiles
    row = row_tile * ROWS + tl.arange(0, ROWS)
    ids = vocab_tile * IDS + tl.arange(0, IDS)
    k = tl.arange(0, DEPTH)
    # Rows and ids past the end repeat the last one, which needs no mask: the first counts.
    near_row = tl.minimum(row, total - 1)
    x_ptrs = x_ptr + ((near_row // rows).to(tl.int64) * x_n + (near_row % rows).to(tl.int64) * x_r)[:, None] + k[None, :]
    weight_ptrs = weight_ptr + (tl.minimum(ids, vocab - 1).to(tl.int64) * weight_v)[None, :] + k[:, None]
    scores = tl.zeros([ROWS, IDS], tl.float32)
    for start in range(0, size, DEPTH):
        if DIVIDES:
            x = tl.load(x_ptrs + start)
            weight = tl.load(weight_ptrs + start)
        else:
            x = tl.load(x_ptrs + start, mask=(start + k < size)[None, :], other=0.0)
            weight = tl.load(weight_ptrs + start, mask=(start + k < size)[:, None], other=0.0)
        scores = tl.dot(x, weight, scores, input_precision=PRECISION)
    # One pass over the scores, which fill the registers.  NaN counts as +inf, and of scores that tie the first is found.
    scores = tl.where(scores == scores, scores, float("inf"))
    top, column = tl.max(scores, 1, return_indices=True)
    best = pack(order_key(top), vocab_tile * IDS + column)
    tl.store(best_ptr + row.to(tl.int64) * vocab_tiles + vocab_tile, best, mask=row < total)


@triton.jit(do_not_specialize=["vocab_tiles"])
def combine_tiles(best_ptr, ids_ptr, vocab_tiles, SIZE: tl.constexpr):
    """Program (row): reads the results of its tiles, 8 bytes each, and writes ids int32, 4 bytes."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, SIZE)
    best = tl.full([SIZE], NOTHING, tl.int64)
    for start in range(0, vocab_tiles, SIZE):
        at = row * vocab_tiles + start + lane
        best = tl.maximum(best, tl.load(best_ptr + at, mask=start + lane < vocab_tiles, other=NOTHING))
    result = tl.max(best, 0)
    tl.store(ids_ptr + row, tl.where(is_finite(packed_key(result)), packed_id(result), -1))


def linear_argmax(x: Tensor, weight: Tensor) -> Tensor:
    """`packed_ss.ops.row_operators.linear_argmax`: lowest id of the largest of the logits x weight^T of a row, int32 [N, R].

    x [N, R, H], any strides of rows; weight [V, H], the same dtype, float32, bfloat16 or float16.  Products are added up in
    float32, and not rounded to the dtype.  -1 where a row has no finite maximum.  Two launches.
    """
    checks.check_linear_argmax(x, weight)
    _check(x, weight)
    n, rows, size = x.shape
    vocab, total = weight.shape[0], n * rows
    ids = torch.empty((n, rows), dtype=torch.int32, device=x.device)
    if total == 0:
        return ids
    tile = tiles.head_tile(total, x.itemsize, tiles.device(x.device).capability)
    row_tiles, vocab_tiles = triton.cdiv(total, tile.rows), triton.cdiv(vocab, tile.ids)
    best = torch.empty((total, vocab_tiles), dtype=torch.int64, device=x.device)
    x = x if x.stride(2) == 1 else x.contiguous()
    with tiles.on(x.device):
        score_tiles[(row_tiles * vocab_tiles,)](
            x, weight, best, x.stride(0), x.stride(1), weight.stride(0), rows, total, size, vocab, row_tiles, vocab_tiles,
            DIVIDES=size % tile.depth == 0, PRECISION="ieee", ROWS=tile.rows, IDS=tile.ids, DEPTH=tile.depth,
            num_warps=tile.warps, num_stages=tile.stages)
        combine_tiles[(total,)](best, ids, vocab_tiles, SIZE=tiles.padded(min(vocab_tiles, 1024)), num_warps=4)
    return ids


def _check(x: Tensor, weight: Tensor) -> None:
    """Refuses what plain torch takes and this kernel does not."""
    if x.dtype not in DTYPES:
        raise ValueError(f"linear_argmax: x must be float32, bfloat16 or float16, got {x.dtype}.")
    if weight.shape[1] > 1 and weight.stride(1) != 1:
        raise ValueError(f"linear_argmax: weight must be contiguous along its rows, got strides {list(weight.stride())}.")
    check_on_device("linear_argmax", "x", x)
