"""Host execution of CUDA sources: barriers, warp operations, shared memory and atomics do what they do on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.installation.test_framework_free import find_nvcc

from . import build, examples
from .library import Library

pytestmark = pytest.mark.usefixtures("examples_library")

VALUES = [(37 * i * i + 11 * i) % 201 - 100 for i in range(64)]


def first_argmax(row: list[float]) -> int:
    return row.index(max(row))


@pytest.mark.parametrize(("size", "splits"), [(1, 1), (7, 2), (64, 1), (1000, 5), (1025, 70)])
@pytest.mark.parametrize("levels", [1, 3, 10**9])
def test_argmax(size: int, splits: int, levels: int) -> None:
    """Two launches: the tickets are left as they were found."""
    scores = examples.random_scores(3, size, levels)
    assert examples.argmax(scores, splits, launches=2) == [first_argmax(row) for row in scores]


@pytest.mark.parametrize("seed", range(1, 9))
def test_argmax_in_any_order(examples_library: Library, seed: int) -> None:
    scores = examples.random_scores(3, 500, 20)
    with examples_library.order(seed):
        assert examples.argmax(scores, 4) == [first_argmax(row) for row in scores]


@pytest.mark.parametrize("seed", [0, 3])
def test_warp_operations(examples_library: Library, seed: int) -> None:
    with examples_library.order(seed):
        results = examples.warp(VALUES)

    def of_source(source: Callable[[int], int], width: int, earlier: bool = False) -> list[int]:
        """The values of lanes source(lane), of the lane itself where that is past its segment, or before and not `earlier`."""
        found = []
        for thread in range(64):
            lane = thread % 32
            start = lane - lane % width
            inside = (earlier or source(lane) >= start) and source(lane) < start + width
            found.append(VALUES[thread - lane + (source(lane) if inside else lane)])
        return found

    def by_half(combine: Callable[[list[int]], int]) -> list[int]:
        return [combine(VALUES[thread // 16 * 16 :][:16]) for thread in range(64)]

    def signed(word: int) -> int:
        return ctypes.c_int32(word).value

    ballots = []
    for thread in range(64):
        start = thread // 16 * 16
        ballots.append(signed(sum((VALUES[start + i] > 0) << (start % 32 + i) for i in range(16))))
    assert results == [
        [VALUES[thread // 32 * 32 + thread * 7 % 32] for thread in range(64)],
        of_source(lambda lane: lane // 8 * 8 + 5, 8),
        of_source(lambda lane: lane - 3, 32),
        of_source(lambda lane: lane - 3, 16),
        of_source(lambda lane: lane + 3, 32),
        of_source(lambda lane: lane + 3, 16),
        of_source(lambda lane: lane ^ 5, 32),
        of_source(lambda lane: lane ^ 12, 8, earlier=True),
        [VALUES[thread ^ 1] for thread in range(64)],
        ballots,
        by_half(lambda x: int(max(x) > 90)),
        by_half(lambda x: int(min(x) > -90)),
        by_half(sum),
        by_half(min),
        by_half(max),
        by_half(lambda x: signed(max(v & 0xFFFFFFFF for v in x))),
        [sum(v > 0 for v in VALUES)] * 64,
        [(17 in VALUES) * 2 + 1] * 64,
    ]


def test_nvcc_accepts_the_same_sources(tmp_path: Path) -> None:
    """All that launch.h offers: a kernel with several template arguments, static and dynamic shared memory."""
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    options = ["-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    source = build.HERE / "examples.cu"
    done = build.run([nvcc, *options, "-I", str(build.CSRC / "include"), "-c", str(source), "-o", str(tmp_path / "examples.o")])
    assert done.returncode == 0, done.stderr
