"""How a decoder runs: call after call, or as captured iterations.

A runtime has a ``name``; `active`, the context that work is queued in; `start`, the state before the first call; `slots`, how
many cache slots a call is shown; `loop`, calls until every sequence has finished; `free_memory`; `synchronize`.
"""

from __future__ import annotations

from typing import Any

import torch

from .eager import EagerRuntime

RUNTIMES = ("auto", "eager", "captured")


def open_runtime(runtime: str, device: torch.device, dtype: torch.dtype, *, loop: str, burst: int, order: Any) -> Any:
    """The runtime of a decoder on ``device``, one of `RUNTIMES`.

    Raises ValueError for an order that cannot be captured, and what `captured.CapturedRuntime` raises.
    """
    if runtime == "captured" and callable(order):
        raise ValueError(
            f"order is {order!r}, but a captured iteration takes left_to_right or confidence; runtime='eager' takes functions"
        )
    if runtime == "eager" or (runtime == "auto" and (device.type != "cuda" or callable(order))):
        return EagerRuntime(device)
    from .captured import CapturedRuntime

    return CapturedRuntime(device, dtype, loop, burst)
