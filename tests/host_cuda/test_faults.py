"""Host execution of CUDA sources: a kernel that breaks a rule is reported, with the place where its threads stand."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from . import build, examples, library

pytestmark = pytest.mark.usefixtures("examples_library")


def test_nothing_is_reported_without_a_mistake() -> None:
    assert examples.meet("everybody") == [16] * 32


@pytest.mark.parametrize(
    ("meeting", "reason", "details"),
    [
        ("some_skip_barrier", "divergent barrier", ["threads 0-15: waiting at __syncthreads", "threads 16-31: exited"]),
        ("two_barriers", "divergent barrier", ["threads 0-15: waiting at __syncthreads", "16-31: waiting at __syncthreads"]),
        ("exited_lane", "names lanes that have exited", ["mask 0xffffffff", "threads 16-31: exited"]),
        ("outside_mask", "thread 15 reads lane 16", ["__shfl_down_sync", "a source lane outside the mask", "mask 0x0000ffff"]),
        ("not_in_mask", "thread 16 calls __syncwarp", ["a mask that leaves itself out"]),
        ("different_collectives", "different collectives meet", ["0-15: waiting at __shfl_sync", "16-31: waiting at __any_sync"]),
        ("deadlock", "deadlock", ["threads 0-2, 4-31: waiting at __syncwarp", "threads 3: waiting at __syncthreads"]),
        ("spin", "deadlock, thread 0 spins on an atomic", ["threads 1-31: exited"]),
        ("trap", "thread 7 calls __trap", ["threads 8-31: ready to run"]),
    ],
)
def test_meetings(meeting: str, reason: str, details: list[str]) -> None:
    with pytest.raises(library.Fault) as fault:
        examples.meet(meeting)
    first, report = str(fault.value).split("\n", 1)
    assert first.startswith("meet_kernel, block (0, 0, 0): ")
    assert reason in first
    for detail in details:
        assert detail in first + report
    # The library goes on working, on the stacks that the stuck threads left.
    assert examples.meet("everybody") == [16] * 32


def test_a_mask_for_more_threads_than_the_block_has() -> None:
    with pytest.raises(library.Fault, match="names lanes that the block does not have"):
        examples.meet("missing_lane", threads=16)


def test_reports_name_the_line() -> None:
    lines = (build.HERE / "examples.cu").read_text().splitlines()
    case = 1 + next(i for i, line in enumerate(lines) if "case Meeting::kTwoBarriers" in line)
    with pytest.raises(library.Fault) as fault:
        examples.meet("two_barriers")
    assert f"threads 0-15: waiting at __syncthreads (examples.cu:{case + 2})" in str(fault.value)
    assert f"threads 16-31: waiting at __syncthreads (examples.cu:{case + 4})" in str(fault.value)


@pytest.mark.parametrize(("mistake", "variable"), [("shared_overrun", "of_warp"), ("dynamic_overrun", "dynamic shared memory")])
def test_shared_memory_overrun(mistake: str, variable: str) -> None:
    """In a process of its own, which AddressSanitizer ends."""
    command = [sys.executable, "-m", "tests.host_cuda.examples", "argmax", mistake]
    done = subprocess.run(command, cwd=build.ROOT, env=os.environ | {"PYTHONPATH": "."}, text=True, capture_output=True)
    if library.SANITIZER:
        assert done.returncode != 0
        assert "heap-buffer-overflow" in done.stderr
        assert "argmax_kernel" in done.stderr
    else:
        assert f"shared memory overrun, a write past the end of {variable}" in done.stdout, done.stderr


def test_a_missing_barrier_shows_in_some_order(examples_library: library.Library) -> None:
    """Which of the warps came first decides; with the barrier (test_argmax_in_any_order) it does not."""
    scores = [[float(i) for i in range(64)]]
    results = set()
    for seed in range(1, 9):
        with examples_library.order(seed):
            results.add(examples.argmax(scores, 1, "no_barrier")[0])
    assert len(results) > 1


def test_an_impossible_launch_is_an_error_of_cuda() -> None:
    for threads in (0, 1025):
        with pytest.raises(RuntimeError, match="cudaError_t 9"):
            examples.meet("everybody", threads)
    assert examples.meet("everybody") == [16] * 32  # and is reported once


def test_another_argument_struct_is_refused(examples_library: library.Library) -> None:
    with pytest.raises(library.Fault, match="the argument struct has 16 bytes, got 24"):
        examples_library.call("meet", examples._Warp())
