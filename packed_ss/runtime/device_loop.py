"""A whole generation as one launch: a CUDA graph that repeats a captured iteration until every sequence has finished.

The graph has a WHILE node (CUDA 12.4), whose condition a small kernel evaluates on the device; csrc/cuda/device_loop.h
describes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops import native


def unavailable() -> str:
    """Why there can be no device loop here, in one sentence; empty where there can."""
    module = native.module()
    if module is None:
        return f"packed_ss._C is not loaded: {native.reason()}"
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        return f"torch {torch.__version__} keeps captured graphs to itself: CUDAGraph.raw_cuda_graph came with torch 2.8."
    return module.device_loop_obstacle()


class DeviceLoop:
    """One launch that replays ``graph`` while ``finish_reason`` has a 0, at most ``limit`` times.

    ``graph`` is a captured iteration, made with ``keep_graph=True``; it may hold kernels, copies and fills, but no host
    functions, events or allocations.  ``finish_reason`` [N] int32 is on the GPU of the capture, where the iteration writes it.
    Both are kept, and must live while a launch runs.

    Raises ValueError for another ``finish_reason`` or ``limit``, and RuntimeError, one sentence, where `unavailable` says why or
    CUDA refuses the graph; nothing is left of the attempt.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, finish_reason: Tensor, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 2**31:
            raise ValueError(f"limit is {limit!r}, but it must be a whole number in 1 ... 2^31 - 1")
        if finish_reason.dtype != torch.int32 or finish_reason.dim() != 1 or not finish_reason.is_contiguous():
            raise ValueError(
                f"finish_reason is {finish_reason.dtype} {list(finish_reason.shape)}, but it must be contiguous int32 [N]"
            )
        if finish_reason.device.type != "cuda":
            raise ValueError(f"finish_reason is on {finish_reason.device}, but it must be on the GPU of the captured graph")
        module = native.module()
        if (reason := unavailable()) or module is None:
            raise RuntimeError(f"there can be no device loop: {reason}")
        #: [1] int32 on the device: how many iterations the last launch has run.
        self.iterations = torch.zeros(1, dtype=torch.int32, device=finish_reason.device)
        self._graph, self._finish_reason = graph, finish_reason
        with torch.cuda.device(finish_reason.device):
            self._loop = module.DeviceLoop(
                graph.raw_cuda_graph(), finish_reason.data_ptr(), len(finish_reason), self.iterations.data_ptr(), limit
            )

    def launch(self) -> None:
        """Queues a generation on the current stream of the graph's device.  Raises RuntimeError."""
        self._loop.launch(torch.cuda.current_stream(self._finish_reason.device).cuda_stream)
