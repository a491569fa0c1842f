"""CUDA launchers compiled for the host, loaded with ctypes; no torch in here.

`load("kernels")` has the launchers of csrc/cuda, one function for each line of csrc/testing/exports.cpp.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import build

# Which build this process uses: "", "address" or "thread" (build.SANITIZERS). A sanitizer's runtime must have been preloaded.
SANITIZER = os.environ.get("PACKED_SS_HOST_CUDA_SANITIZER", "")


class Fault(RuntimeError):
    """A kernel broke a rule of CUDA: what happened, in which block, and where its threads stand."""


class Library:
    """Launchers by name."""

    def __init__(self, name: str) -> None:
        self._functions = ctypes.CDLL(str(build.library(name, SANITIZER)))
        self._functions.packed_ss_fault.restype = ctypes.c_char_p
        self._functions.packed_ss_launches.restype = ctypes.c_uint64

    def call(self, name: str, arguments: ctypes.Structure) -> None:
        """Runs a launcher to the end of its kernels. Raises Fault, or RuntimeError with the cudaError_t of the launch."""
        code = self._functions[f"packed_ss_{name}"](ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments)))
        if code < 0:
            raise Fault(self._functions.packed_ss_fault().decode())
        if code > 0:
            raise RuntimeError(f"{name}: cudaError_t {code}.")

    def launches(self) -> int:
        """Kernels launched so far."""
        return self._functions.packed_ss_launches()

    @contextmanager
    def order(self, seed: int) -> Iterator[None]:
        """Shuffles the order of blocks and threads in the launches inside; seed 0 does not."""
        self._functions.packed_ss_set_order(ctypes.c_uint64(seed))
        try:
            yield
        finally:
            self._functions.packed_ss_set_order(ctypes.c_uint64(0))


@functools.cache
def load(name: str) -> Library:
    """The library "kernels" or "examples", compiled if need be. Raises build.NotBuilt where there is no compiler."""
    return Library(name)
