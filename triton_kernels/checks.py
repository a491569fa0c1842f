"""What the kernels of the cache accept, checked before anything is launched: ValueErrors of one sentence.

Values of cache_len and slots are on the device and are not looked at; the kernels stay inside the cache whatever they are.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Elements of a head that a tile can hold.
LARGEST_HEAD = 256
#: Ids that 32 bits count, with room for the splits of a row.
LARGEST_VOCABULARY = 1 << 30

# Whether kernels run in Triton's interpreter, on CPU tensors too: decided when they are defined.
_interpreted = triton.knobs.runtime.interpret


def check_tail_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, cache_len: Tensor, tail_mask: Tensor, scale: float) -> None:
    """Refuses arguments of tail_attention that do not fit together."""
    op = "tail_attention"
    _check_query(op, q)
    _check_caches(op, q, k_cache, v_cache)
    heads, kv_heads = q.shape[2], k_cache.shape[2]
    _require(kv_heads >= 1 and heads % kv_heads == 0, op,
             f"q must have a multiple of the heads of k_cache, {kv_heads}, got {heads}")
    _require(cache_len.dtype == torch.int32 and cache_len.shape == q.shape[:1], op,
             f"cache_len must be int32 [N] with N = {q.shape[0]} as in q, {_got(cache_len)}")
    n, rows = q.shape[:2]
    words = -(-rows // 32)
    _require(tail_mask.dtype == torch.int32 and tail_mask.dim() == 3 and tail_mask.shape[0] in (1, n)
             and tail_mask.shape[1:] == (rows, words), op,
             f"tail_mask must be int32 [1 or {n}, {rows}, {words}], 32 rows to a word, {_got(tail_mask)}")
    _require(0 < scale < float("inf"), op, f"scale must be positive and finite, got {scale}")
    _check_devices(op, q, k_cache=k_cache, v_cache=v_cache, cache_len=cache_len, tail_mask=tail_mask)


def check_rope_store(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, query_scale: Tensor | None, slots: Tensor,
                     k_cache: Tensor, v_cache: Tensor) -> None:
    """Refuses arguments of rope_store that do not fit together."""
    op = "rope_store"
    _check_query(op, q)
    n, rows, _, size = q.shape
    _require(size % 2 == 0, op, f"q must have heads of an even number of elements, {_got(q)}")
    _require(k.dim() == 4 and k.shape[2] >= 1, op, f"k must be [N, R, Hkv, D], {_got(k)}")
    for name, x, like in (("k", k, "q"), ("v", v, "q and k")):
        shape = [n, rows, k.shape[2], size]
        _require(list(x.shape) == shape, op, f"{name} must be {shape} to fit {like}, {_got(x)}")
        _require(x.dtype == q.dtype, op, f"{name} must be {_name(q.dtype)} like q, {_got(x)}")
    for name, x in (("cos", cos), ("sin", sin)):
        shape = [n, rows, size // 2]
        _require(x.is_floating_point() and list(x.shape) == shape, op,
                 f"{name} must be floating-point {shape} to fit q, {_got(x)}")
    if query_scale is not None:
        _require(query_scale.is_floating_point() and query_scale.shape == q.shape[:2], op,
                 f"query_scale must be floating-point {[n, rows]} to fit q, {_got(query_scale)}")
        _check_devices(op, q, query_scale=query_scale)
    _require(slots.dtype == torch.int32 and slots.shape == q.shape[:2], op,
             f"slots must be int32 {[n, rows]} to fit q, {_got(slots)}")
    _check_caches(op, q, k_cache, v_cache, k.shape[2])
    _check_devices(op, q, k=k, v=v, cos=cos, sin=sin, slots=slots, k_cache=k_cache, v_cache=v_cache)


def check_logits(op: str, logits: Tensor) -> None:
    """Refuses logits [N, rows, V] that other kernels take and these do not."""
    names = f"{', '.join(map(_name, DTYPES[:-1]))} or {_name(DTYPES[-1])}"
    _require(logits.dtype in DTYPES, op, f"logits must be {names} in Triton kernels, got {_name(logits.dtype)}")
    _require(logits.shape[-1] <= LARGEST_VOCABULARY, op, f"logits must have at most 2^30 ids, got {list(logits.shape)}")
    check_on_device(op, "logits", logits)


def check_on_device(op: str, name: str, x: Tensor) -> None:
    """Refuses a tensor that is not where kernels run."""
    _require(x.is_cuda or (_interpreted and x.device.type == "cpu"), op, f"{name} must be on a CUDA device, got {x.device}")


def _check_query(op: str, q: Tensor) -> None:
    _require(q.dim() == 4 and q.dtype in DTYPES, op,
             f"q must be [N, R, Hq, D] in {', '.join(map(_name, DTYPES[:-1]))} or {_name(DTYPES[-1])}, {_got(q)}")
    _require(q.shape[2] >= 1 and 1 <= q.shape[3] <= LARGEST_HEAD, op,
             f"q must have at least one head of 1 to {LARGEST_HEAD} elements, {_got(q)}")
    check_on_device(op, "q", q)


def _check_caches(op: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, kv_heads: int | None = None) -> None:
    """[N, C, Hkv, D] in the dtype of q, of one shape; only the elements of a head have to lie side by side."""
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        _require(cache.dim() == 4 and cache.shape[0] == q.shape[0] and cache.shape[3] == q.shape[3], op,
                 f"{name} must be [{q.shape[0]}, C, Hkv, {q.shape[3]}] to fit q, {_got(cache)}")
        _require(cache.dtype == q.dtype, op, f"{name} must be {_name(q.dtype)} like q, {_got(cache)}")
        _require(cache.shape[3] == 1 or cache.stride(3) == 1, op,
                 f"{name} must be contiguous in its last dimension, got strides {cache.stride()}")
    _require(kv_heads in (None, k_cache.shape[2]), op, f"k_cache must have the heads of k, {kv_heads}, got {k_cache.shape[2]}")
    _require(v_cache.shape == k_cache.shape, op,
             f"v_cache must have the shape of k_cache, {list(k_cache.shape)}, {_got(v_cache)}")


def _check_devices(op: str, q: Tensor, **others: Tensor) -> None:
    for name, x in others.items():
        _require(x.device == q.device, op, f"{name} must be on {q.device} like q, got {x.device}")


def _name(of: torch.dtype) -> str:
    return str(of).removeprefix("torch.")


def _got(x: Tensor) -> str:
    return f"got {_name(x.dtype)} {list(x.shape)}"


def _require(condition: bool, op: str, message: str) -> None:
    if not condition:
        raise ValueError(f"{op}: {message}.")
