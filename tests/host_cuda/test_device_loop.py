"""The device loop, built and run on the CPU: it stops where it should, and refuses, and cleans up, as it says."""

from __future__ import annotations

import ctypes

import pytest

from . import build, device_loops
from .device_loops import run

CALLS = ("cudaGraphCreate", "cudaGraphGetNodes", "cudaGraphNodeGetType", "cudaGraphChildGraphNodeGetGraph",
         "cudaGraphConditionalHandleCreate", "cudaGraphAddKernelNode", "cudaGraphAddNode", "cudaGraphAddChildGraphNode",
         "cudaGraphInstantiate", "cudaGraphLaunch")  # fmt: skip


@pytest.fixture(autouse=True)
def _library() -> None:
    try:
        device_loops.cudart_version()
    except build.NotBuilt as reason:
        pytest.skip(f"no device loop on the host: {reason}")


def counting(lengths: list[int]) -> tuple[list[int], object]:
    """An iteration after whose lengths[i]-th run sequence i has finished, and the list that counts the runs."""
    runs = [0]

    def iteration(flags: ctypes.Array) -> None:
        runs[0] += 1
        for i, length in enumerate(lengths):
            if flags[i] == 0 and runs[0] >= length:
                flags[i] = 1 + i % 3

    return runs, iteration


@pytest.mark.parametrize("lengths", [[1], [5], [1, 3], [3, 1, 2], [2] * 127 + [4], [2] * 128 + [4], [4] + [1] * 300])
def test_runs_until_every_sequence_has_finished(lengths: list[int]) -> None:
    runs, iteration = counting(lengths)
    done = run([0] * len(lengths), 100, iteration)
    assert done.error == ""
    assert runs[0] == done.iterations == max(lengths)
    assert done.nodes == ["reset"] + ["iteration", "condition"] * max(lengths)
    assert (done.alive, done.last_error) == (0, 0)


@pytest.mark.parametrize("finish_reason", [[1], [2, 3], [1] * 200])
def test_nothing_runs_where_all_have_finished(finish_reason: list[int]) -> None:
    runs, iteration = counting([9] * len(finish_reason))
    done = run(finish_reason, 100, iteration)
    assert (runs[0], done.iterations, done.nodes) == (0, 0, ["reset"])


def test_one_that_runs_among_those_that_have_finished() -> None:
    for at in (0, 1, 127, 128, 199):
        runs, iteration = counting([2] * 200)
        flags = [3] * 200
        flags[at] = 0
        assert run(flags, 100, iteration).iterations == runs[0] == 2


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_the_limit_ends_what_never_finishes(limit: int) -> None:
    """Also in a second launch, which counts from 0 again."""
    runs, iteration = counting([10**9])
    done = run([0], limit, iteration, launches=2)
    assert runs[0] == 2 * limit
    assert done.iterations == limit


def test_a_second_launch_starts_from_the_flags() -> None:
    runs, iteration = counting([3])
    done = run([0], 100, iteration, launches=2)
    assert runs[0] == 3
    assert done.iterations == 0  # of the second
    assert done.nodes[-1] == "reset"


def test_all_nodes_of_an_iteration_run_before_the_condition() -> None:
    runs, iteration = counting([3])
    done = run([0], 100, iteration, nodes=["kernel", "copy", "fill", "empty"], nested=True)
    assert done.nodes == ["reset"] + ["iteration"] * 4 + ["condition"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("node", "words"), [("host", "a call of a host function"), ("event", "an event"),
                                             ("wait for an event", "an event"), ("allocation", "an allocation of memory"),
                                             ("release", "an allocation of memory"), ("conditional", "a conditional node"),
                                             ("semaphore", "a node of another kind")])  # fmt: skip
def test_an_iteration_that_cannot_be_repeated_is_refused(node: str, words: str, nested: bool) -> None:
    done = run([0], 100, lambda flags: None, nodes=["kernel", node], nested=nested)
    assert done.error.startswith(f"the captured iteration holds {words}")
    assert done.error.endswith("which a WHILE node cannot repeat.")
    assert (done.nodes, done.alive, done.last_error) == ([], 0, 0)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_named_and_leaves_nothing_behind(call: str) -> None:
    done = run([0], 100, lambda flags: None, nested=True, failing_call=call)
    assert done.error == f"{call} failed: unknown error."
    assert (done.nodes, done.alive, done.last_error) == ([], 0, 0)


def test_obstacles() -> None:
    assert device_loops.obstacle(12040, 12040) == ""
    assert device_loops.obstacle(12090, 13000) == ""
    assert device_loops.obstacle(12090, 0) == "there is no CUDA driver."
    assert device_loops.obstacle(12090, 12020) == "the driver is of CUDA 12.2, and WHILE nodes need CUDA 12.4 or newer."
    assert device_loops.obstacle(12030, 12080) == (
        "the CUDA runtime is of version 12.3, and WHILE nodes need CUDA 12.4 or newer."
    )
    for call in ("cudaRuntimeGetVersion", "cudaDriverGetVersion"):
        assert device_loops.obstacle(13000, 13000, call) == f"{call} failed: unknown error."
