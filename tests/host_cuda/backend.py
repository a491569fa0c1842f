"""The operators by their CUDA sources on the CPU: the backend "cuda-on-host" of tests.

Each function takes what its operator takes. A new kernel needs three things: its .cu in csrc/cuda (found by itself), a line in
csrc/testing/exports.cpp, and here or in operators.py its argument struct, field by field as in the header, with a function that
fills it in.
"""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from packed_ss.ops.philox import check_uniform_noise

from . import build, library


class UniformNoise(ctypes.Structure):
    """packed_ss::UniformNoise."""

    _fields_ = (
        ("seed", ctypes.c_void_p),
        ("position", ctypes.c_void_p),
        ("sequences", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("stream", ctypes.c_uint32),
        ("vocab_size", ctypes.c_int64),
        ("out", ctypes.c_void_p),
    )


def kernels() -> library.Library:
    """The launchers of csrc/cuda; skips the running test where there is no compiler."""
    try:
        return library.load("kernels")
    except build.NotBuilt as reason:
        pytest.skip(f"no CUDA sources on the host: {reason}")


def uniform_noise(seed: Tensor, position: Tensor, stream: int, vocab_size: int) -> Tensor:
    """`packed_ss.ops.philox.uniform_noise` by csrc/cuda/uniform_noise.cu."""
    check_uniform_noise(seed, position, stream, vocab_size)
    seed, position = seed.contiguous(), position.contiguous()
    out = torch.full((*position.shape, vocab_size), torch.nan)
    sizes = position.shape[0], position.shape[1], stream, vocab_size
    kernels().call("uniform_noise", UniformNoise(seed.data_ptr(), position.data_ptr(), *sizes, out.data_ptr()))
    return out
