"""The eager runtime: call after call, each as large as what is live, the state read between them."""

from __future__ import annotations

import contextlib
import itertools
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..decoder import Decoder, State
    from ..request import Request
    from ..streaming import Stream


class EagerRuntime:
    """Makes calls one by one, on any device; rows that nobody needs are left out."""

    name = "eager"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def active(self) -> AbstractContextManager[Any]:
        """Nothing has to be set up."""
        return contextlib.nullcontext()

    def start(self, decoder: Decoder, request: Request) -> State:
        """A new state."""
        return decoder.new_state(request, self.device)

    def slots(self, decoder: Decoder, needed: int) -> int:
        """How many cache slots a call is shown, of which ``needed`` are in use: no more than those."""
        return needed

    def loop(self, decoder: Decoder, state: State, request: Request, stream: Stream) -> None:
        """Make call after call until every sequence has finished."""
        layout = decoder.layout
        for call in itertools.chain(layout.opening, itertools.cycle(layout.schedule.cycle)):
            progress = state.progress()
            if all(progress.finish_reason):
                return
            layout.order(state, call)
            call = layout.live(progress, request, call)
            decoder.step(state, request, call, max(progress.cache_len) + call.rows + 1)
            decoder.observer.call_ends(call)
            stream.advance(state.length, state.tokens)

    def free_memory(self) -> int:
        """Bytes that are free on the device."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def synchronize(self) -> None:
        """Wait for everything queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
