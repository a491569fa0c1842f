"""The implementations of rope_store and tail_attention that the kernel tests run against."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from packed_ss.ops import attention, native

#: "torch": the plain-torch function.  "cpu": the C++ kernel, reached through the operator.
BACKENDS = ("torch", "cpu")


def kernel(backend: str, name: str) -> Callable[..., Tensor]:
    """The operator ``name`` as this backend computes it; skips the test where the backend is not there."""
    if backend == "torch":
        return getattr(attention, name)
    if not native.available():
        pytest.skip(f"no native kernels: {native.reason()}")
    if name not in native.info()["kernels"][backend]:
        pytest.skip(f"{name} has no {backend} kernel")
    return getattr(torch.ops.packed_ss, name)
