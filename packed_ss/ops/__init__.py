"""The operators behind ``torch.ops.packed_ss.*``.

Schemas are defined here, plain-torch kernels serve every device, and the compiled module, where it was built, adds
kernels for single devices that take precedence; Triton kernels serve CUDA where the compiled module has none.  Callers
never ask which one runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from . import advance_block, advance_ordered, attention, checks, native, pack, pack_ordered, philox, row_operators
from .schema import SCHEMAS

_library = torch.library.Library("packed_ss", "DEF")
for _schema in SCHEMAS:
    _library.define(_schema)

_TORCH_KERNELS: dict[str, Callable[..., Any]] = {
    "uniform_noise": philox.uniform_noise,
    "rope_store": attention.rope_store,
    "tail_attention": attention.tail_attention,
    "linear_argmax": row_operators.linear_argmax,
    "argmax_rows": row_operators.argmax_rows,
    "draw_rows": row_operators.draw_rows,
    "verify_rows": row_operators.verify_rows,
    "pack_block": pack.pack_block,
    "pack_ordered": pack_ordered.pack_ordered,
    "advance_block": advance_block.advance_block,
    "advance_ordered": advance_ordered.advance_ordered,
    "advance_native": advance_ordered.advance_native,
    "compact_cache": advance_ordered.compact_cache,
}


def _fake_uniform_noise(seed, position, stream, vocab_size):
    philox.check_uniform_noise(seed, position, stream, vocab_size)
    return position.new_empty((*position.shape, vocab_size), dtype=torch.float32)


def _fake_like_q(q, *_):
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _fake_linear_argmax(x, weight):
    checks.check_linear_argmax(x, weight)
    return x.new_empty(x.shape[:2], dtype=torch.int32)


_FAKES: dict[str, Callable[..., Any]] = {
    "uniform_noise": _fake_uniform_noise,
    "rope_store": _fake_like_q,
    "tail_attention": _fake_like_q,
    "linear_argmax": _fake_linear_argmax,
}
# The others only write to their arguments.
_FAKES |= {_name: getattr(checks, f"check_{_name}") for _name in _TORCH_KERNELS if _name not in _FAKES}
for _name, _kernel in _TORCH_KERNELS.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    # No operator has a gradient: without this, each call goes through a boxed kernel that looks for one.
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"packed_ss::{_name}", _FAKES[_name], lib=_library)

native.load(_TORCH_KERNELS)


def _triton_kernels() -> dict[str, Callable[..., Any]]:
    if not torch.cuda.is_available():
        return {}
    return importlib.import_module("packed_ss.triton_kernels").operators()


_TRITON_KERNELS = _triton_kernels()
for _name in set(_TRITON_KERNELS) - set(native.kernels("cuda")):
    _library.impl(_name, _TRITON_KERNELS[_name], "CUDA")


def kernels(device: str) -> dict[str, str]:
    """By operator, who computes it on a device type, "cpu" or "cuda": "native" (compiled), "triton" or "torch" (plain)."""
    compiled, fused = native.kernels(device), _TRITON_KERNELS if device == "cuda" else {}
    return {name: "native" if name in compiled else "triton" if name in fused else "torch" for name in _TORCH_KERNELS}
