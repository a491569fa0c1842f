"""CUDA graphs as a decoder needs them: warm-up, capture and replay, and looks at the state that wait for an earlier moment.

The captured runtime asks for three things, in stream order: to capture an iteration, to replay it, and to report the state.  Only
waiting for a report blocks the host, and what was queued after it goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..state import State

#: Runs before a capture: kernels are compiled, libraries make their workspaces, and the second run finds all of it.
WARM_UPS = 2


class CaptureFailed(RuntimeError):
    """An iteration could not be captured; the message names the operator.  Nothing of the attempt is left."""


class Graph(Protocol):
    """One captured iteration."""

    def replay(self) -> None:
        """Queues it."""


class Report:
    """finish_reason [N], length [N] and, where ``streams``, tokens [N, T] of a state, copied to pinned memory at one moment."""

    def __init__(self, state: State, streams: bool, pinned: bool) -> None:
        self._pairs = [
            (getattr(state, name), torch.empty_like(getattr(state, name), device="cpu", pin_memory=pinned))
            for name in ("finish_reason", "length", *(("tokens",) if streams else ()))
        ]
        self.finish_reason, self.length, *tokens = (copy for _, copy in self._pairs)
        self.tokens: Tensor | None = tokens[0] if streams else None

    def copy(self) -> None:
        """Queues the copies."""
        for source, copy in self._pairs:
            copy.copy_(source, non_blocking=True)

    @property
    def finished(self) -> bool:
        """Whether no sequence was running at that moment."""
        return all(self.finish_reason.tolist())


class Reports:
    """Three reports of one state, used in turn, so that two may be under way while one is read."""

    def __init__(self, state: State, streams: bool, pinned: bool) -> None:
        self._turn: Iterator[Report] = itertools.cycle([Report(state, streams, pinned) for _ in range(3)])

    def next(self) -> Report:
        return next(self._turn)


class CudaGraphs:
    """Graphs on one device, all on one stream of its own and in one memory pool: no two of them ever run at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool: Any = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, work is queued on this runtime's stream, after what the caller's stream held, which goes on after it."""
        caller = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(caller)
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            try:
                yield
            finally:
                caller.wait_stream(self.stream)

    def capture(self, run: Callable[[], None], keep: bool) -> torch.cuda.CUDAGraph:
        """``run``, warmed up and captured; with ``keep`` its cudaGraph_t can be asked for.  To be called inside `active`.

        Raises `CaptureFailed`.
        """
        for _ in range(WARM_UPS):
            run()
        torch.cuda.synchronize(self.device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph(keep_graph=True) if keep else torch.cuda.CUDAGraph()
        watch = LastOperator()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                with watch:
                    run()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # it says again that the capture is void
                    graph.capture_end()
                raise
            graph.capture_end()
            if keep:
                graph.instantiate()
        except Exception as error:
            self._abandon(graph)
            raise CaptureFailed(f"the iteration could not be captured, at {watch.name}: {error}") from error
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Frees what a failed capture holds; allocations go to the common pool again, later captures to a new one."""
        end = getattr(torch._C, "_cuda_endAllocateToPool", None)
        if end is not None and self._pool is not None:
            with contextlib.suppress(RuntimeError):  # capture_end did so already, if it came that far
                end(self.device.index or 0, self._pool)
        with contextlib.suppress(RuntimeError):
            graph.reset()
        self._pool = None
        torch.cuda.synchronize(self.device)

    def reports(self, state: State, streams: bool) -> Reports:
        """Buffers for `report`."""
        return Reports(state, streams, pinned=self.device.type == "cuda")

    def report(self, reports: Reports) -> Callable[[], Report]:
        """Queues a report; what it returns waits for that report, and for nothing queued later."""
        report = reports.next()
        report.copy()
        copied = torch.cuda.Event()
        copied.record()

        def wait() -> Report:
            copied.synchronize()
            return report

        return wait

    def free_memory(self) -> int:
        """Bytes that torch could still allocate."""
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + cached

    def synchronize(self) -> None:
        """Waits for everything queued."""
        torch.cuda.synchronize(self.device)


class LastOperator(TorchDispatchMode):
    """Knows the name of the operator that was called last."""

    name = "its first operator"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.name = func._schema.name.replace("::", ".")
        return func(*args, **(kwargs or {}))
