"""The implementations of rope_store and tail_attention that the kernel tests run against."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.ops import attention, native

#: "torch": the plain-torch function.  "cpu": the C++ kernel, reached through the operator.  "cuda": whatever the operator runs
#: on a GPU.  "triton": the Triton kernel, on a GPU or, with TRITON_INTERPRET=1 in the environment, in the interpreter.
BACKENDS = ("torch", "cpu", "cuda", "triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = ("cuda", "triton") if not INTERPRETED else ("cuda",)


def kernel(backend: str, name: str) -> Callable[..., Tensor]:
    """The operator ``name`` as this backend computes it, for CPU tensors; skips the test where the backend is not there."""
    if backend == "torch":
        return getattr(attention, name)
    if backend in ON_GPU and not torch.cuda.is_available():
        pytest.skip("no GPU" if backend == "cuda" else "no GPU, and no interpreter without TRITON_INTERPRET=1")
    if backend == "triton":
        pytest.importorskip("triton")
        function = getattr(importlib.import_module(f"packed_ss.triton_kernels.{name}"), name)
        return _with_dtypes(function if INTERPRETED else on_gpu(function), name)
    if backend == "cuda":
        return on_gpu(getattr(torch.ops.packed_ss, name))
    if not native.available():
        pytest.skip(f"no native kernels: {native.reason()}")
    if name not in native.info()["kernels"][backend]:
        pytest.skip(f"{name} has no {backend} kernel")
    return getattr(torch.ops.packed_ss, name)


def on_gpu(function: Callable[..., Tensor], device: str = "cuda") -> Callable[..., Tensor]:
    """``function`` on copies of its CPU arguments on the GPU; what it writes to them is copied back.

    Whole buffers are copied, so that views keep their strides, what lies around them, and what they share.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Tensor:
        buffers: dict[int, tuple[Tensor, Tensor]] = {}

        def moved(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            storage = x.untyped_storage()
            if storage.data_ptr() not in buffers:
                here = torch.empty(0, dtype=torch.uint8).set_(storage)
                buffers[storage.data_ptr()] = here, here.to(device, copy=True)
            there = buffers[storage.data_ptr()][1].untyped_storage()
            return torch.empty(0, dtype=x.dtype, device=device).set_(there, x.storage_offset(), x.shape, x.stride())

        out = function(*map(moved, arguments), **options).cpu()
        for here, there in buffers.values():
            here.copy_(there)
        return out

    return call


def _with_dtypes(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """``function`` for the dtypes that a Triton kernel takes where it runs; skips the test for others."""

    @functools.wraps(function)
    def call(q: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if q.dtype == torch.float64:
            pytest.skip("no float64 in Triton kernels")
        if INTERPRETED and q.dtype == torch.bfloat16 and name == "tail_attention":
            pytest.skip("Triton's interpreter multiplies matrices of bfloat16 as integers")
        return function(q, *arguments, **options)

    return call
