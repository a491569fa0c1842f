"""What the memory gives: a copy, counting bytes read and written, and a read."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .clock import Sampler, interleave


def measure_bandwidth(runtime: Any, size: int, seconds: float = 1.0) -> dict[str, float]:
    """Return GB/s of a copy and of a read of ``size`` bytes of random data, medians of turns: copy_gb_s, read_gb_s, bytes.

    ``size`` is cut to an eighth of the free memory.
    """
    device = runtime.device
    source = torch.empty(max(min(size, runtime.free_memory() // 8) // 8, 1), dtype=torch.int64, device=device).random_()
    target = torch.empty_like(source)
    runs: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source), "read": plain_read(source)}
    times = interleave({name: Sampler(runtime, run) for name, run in runs.items()}, seconds)
    count = source.numel() * source.itemsize
    rates = {name: count / found["median_ms"] / 1e6 for name, found in times.items()}
    return {"copy_gb_s": 2 * rates["copy"], "read_gb_s": rates["read"], "bytes": count}


def plain_read(data: Tensor) -> Callable[[], Any]:
    """Return a run that reads ``data``, contiguous, once and does little with it: a Triton kernel on a GPU, else torch."""
    if data.is_cuda and importlib.util.find_spec("triton") is not None:
        from .read_kernel import reader

        return reader(data)
    words = data.view(-1).view(torch.uint8)
    return words[: max(words.numel() // 8 * 8, 8)].view(torch.int64).max
