"""Plain-torch kernels of the cache: rotate and store, and attention over prefix and tail."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    query_scale: Tensor | None,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> Tensor:
    """Rotates q and k, scales q, and writes k and v to their cache slots.

    q [N, R, Hq, D], k and v [N, R, Hkv, D]; cos and sin [N, R, D/2]; query_scale [N, R] or None; slots [N, R] integer;
    caches [N, C, Hkv, D].  Returns the rotated, scaled q.
    """
    both = torch.cat((q, k), dim=2)
    first, second = both.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(2).to(q.dtype), sin.unsqueeze(2).to(q.dtype)
    both = torch.cat(((first * cos).addcmul_(second, sin, value=-1), (second * cos).addcmul_(first, sin)), dim=-1)
    q, k = both.split((q.shape[2], k.shape[2]), dim=2)
    if query_scale is not None:
        q = q * query_scale[..., None, None].to(q.dtype)
    index = slots.long()[:, :, None, None].expand_as(v)
    k_cache.scatter_(1, index, k)
    v_cache.scatter_(1, index, v)
    return q.contiguous()


def visible_slots(cache_len: Tensor, tail_mask: Tensor, slots: int) -> Tensor:
    """Which cache slots each row sees: bool [N, R, slots].

    Row r sees slot s of the prefix (s < cache_len) and tail slot cache_len + t where bit t of its mask is set.
    """
    tail = torch.arange(slots, device=cache_len.device) - cache_len[:, None]
    inside = tail.clamp(0, 32 * tail_mask.shape[2] - 1)
    if tail_mask.shape[0] == 1:
        words = tail_mask[0][:, inside >> 5].transpose(0, 1)
    else:
        words = tail_mask.gather(2, (inside >> 5)[:, None].expand(-1, tail_mask.shape[1], -1))
    seen = (words >> (inside & 31)[:, None]) & 1
    seen = torch.where((tail < 32 * tail_mask.shape[2])[:, None], seen, 0)
    return torch.where((tail < 0)[:, None], 1, seen).bool()


def tail_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_len: Tensor, tail_mask: Tensor, scale: float) -> Tensor:
    """Softmax attention of R rows over the cached prefix and the R x R tail that a bitmask describes.

    q [N, R, Hq, D]; caches [N, C, Hkv, D]; cache_len [N] int32; tail_mask [1 or N, R, words] int32.  Query heads share
    key/value heads in groups of Hq / Hkv.  Accumulates in float32 or better.  A slot that no mask admits cannot reach the
    output, whatever it holds; a NaN in a slot that a row does see makes that row NaN.  Returns [N, R, Hq, D].
    """
    n, rows, heads, size = q.shape
    if q.numel() == 0:
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    kv_heads, slots = k_cache.shape[2], k_cache.shape[1]
    dtype = torch.promote_types(q.dtype, torch.float32)
    visible = visible_slots(cache_len, tail_mask, slots)
    keys, values = k_cache.to(dtype).permute(0, 2, 3, 1), v_cache.to(dtype).transpose(1, 2)
    grouped = q.to(dtype).view(n, rows, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4) * scale
    scores = grouped.reshape(n, kv_heads, -1, size).matmul(keys).view(n, kv_heads, -1, rows, slots)
    # 0 where a value row is finite, NaN where it is not: the product below would spread it over rows that do not see it.
    poison = values.sum(-1).mul_(0)[:, :, None, None]
    scores = torch.where(visible[:, None, None], scores + poison, -torch.inf)
    weights = scores.softmax(-1).view(n, kv_heads, -1, slots)
    out = weights.matmul(values.nan_to_num(0.0, 0.0, 0.0)).view(n, kv_heads, -1, rows, size)
    return out.permute(0, 3, 1, 2, 4).reshape(n, rows, heads, size).to(q.dtype).contiguous()
