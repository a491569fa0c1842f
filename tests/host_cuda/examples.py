"""The example kernels (examples.h), correct and broken, from Python without torch.

`python -m tests.host_cuda.examples argmax shared_overrun` runs one and prints what it reports: a sanitizer ends the process.
"""

from __future__ import annotations

import ctypes
import random
import sys

from . import library

MISTAKES = ("none", "no_barrier", "shuffle", "no_release_fence", "no_acquire_fence", "plain_ticket", "shared_overrun",
            "dynamic_overrun", "global_overrun", "overflow")  # fmt: skip
MEETINGS = ("everybody", "some_skip_barrier", "two_barriers", "exited_lane", "missing_lane", "outside_mask", "not_in_mask",
            "different_collectives", "deadlock", "spin", "trap")  # fmt: skip
WARP_RESULTS = 18


class _Argmax(ctypes.Structure):
    _fields_ = (
        ("scores", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("splits", ctypes.c_int64),
        ("partial", ctypes.c_void_p),
        ("ticket", ctypes.c_void_p),
        ("id", ctypes.c_void_p),
        ("mistake", ctypes.c_int),
    )


class _Meet(ctypes.Structure):
    _fields_ = (("meeting", ctypes.c_int), ("threads", ctypes.c_int), ("out", ctypes.c_void_p))


class _Warp(ctypes.Structure):
    _fields_ = (("in", ctypes.c_void_p), ("threads", ctypes.c_int), ("out", ctypes.c_void_p))


def _array(kind: type, values: list) -> ctypes.Array:
    return (kind * len(values))(*values)


def argmax(scores: list[list[float]], splits: int, mistake: str = "none", launches: int = 1) -> list[int]:
    """The argmax of each row, computed `launches` times over with the same tickets."""
    rows, size = len(scores), len(scores[0])
    flat = _array(ctypes.c_float, [x for row in scores for x in row])
    partial, ticket = (ctypes.c_uint64 * (rows * splits))(), (ctypes.c_uint32 * rows)()
    for _ in range(launches):
        ids = _array(ctypes.c_int32, [-1] * rows)
        pointers = [ctypes.addressof(array) for array in (partial, ticket, ids)]
        library.load("examples").call(
            "argmax", _Argmax(ctypes.addressof(flat), rows, size, splits, *pointers, MISTAKES.index(mistake))
        )
    return list(ids)


def meet(meeting: str, threads: int = 32) -> list[int]:
    """What the threads of one block bring back."""
    out = (ctypes.c_int32 * threads)()
    library.load("examples").call("meet", _Meet(MEETINGS.index(meeting), threads, ctypes.addressof(out)))
    return list(out)


def warp(values: list[int]) -> list[list[int]]:
    """A row of results for each warp operation of warp_kernel."""
    n = len(values)
    data, out = _array(ctypes.c_int32, values), (ctypes.c_int32 * (WARP_RESULTS * n))()
    library.load("examples").call("warp", _Warp(ctypes.addressof(data), n, ctypes.addressof(out)))
    return [list(out[i * n : i * n + n]) for i in range(WARP_RESULTS)]


def random_scores(rows: int, size: int, levels: int = 10**9) -> list[list[float]]:
    """The same in every run; few levels give many ties."""
    generator = random.Random(5)
    return [[float(generator.randrange(-levels, levels)) for _ in range(size)] for _ in range(rows)]


def main() -> None:
    kind, name = sys.argv[1:]
    try:
        if kind == "argmax":
            print(argmax(random_scores(2, 300), 3, name))
        else:
            print(meet(name))
    except library.Fault as fault:
        print(f"Fault: {fault}")


if __name__ == "__main__":
    main()
