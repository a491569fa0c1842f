"""The implementations of rope_store and tail_attention that the kernel tests run against."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.ops import attention, native

from .backends import INTERPRETED, on_gpu

#: "torch": the plain-torch function.  "cpu": the C++ kernel, reached through the operator.  "cuda": whatever the operator runs
#: on a GPU.  "triton": the Triton kernel, on a GPU or, with TRITON_INTERPRET=1 in the environment, in the interpreter.
BACKENDS = ("torch", "cpu", "cuda", "triton")
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
