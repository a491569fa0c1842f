"""Attention of R rows over the cached prefix and the tail that a bitmask describes: split over keys, then combined.

The query heads that share a key head, of all rows, are the *lanes* of one matrix product: lane l is row l // G and head l % G of
the G heads.  A program takes one tile of lanes of one key head and one *split*, a run of blocks of keys, and folds block after
block into a running softmax (Milakov and Gimelshein, 2018).  Where there is more than one split, its state goes to a buffer and
a second kernel adds the splits up.

How many splits there are follows from the shapes; which blocks a split has follows from cache_len, which is read on the device.
So the grid of a captured launch fits every length: short caches have idle splits, which leave at once.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .checks import check_tail_attention


@triton.jit
def _share(cache_len_ptr, n, slots, words, splits, least, BLOCK_N: tl.constexpr):
    """Of sequence n: cache_len, how many blocks of keys have a slot that some row may see, and how many of them a split takes."""
    cache_len = tl.minimum(tl.maximum(tl.load(cache_len_ptr + n), 0), slots)
    blocks = tl.maximum(tl.cdiv(tl.minimum(cache_len + 32 * words, slots), BLOCK_N), 1)
    return cache_len, blocks, tl.maximum(tl.cdiv(blocks, splits), least)


@triton.jit
def _word(mask_ptrs, index, words, lane_exists):
    """Word ``index`` of each lane's mask: ones before the tail, where the prefix is, and zeros after it."""
    inside = (index >= 0) & (index < words)
    word = tl.load(mask_ptrs + index, mask=lane_exists & inside, other=0).to(tl.uint32, bitcast=True)
    return tl.where(index < 0, 0xFFFFFFFF, word).to(tl.uint32)


@triton.jit
def _seen(mask_ptrs, first, words, slots_left, lane_exists, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Whether each lane sees each of BLOCK_N slots, of which the first is tail slot ``first`` (negative: of the prefix).

    Words are shifted as they are, 32 slots at a time: far fewer loads and registers than a word for each pair.
    """
    column = tl.arange(0, BLOCK_N)
    index = first >> 5
    shift = (first & 31).to(tl.uint32)
    low = _word(mask_ptrs, index, words, lane_exists)
    bit = tl.full([BLOCK_N], 1, tl.uint32) << (column % 32).to(tl.uint32)
    hits = tl.zeros([BLOCK_M, BLOCK_N], tl.uint32)
    for k in tl.static_range(BLOCK_N // 32):
        high = _word(mask_ptrs, index + k + 1, words, lane_exists)
        word = (low >> shift) | ((high << 1) << (31 - shift))
        hits |= word[:, None] & tl.where((column // 32 == k) & (column < slots_left), bit, 0)[None, :]
        low = high
    return hits != 0


@triton.jit
def _holds_bad(values):
    """Which rows of a block hold an element that is not finite: one whose exponent has every bit set."""
    if values.dtype == tl.float32:
        return tl.max(values.to(tl.int32, bitcast=True) & 0x7F800000, 1) == 0x7F800000
    elif values.dtype == tl.bfloat16:
        return tl.max(values.to(tl.int16, bitcast=True) & 0x7F80, 1) == 0x7F80
    else:
        return tl.max(values.to(tl.int16, bitcast=True) & 0x7C00, 1) == 0x7C00


@triton.jit
def _fold(scores, values, highest, total, acc, log2_scale, PRECISION: tl.constexpr):
    """Adds a block of keys to the running softmax of each lane.

    The state is in units of 2**highest: highest is the largest score so far times log2_scale, or -inf.  A lane that sees nothing
    of the block is left exactly as it was.
    """
    new = tl.maximum(highest, tl.max(scores, 1) * log2_scale)
    unit = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores * log2_scale - unit[:, None])
    rescale = tl.exp2(highest - unit)
    total = total * rescale + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * rescale[:, None], input_precision=PRECISION)
    return new, total, acc


@triton.jit(do_not_specialize=["rows", "slots", "words", "least"])
def attend_kernel(q_ptr, k_ptr, v_ptr, cache_len_ptr, mask_ptr, out_ptr, sums_ptr, state_ptr,
                  q_n, q_r, q_h, k_n, k_c, k_h, v_n, v_c, v_h, mask_n,
                  rows, slots, words, least, log2_scale,
                  KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, SINGLE: tl.constexpr, PRECISION: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Program (tile of lanes, split, sequence and key head).

    Reads the split's keys and values once, 2 * slots * SIZE * element size bytes; programs that share them are neighbours in
    the grid and meet in the L2 cache.  With SINGLE, the only split there is writes out [N, R, Hq, SIZE]; otherwise it writes
    sums [N, Hkv, splits, lanes, SIZE] and state [N, Hkv, splits, 2, lanes], 4 * lanes * (SIZE + 2) bytes for each split.
    """
    split = tl.program_id(1)
    pair = tl.program_id(2).to(tl.int64)
    n = pair // KV_HEADS
    head = pair % KV_HEADS
    cache_len, blocks, share = _share(cache_len_ptr, n, slots, words, tl.num_programs(1), least, BLOCK_N)
    begin = split * share
    if begin >= blocks:
        return
    end = tl.minimum(begin + share, blocks)
    masked = tl.minimum(tl.maximum(cache_len // BLOCK_N, begin), end)

    lane = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    lane_exists = lane < rows * GROUP
    row = lane // GROUP
    q_head = head * GROUP + lane % GROUP
    d = tl.arange(0, BLOCK_D)
    d_exists = d < SIZE
    q_offset = n * q_n + row.to(tl.int64) * q_r + q_head * q_h
    q = tl.load(q_ptr + q_offset[:, None] + d[None, :], mask=lane_exists[:, None] & d_exists[None, :], other=0.0)
    mask_ptrs = mask_ptr + n * mask_n + row.to(tl.int64) * words
    k_ptr += n * k_n + head * k_h
    v_ptr += n * v_n + head * v_h

    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    key = tl.arange(0, BLOCK_N)
    width = tl.full([], BLOCK_N, tl.int64)
    # Blocks that lie in the prefix: every lane sees all of them.
    for block in range(begin, masked):
        slot = (block * width + key)[:, None]
        if BLOCK_D == SIZE:
            k = tl.load(k_ptr + slot * k_c + d[None, :])
            v = tl.load(v_ptr + slot * v_c + d[None, :])
        else:
            k = tl.load(k_ptr + slot * k_c + d[None, :], mask=d_exists[None, :], other=0.0)
            v = tl.load(v_ptr + slot * v_c + d[None, :], mask=d_exists[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        highest, total, acc = _fold(scores, v, highest, total, acc, log2_scale, PRECISION)
    # Blocks that reach into the tail.
    for block in range(masked, end):
        slot = (block * width + key)[:, None]
        exists = (slot < slots) & d_exists[None, :]
        k = tl.load(k_ptr + slot * k_c + d[None, :], mask=exists, other=0.0)
        v = tl.load(v_ptr + slot * v_c + d[None, :], mask=exists, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        # A weight of zero times what is not finite would be NaN: such a value must not enter the product, and must make NaN of
        # the lanes that do see it.
        bad = _holds_bad(v)
        seen = _seen(mask_ptrs, block * BLOCK_N - cache_len, words, slots - block * BLOCK_N, lane_exists, BLOCK_M, BLOCK_N)
        scores = tl.where(seen, scores + tl.where(bad, float("nan"), 0.0)[None, :], float("-inf"))
        v = tl.where(bad[:, None], 0.0, v)
        highest, total, acc = _fold(scores, v, highest, total, acc, log2_scale, PRECISION)
    # The prefix brought its values that are not finite into single elements of acc; they make all of the lane NaN.
    total += tl.sum(tl.where(tl.abs(acc) < float("inf"), 0.0, float("nan")), 1)

    stored = lane_exists[:, None] & d_exists[None, :]
    if SINGLE:
        out_offset = ((n * rows + row) * KV_HEADS * GROUP + q_head) * SIZE
        out = (acc * (1 / total)[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + out_offset[:, None] + d[None, :], out, mask=stored)
    else:
        task = pair * tl.num_programs(1) + split
        lanes = rows * GROUP
        tl.store(sums_ptr + (task * lanes + lane)[:, None] * SIZE + d[None, :], acc, mask=stored)
        tl.store(state_ptr + task * 2 * lanes + lane, highest, mask=lane_exists)
        tl.store(state_ptr + (task * 2 + 1) * lanes + lane, total, mask=lane_exists)


#: Lanes that a program of combine_kernel takes.
COMBINED_LANES = 8


@triton.jit(do_not_specialize=["rows", "slots", "words", "splits", "least"])
def combine_kernel(sums_ptr, state_ptr, cache_len_ptr, out_ptr, rows, slots, words, splits, least,
                   KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, LANES: tl.constexpr,
                   BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):
    """Program (block of lanes, sequence and key head): adds up the splits that had something to do, in order.

    Reads 4 * (SIZE + 2) bytes for each lane and such split, and writes out [N, R, Hq, SIZE] once.
    """
    pair = tl.program_id(1).to(tl.int64)
    n = pair // KV_HEADS
    cache_len, blocks, share = _share(cache_len_ptr, n, slots, words, splits, least, BLOCK_N)
    used = tl.cdiv(blocks, share)
    lanes = rows * GROUP
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    lane_exists = lane < lanes
    d = tl.arange(0, BLOCK_D)
    stored = lane_exists[:, None] & (d < SIZE)[None, :]
    task = pair * splits
    split = tl.arange(0, SPLITS)
    state_ptr += task * 2 * lanes + lane
    highest = tl.load(state_ptr[None, :] + split[:, None] * 2 * lanes, mask=(split < used)[:, None] & lane_exists[None, :],
                      other=float("-inf"))
    unit = tl.max(highest, 0)
    total = tl.zeros([LANES], tl.float32)
    acc = tl.zeros([LANES, BLOCK_D], tl.float32)
    for s in range(0, used):
        weight = tl.exp2(tl.load(state_ptr + s * 2 * lanes, mask=lane_exists, other=0.0) - unit)
        total += weight * tl.load(state_ptr + (s * 2 + 1) * lanes, mask=lane_exists, other=0.0)
        sums = tl.load(sums_ptr + ((task + s) * lanes + lane)[:, None] * SIZE + d[None, :], mask=stored, other=0.0)
        acc += weight[:, None] * sums
    row = lane // GROUP
    out_offset = ((n * rows + row) * KV_HEADS * GROUP + pair % KV_HEADS * GROUP + lane % GROUP) * SIZE
    out = (acc * (1 / total)[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_offset[:, None] + d[None, :], out, mask=stored)


def tail_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_len: Tensor, tail_mask: Tensor, scale: float) -> Tensor:
    """Softmax attention of R rows over the cached prefix and the R x R tail that a bitmask describes.

    q [N, R, Hq, D] in float32, bfloat16 or float16; caches [N, C, Hkv, D], any strides but the last; cache_len [N] int32;
    tail_mask [1 or N, R, ceil(R/32)] int32.  D is at most 256.  Row r sees slot s of the prefix (s < cache_len) and tail slot
    cache_len + t where bit t of its mask is set.  Sums are float32; weights are rounded to the dtype of the values before the
    product, as tensor cores require.  A slot that no mask admits cannot reach the output, whatever it holds; a value that is
    not finite in a slot that a row does see makes that row NaN, and so does seeing nothing.  Returns [N, R, Hq, D], contiguous.

    Safe to capture: launches follow from shapes, and nothing on the device is read by the host.  Raises ValueError where
    arguments do not fit together.
    """
    return attend(q, k_cache, v_cache, cache_len, tail_mask, scale)


#: Keys of a split, and lanes of the tile, where results must not depend on the call's shape.
INVARIANT_KEYS = 512
INVARIANT_LANES = 64


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_len: Tensor, tail_mask: Tensor, scale: float, *,
           invariant: bool = False, splits: int | None = None) -> Tensor:
    """`tail_attention` with a choice of how the work is shared out.

    invariant: splits of a fixed number of keys and one tile for every shape, so that what a row gets depends bit for bit only
    on its query and on the slots it sees, not on R, N, cache_len or C; it costs buffers in proportion to C (4 * D bytes for
    each row, query head and 512 slots) and tiles that few rows do not fill.  splits: how many there are; by default what fills
    the device.
    """
    check_tail_attention(q, k_cache, v_cache, cache_len, tail_mask, scale)
    n, rows, heads, size = q.shape
    slots, kv_heads = k_cache.shape[1:3]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    device = tiles.device(q.device)
    group = heads // kv_heads
    lanes = rows * group
    tile = tiles.attention_tile(INVARIANT_LANES if invariant else lanes, size, q.itemsize, device)
    lane_tiles = triton.cdiv(lanes, tile.lanes)
    least = max(1, (INVARIANT_KEYS if invariant else tiles.SPLIT_KEYS) // tile.keys)
    if invariant:
        splits = max(1, triton.cdiv(slots, tile.keys * least))
    elif splits is None:
        splits = tiles.attention_splits(tile, lane_tiles * n * kv_heads, slots, device)
    q = q if q.stride(3) == 1 else q.contiguous()
    cache_len, tail_mask = cache_len.contiguous(), tail_mask.contiguous()
    single = splits == 1
    sums, state = out, out
    if not single:
        sums = torch.empty((n, kv_heads, splits, lanes, size), dtype=torch.float32, device=q.device)
        state = torch.empty((n, kv_heads, splits, 2, lanes), dtype=torch.float32, device=q.device)
    words, block_d = tail_mask.shape[2], tiles.padded(size)
    heads_of = {"KV_HEADS": kv_heads, "GROUP": group, "SIZE": size, "BLOCK_N": tile.keys, "BLOCK_D": block_d}
    with tiles.on(q.device):
        attend_kernel[(lane_tiles, splits, n * kv_heads)](
            q, k_cache, v_cache, cache_len, tail_mask, out, sums, state,
            *q.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3], tail_mask.stride(0) if tail_mask.shape[0] > 1 else 0,
            rows, slots, words, least, scale * math.log2(math.e),
            SINGLE=single, PRECISION="ieee", BLOCK_M=tile.lanes, **heads_of, num_warps=tile.warps, num_stages=tile.stages)
        if not single:
            combine_kernel[(triton.cdiv(lanes, COMBINED_LANES), n * kv_heads)](
                sums, state, cache_len, out, rows, slots, words, splits, least,
                SPLITS=tiles.padded(splits, tiles.MOST_SPLITS), LANES=COMBINED_LANES, **heads_of, num_warps=4, num_stages=3)
    return out
