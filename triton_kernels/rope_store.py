"""Rotation of queries and keys by position, the query scale, and the write of keys and values to the cache, in one launch.

With the pair (a, b) = (x[i], x[i + D/2]) and the angle of row r and pair i, in the dtype of q:
    a' = a cos - b sin,   b' = b cos + a sin,   and for queries both times query_scale[r].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .checks import check_rope_store


@triton.jit
def _rotate(x_ptr, offsets, cos, sin, HALF: tl.constexpr, exists):
    """Both halves of rotated heads, in the dtype of x and rounded as torch rounds: the first product, then the sum."""
    dtype = x_ptr.dtype.element_ty
    a = tl.load(x_ptr + offsets, mask=exists, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + offsets + HALF, mask=exists, other=0.0).to(tl.float32)
    first = (a * cos).to(dtype).to(tl.float32) - b * sin
    second = (b * cos).to(dtype).to(tl.float32) + a * sin
    return first.to(dtype), second.to(dtype)


@triton.jit(do_not_specialize=["total", "rows", "slots"])
def rope_store_kernel(q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, scale_ptr, slots_ptr, k_cache_ptr, v_cache_ptr, out_ptr,
                      q_n, q_r, q_h, k_n, k_r, k_h, v_n, v_r, v_h, kc_n, kc_c, kc_h, vc_n, vc_c, vc_h, total, rows, slots,
                      Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, SCALED: tl.constexpr,
                      ROWS: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """Program (ROWS rows, of any sequences, and HEADS heads of q, of k or of v); total = N * R.

    Reads q, k and v once, and writes out [N, R, Hq, D] and the slots of both caches once: 2 * (Hq + 2 Hkv) * D elements for each
    row.  cos and sin, D elements of each row, are read once for every HEADS heads.
    """
    item = tl.arange(0, ROWS * HEADS)
    flat = tl.program_id(0) * ROWS + item // HEADS
    there = flat < total
    n = (flat // rows).to(tl.int64)
    row = (flat % rows).to(tl.int64)
    flat = flat.to(tl.int64)
    head = (item % HEADS).to(tl.int64)
    group = tl.program_id(1)
    Q_GROUPS: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    KV_GROUPS: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    i = tl.arange(0, BLOCK)[None, :]
    pair_exists = there[:, None] & (i < HALF)
    if group < Q_GROUPS + KV_GROUPS:
        dtype = q_ptr.dtype.element_ty
        turn = flat[:, None] * HALF + i
        cos = tl.load(cos_ptr + turn, mask=pair_exists, other=0.0).to(dtype).to(tl.float32)
        sin = tl.load(sin_ptr + turn, mask=pair_exists, other=0.0).to(dtype).to(tl.float32)
        if group < Q_GROUPS:
            q_head = group * HEADS + head
            exists = (q_head < Q_HEADS)[:, None] & pair_exists
            first, second = _rotate(q_ptr, (n * q_n + row * q_r + q_head * q_h)[:, None] + i, cos, sin, HALF, exists)
            if SCALED:
                scale = tl.load(scale_ptr + flat, mask=there, other=0.0).to(dtype).to(tl.float32)[:, None]
                first = (first.to(tl.float32) * scale).to(dtype)
                second = (second.to(tl.float32) * scale).to(dtype)
            to = out_ptr + ((flat * Q_HEADS + q_head) * (2 * HALF))[:, None] + i
            tl.store(to, first, mask=exists)
            tl.store(to + HALF, second, mask=exists)
        else:
            kv_head = (group - Q_GROUPS) * HEADS + head
            exists = (kv_head < KV_HEADS)[:, None] & pair_exists
            first, second = _rotate(k_ptr, (n * k_n + row * k_r + kv_head * k_h)[:, None] + i, cos, sin, HALF, exists)
            slot = tl.load(slots_ptr + flat, mask=there, other=-1).to(tl.int64)
            stored = exists & ((slot >= 0) & (slot < slots))[:, None]
            to = k_cache_ptr + (n * kc_n + slot * kc_c + kv_head * kc_h)[:, None] + i
            tl.store(to, first, mask=stored)
            tl.store(to + HALF, second, mask=stored)
    else:
        kv_head = (group - Q_GROUPS - KV_GROUPS) * HEADS + head
        slot = tl.load(slots_ptr + flat, mask=there, other=-1).to(tl.int64)
        stored = ((kv_head < KV_HEADS) & (slot >= 0) & (slot < slots))[:, None] & pair_exists
        taken = v_ptr + (n * v_n + row * v_r + kv_head * v_h)[:, None] + i
        to = v_cache_ptr + (n * vc_n + slot * vc_c + kv_head * vc_h)[:, None] + i
        tl.store(to, tl.load(taken, mask=stored), mask=stored)
        tl.store(to + HALF, tl.load(taken + HALF, mask=stored), mask=stored)


def rope_store(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, query_scale: Tensor | None, slots: Tensor,
               k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """Rotates q and k, scales q, and writes k and v to their cache slots.

    q [N, R, Hq, D], k and v [N, R, Hkv, D], views of one tensor or not; cos and sin [N, R, D/2], which are rounded to the
    dtype of q; query_scale [N, R] or None; slots [N, R] int32, of which those outside the cache are not written; caches
    [N, C, Hkv, D], any strides but the last.  float32, bfloat16 or float16; D is even and at most 256.  Returns the rotated,
    scaled q, contiguous.

    Where rows of a sequence name the same slot, it holds elements of any of them.  Safe to capture: the launch follows from
    shapes.  Raises ValueError where arguments do not fit together.
    """
    check_rope_store(q, k, v, cos, sin, query_scale, slots, k_cache, v_cache)
    n, rows, heads, size = q.shape
    kv_heads = k.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if out.numel() == 0:
        return out
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    cos, sin, slots = cos.contiguous(), sin.contiguous(), slots.contiguous()
    query_scale = None if query_scale is None else query_scale.contiguous()
    groups = triton.cdiv(heads, tiles.ROPE_HEADS) + 2 * triton.cdiv(kv_heads, tiles.ROPE_HEADS)
    together = tiles.rope_rows(n * rows * groups, tiles.device(q.device))
    with tiles.on(q.device):
        rope_store_kernel[(triton.cdiv(n * rows, together), groups)](
            q, k, v, cos, sin, query_scale, slots, k_cache, v_cache, out,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *k_cache.stride()[:3], *v_cache.stride()[:3],
            n * rows, rows, k_cache.shape[1], Q_HEADS=heads, KV_HEADS=kv_heads, HALF=size // 2, SCALED=query_scale is not None,
            ROWS=together, HEADS=tiles.ROPE_HEADS, BLOCK=tiles.padded(size // 2, 1), num_warps=2 * min(together, 4), num_stages=1)
    return out
