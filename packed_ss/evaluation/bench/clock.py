"""The clock of calls alone: captured on a GPU, plain on a CPU, and always in turns with what it is compared with."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...runtime.eager import EagerRuntime
from ...runtime.graphs import WARM_UPS, CudaGraphs

Run = Callable[[], Any]

#: GPU cycles that a measurement waits beforehand, so that the host has queued all of it when it begins.
_HEAD_START = 400_000


def open_runtime(device: torch.device) -> CudaGraphs | EagerRuntime:
    """Return what calls on a device are timed with."""
    return CudaGraphs(device) if device.type == "cuda" else EagerRuntime(device)


class Sampler:
    """Milliseconds of ``run``, measured anew by each call: the mean of ``inner`` runs in a row after ``before``, unmeasured.

    On a GPU the run is captured once and replayed between two events (``captured``; else it is called, and what the host takes to
    queue it may count).  Making one raises what ``run`` or its capture raises.
    """

    def __init__(
        self, runtime: CudaGraphs | EagerRuntime, run: Run, *, before: Run | None = None, inner: int = 1, captured: bool = True
    ) -> None:
        self.runtime, self.inner = runtime, inner
        self._before, self._run = before or (lambda: None), run
        self._sample = self._on_host
        if isinstance(runtime, EagerRuntime):
            return
        self._sample = self._between_events
        with runtime.active():
            if captured:
                self._run = _captured(run, runtime)
            for _ in range(WARM_UPS):
                self._before()
                self._run()
        runtime.synchronize()

    def __call__(self) -> float:
        with self.runtime.active():
            self._before()
            return self._sample() / self.inner

    def lasting(self, milliseconds: float) -> Sampler:
        """The same with as many runs in a row as make up a sample of this length, 50 at most."""
        self.inner = 1
        self.inner = max(1, min(50, round(milliseconds / max(min(self(), self()), 1e-3))))
        return self

    def _between_events(self) -> float:
        if self.runtime.device.type == "cuda":
            torch.cuda._sleep(_HEAD_START)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(self.inner):
            self._run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def _on_host(self) -> float:
        begin = time.perf_counter()
        for _ in range(self.inner):
            self._run()
        return 1e3 * (time.perf_counter() - begin)


def _captured(run: Run, runtime: CudaGraphs) -> Run:
    """Capture ``run`` in a graph with a memory pool of its own.

    Not `CudaGraphs.capture`: compiled functions do not run as such under the dispatch mode in which that captures.
    """
    for _ in range(WARM_UPS):
        run()
    torch.cuda.synchronize(runtime.device)
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        run()
        graph.capture_end()
    except BaseException:
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        with contextlib.suppress(AttributeError, RuntimeError):  # torch goes on filling the pool of a capture that failed
            torch._C._cuda_endAllocateToPool(runtime.device.index or 0, pool)
        raise
    return graph.replay


def interleave(
    samplers: Mapping[Any, Callable[[], float]], seconds: float, *, least: int = 5, most: int = 200
) -> dict[Any, dict[str, float]]:
    """Statistics of samples taken in turns, for about ``seconds``: `summary` by name.

    Each round starts with another candidate; one round beforehand does not count.
    """
    names = list(samplers)
    for name in names:
        samplers[name]()
    times: dict[Any, list[float]] = {name: [] for name in names}
    stop = time.perf_counter() + seconds
    for round_ in range(most):
        if round_ >= least and time.perf_counter() >= stop:
            break
        for i in range(len(names)):
            name = names[(i + round_) % len(names)]
            times[name].append(samplers[name]())
    return {name: summary(found) for name, found in times.items()}


def summary(times: list[float]) -> dict[str, float]:
    """Median, quartiles and number of samples, in milliseconds."""
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return {"median_ms": statistics.median(times), "p25_ms": low, "p75_ms": high, "samples": len(times)}


def l2_bytes(device: torch.device) -> int:
    """Size of the cache in front of a device's memory; a guess of 32 MiB for a CPU."""
    if device.type != "cuda":
        return 2**25
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 2**26


def copies_beyond_cache(device: torch.device, size: int, *, least: int = 2, most: int = 64) -> int:
    """Return how many operands of ``size`` bytes to use in turn, so that none is in the cache when its turn comes again."""
    return max(least, min(most, -(-4 * l2_bytes(device) // max(size, 1))))
