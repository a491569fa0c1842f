"""The device loop of csrc/cuda on the CPU: its graph by graph_runtime.cpp, its kernel by csrc/testing. No torch in here."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import build, library

# cudaGraphNodeType, as far as tests name them.
NODE_TYPES = {"kernel": 0, "copy": 1, "fill": 2, "host": 3, "empty": 5, "wait for an event": 6, "event": 7, "semaphore": 8,
              "allocation": 10, "release": 11, "conditional": 13}  # fmt: skip
_ITERATION = ctypes.CFUNCTYPE(None)


@dataclass
class Outcome:
    """error: what was thrown, or ""; nodes: the names of those that ran; iterations: the device's count; alive: graphs left over;
    last_error: what cudaGetLastError returned afterwards."""

    error: str
    nodes: list[str]
    iterations: int
    alive: int
    last_error: int


@functools.cache
def _functions() -> ctypes.CDLL:
    functions = ctypes.CDLL(str(build.library("device_loop", library.SANITIZER)))
    for name in ("obstacle", "device_loop", "order"):
        getattr(functions, f"packed_ss_{name}").restype = ctypes.c_char_p
    return functions


def cudart_version() -> int:
    """CUDART_VERSION of the headers that the library was compiled against."""
    return _functions().packed_ss_cudart_version()


def obstacle(runtime: int, driver: int, failing_call: str = "") -> str:
    """device_loop_obstacle() where the CUDA runtime and driver are of these versions (12040 is CUDA 12.4)."""
    return _functions().packed_ss_obstacle(runtime, driver, failing_call.encode()).decode()


def run(finish_reason: Sequence[int], limit: int, iteration: Callable[[ctypes.Array], None], *, launches: int = 1,
        nodes: Sequence[str] = ("kernel",), nested: bool = False, failing_call: str = "") -> Outcome:  # fmt: skip
    """Builds a loop over an iteration of `nodes`, each of which calls `iteration` with the flags, and launches it."""
    flags = (ctypes.c_int32 * len(finish_reason))(*finish_reason)
    iterations = ctypes.c_int32(-7)
    types = (ctypes.c_int * len(nodes))(*(NODE_TYPES[name] for name in nodes))
    error = _functions().packed_ss_device_loop(
        flags, ctypes.c_int64(len(flags)), ctypes.byref(iterations), ctypes.c_int32(limit), _ITERATION(lambda: iteration(flags)),
        types, len(types), nested, launches, failing_call.encode())  # fmt: skip
    ran = _functions().packed_ss_order().decode().split()
    return Outcome(error.decode(), ran, iterations.value, _functions().packed_ss_alive(), _functions().packed_ss_last_error())
