"""The operators behind ``torch.ops.packed_ss.*``.

Schemas are defined here, plain-torch kernels serve every device, and the compiled module, where it was built, adds
kernels for single devices that take precedence; Triton kernels serve CUDA where the compiled module has none.  Callers
never ask which one runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import attention, checks, checks_ordered, head, native, ordered, pack, pack_ordered, philox, resolve, rows
from .schema import SCHEMAS

_library = torch.library.Library("packed_ss", "DEF")
for _schema in SCHEMAS:
    _library.define(_schema)

_TORCH_KERNELS = {
    "uniform_noise": philox.uniform_noise,
    "rope_store": attention.rope_store,
    "tail_attention": attention.tail_attention,
    "pack_block": pack.pack_block,
    "linear_argmax": head.linear_argmax,
    "resolve_argmax": resolve.resolve_argmax,
    "resolve_greedy": resolve.resolve_greedy,
    "resolve_coupled": resolve.resolve_coupled,
    "resolve_match": resolve.resolve_match,  # for comparisons of acceptance; it has no other kernel
    "resolve_rejection": resolve.resolve_rejection,
    "argmax_rows": rows.argmax_rows,
    "draw_rows": rows.draw_rows,
    "verify_rows": rows.verify_rows,
    "resolve_ordered": ordered.resolve_ordered,
    "resolve_native": ordered.resolve_native,
    "compact_cache": ordered.compact_cache,
    "pack_ordered": pack_ordered.pack_ordered,
}


def _fake_uniform_noise(seed, position, stream, vocab_size):
    philox.check_uniform_noise(seed, position, stream, vocab_size)
    return position.new_empty((*position.shape, vocab_size), dtype=torch.float32)


def _fake_like_q(q, *_):
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _fake_linear_argmax(x, weight):
    head.check_linear_argmax(x, weight)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(x.shape[:2], dtype=dtype), x.new_empty(x.shape[:2], dtype=torch.int32)


def _fake_argmax_rows(logits, probability):
    checks_ordered.check_argmax_rows(logits, probability)
    n, rows = logits.shape[:2]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.new_empty((n, rows), dtype=torch.int32), logits.new_empty((n, rows if probability else 0), dtype=dtype)


def _fake_verify_rows(*arguments):
    checks_ordered.check_verify_rows(*arguments)
    draft = arguments[-2]
    return torch.empty_like(draft), torch.empty_like(draft)


_FAKES = {
    "uniform_noise": _fake_uniform_noise,
    "rope_store": _fake_like_q,
    "tail_attention": _fake_like_q,
    "linear_argmax": _fake_linear_argmax,
    "argmax_rows": _fake_argmax_rows,
    "verify_rows": _fake_verify_rows,
}
# The others only write to their arguments.
_FAKES |= {
    _name: getattr(checks, f"check_{_name}", None) or getattr(checks_ordered, f"check_{_name}")
    for _name in _TORCH_KERNELS
    if _name not in _FAKES
}
for _name, _kernel in _TORCH_KERNELS.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"packed_ss::{_name}", _FAKES[_name], lib=_library)

native.load(_TORCH_KERNELS)


def _triton_kernels() -> dict[str, Callable[..., Any]]:
    if not torch.cuda.is_available():
        return {}
    from .. import triton_kernels

    return triton_kernels.operators()


_TRITON_KERNELS = _triton_kernels()
for _name in set(_TRITON_KERNELS) - set(native.kernels("cuda")):
    _library.impl(_name, _TRITON_KERNELS[_name], "CUDA")


def kernels(device: str) -> dict[str, str]:
    """By operator, who computes it on a device type, "cpu" or "cuda": "native" (compiled), "triton" or "torch" (plain)."""
    compiled, fused = native.kernels(device), _TRITON_KERNELS if device == "cuda" else {}
    return {name: "native" if name in compiled else "triton" if name in fused else "torch" for name in _TORCH_KERNELS}
