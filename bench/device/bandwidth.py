"""What the memory gives: a copy, counting bytes read and written, and a read."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .runtime import Sampler, interleave


def measure_bandwidth(runtime: Any, size: int, seconds: float = 1.0) -> dict[str, float]:
    """GB/s of a copy and of a read of ``size`` bytes of random data, medians of turns: copy_gb_s, read_gb_s, bytes.

    ``size`` is cut to an eighth of the free memory.
    The read is the fastest at hand: a Triton kernel on a GPU, or a reduction of torch's.
    """
    device = runtime.device
    source = torch.empty(max(min(size, runtime.free_memory() // 8) // 8, 1), dtype=torch.int64, device=device).random_()
    target = torch.empty_like(source)
    runs: dict[str, Callable[[], Any]] = {"copy": lambda: target.copy_(source), "torch": lambda: source.max()}
    if (read := plain_read(source)) is not None:
        runs["triton"] = read
    times = interleave({name: Sampler(runtime, run) for name, run in runs.items()}, seconds)
    count = source.numel() * source.itemsize
    rates = {name: count / times[name]["median_ms"] / 1e6 for name in runs}
    return {"copy_gb_s": 2 * rates.pop("copy"), "read_gb_s": max(rates.values()), "bytes": count}


def plain_read(data: Tensor) -> Callable[[], Any] | None:
    """A run that reads ``data``, contiguous, once and does next to nothing with it; None where there is no kernel for it."""
    if data.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from .read_kernel import reader

    return reader(data)
