"""What holds around a generation: one at a time, and torch's settings as the decoder needs them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class Exclusive:
    """A lock that another thread waits for and that its own thread is refused, for that one would wait for itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            raise RuntimeError("this decoder is in the middle of a generation: its streamer or observer needs another decoder")
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = None
        self._lock.release()


@contextlib.contextmanager
def plain_torch() -> Iterator[None]:
    """Inside, arithmetic is the model's own whatever surrounds the call: autocast, default dtype and device, inference mode."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        dtype = torch.get_default_dtype()
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        yield
