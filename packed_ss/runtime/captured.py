"""The captured runtime: one iteration as a CUDA graph, replayed in bursts, or repeated on the device as one launch."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..models.attention import SlotCache
from ..models.config import ModelConfig
from ..ops import kernels
from ..state import stops_shape, stops_tensor
from . import device_loop
from .device_loop import DeviceLoop
from .graphs import CudaGraphs, Graph, Reports

if TYPE_CHECKING:
    from ..decoder import Decoder, State
    from ..request import Request
    from ..streaming import Stream

_log = logging.getLogger(__name__)

#: Captured iterations that a decoder keeps; the one used longest ago goes first.
_SESSIONS = 8


class CapturedRuntime:
    """Captures the iteration of each batch size and mode once; replays it without waiting for the device inside an iteration.

    ``loop_kind``: "bursts" queues iterations ``burst`` at a time and reads the flags of the burst before; "device" runs a whole
    generation as one launch, where the driver can, and else falls back to bursts with a logged reason.

    Raises RuntimeError where there is no GPU, ValueError for another device or a dtype that the card lacks.
    """

    name = "captured"

    def __init__(self, device: torch.device, dtype: torch.dtype, loop: str, burst: int) -> None:
        _check_card(device, dtype)
        self.device, self.burst = device, burst
        self.graphs = CudaGraphs(device)
        self.loop_kind = loop
        if loop == "device" and (reason := device_loop.unavailable()):
            _log.warning("loop='device' falls back to bursts: %s", reason)
            self.loop_kind = "bursts"
        self._sessions: OrderedDict[tuple[int, str], Session] = OrderedDict()

    def active(self) -> AbstractContextManager[Any]:
        """Inside, work is queued on this runtime's stream."""
        return self.graphs.active()

    def start(self, decoder: Decoder, request: Request) -> State:
        """The static state of this kind of request, set to its beginning."""
        session = self.session(decoder, request)
        session.state.load(_new_state(decoder, request, torch.device("cpu"), session.stops_shape, stores=False))
        return session.state

    def slots(self, decoder: Decoder, needed: int) -> int:
        """How many cache slots a call is shown: all, so that shapes are fixed."""
        return decoder.cache.capacity

    def loop(self, decoder: Decoder, state: State, request: Request, stream: Stream) -> None:
        """Queue iteration after iteration, looking only at reports of what was queued a burst earlier."""
        layout, capacity = decoder.layout, decoder.cache.capacity
        for call in layout.opening:
            decoder.step(state, request, call, capacity)
        layout.pack(state, layout.schedule.cycle[0], capacity - 1)
        session = self.session(decoder, request)
        if session.generation is not None and stream.streamer is None:
            session.generation.launch()
            return
        reports = session.reports(self.graphs, stream.streamer is not None)
        pending = deque([self.graphs.report(reports)])
        while True:
            for _ in range(self.burst):
                session.graph.replay()
                decoder.observer.replay_ends()
            pending.append(self.graphs.report(reports))
            seen = pending.popleft()()
            stream.advance(seen.length, seen.tokens)
            if seen.finished:
                return

    def session(self, decoder: Decoder, request: Request) -> Session:
        """The static state and the captured iteration for this kind of request, captured at the first one.

        A request with more or longer stops than any before takes the place of its kind's session.
        """
        key = (len(request.prompts), request.verification)
        count, longest = stops_shape(request.stops)
        known = self._sessions.get(key)
        if known is None or count > known.stops_shape[0] or longest > known.stops_shape[1]:
            self._sessions.pop(key, None)  # its memory goes before the next one's is taken
            known = None
            if len(self._sessions) >= _SESSIONS:
                self._sessions.popitem(last=False)
            self._sessions[key] = self._captured(decoder, request, (max(8, _padded(count)), max(4, _padded(longest))))
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _captured(self, decoder: Decoder, request: Request, shape: tuple[int, int]) -> Session:
        """A new session, captured on sequences that have all finished: no kernel changes a state of those."""
        state = _new_state(decoder, request, self.device, shape, stores=True)
        state.finish_reason.fill_(1)
        on_device = self.loop_kind == "device"
        decoder.observer.capture_begins()
        try:
            graph = self.graphs.capture(lambda: _iteration(decoder, state, request), keep=on_device)
        finally:
            decoder.observer.capture_ends()
        return Session(state, graph, _whole_generation(graph, state) if on_device else None, shape)

    def free_memory(self) -> int:
        """Bytes that torch could still allocate."""
        return self.graphs.free_memory()

    def synchronize(self) -> None:
        """Wait for everything queued."""
        self.graphs.synchronize()


@dataclass
class Session:
    """What one kind of request decodes with; the graph's kernels point into the state.

    generation: the whole of it as one launch, None for bursts.  stops_shape: room for stops, (S, M).
    """

    state: State
    graph: Graph
    generation: DeviceLoop | None
    stops_shape: tuple[int, int]

    def __post_init__(self) -> None:
        self._reports: dict[bool, Reports] = {}

    def reports(self, graphs: CudaGraphs, streams: bool) -> Reports:
        """Buffers for reports, with tokens where they are streamed."""
        if streams not in self._reports:
            self._reports[streams] = graphs.reports(self.state, streams)
        return self._reports[streams]


def check_cache_fits(config: ModelConfig, n: int, max_length: int, capacity: int, dtype: torch.dtype, free: int) -> None:
    """Refuse a cache that is larger than the ``free`` bytes, before any of it is allocated."""
    needed = SlotCache.bytes(config, n, capacity, dtype)
    if needed > free:
        raise ValueError(
            f"max_length {max_length} with batch_size {n} needs {needed / 2**30:.2f} GiB for keys and values, but "
            f"{free / 2**30:.2f} GiB of the device's memory is free"
        )


def unavailable() -> str:
    """Why there is no GPU to decode on, in a sentence; empty where there is one."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA."
    if torch.cuda.is_available():
        return ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # no driver, one that is too old, or no device: torch says which
        return f"torch cannot use a GPU: {str(error).strip().splitlines()[0]}"
    return "torch finds no GPU."


def need_gpu() -> None:
    """Raise RuntimeError where there is no GPU."""
    if reason := unavailable():
        raise RuntimeError(f"captured decoding needs an NVIDIA GPU, but {reason}")


def _iteration(decoder: Decoder, state: State, request: Request) -> None:
    """What is captured: each call of the schedule's cycle, and what resolves it and writes the next call's rows."""
    cycle = decoder.layout.schedule.cycle
    for call, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        rows = decoder.layout.buffers(state, call)
        outputs = decoder.forward(rows, decoder.cache.capacity, call, request)
        decoder.resolve(outputs, rows, state, request, call, following)


def _new_state(decoder: Decoder, request: Request, device: torch.device, shape: tuple[int, int], *, stores: bool) -> State:
    """A state whose shapes depend on the request's kind alone."""
    return decoder.new_state(
        request, device, stops=stops_tensor(request.stops, shape), calls=2 * decoder.max_length + 3, stores=stores
    )


def _whole_generation(graph: Any, state: State) -> DeviceLoop | None:
    """The generation as one launch; None, with a logged reason, where CUDA refuses this iteration as the body of a loop."""
    try:
        return DeviceLoop(graph, state.finish_reason, state.advances.shape[1])
    except RuntimeError as error:
        _log.warning("loop='device' falls back to bursts: %s", error)
        return None


def _check_card(device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a device that is no GPU, and a dtype that the card lacks."""
    need_gpu()
    if device.type != "cuda":
        raise ValueError(
            f"the model is on {device}, but captured decoding takes a GPU: load it there, or decode with runtime='eager'"
        )
    properties = torch.cuda.get_device_properties(device)
    half = (torch.float16, torch.bfloat16) if properties.major >= 8 else (torch.float16,)
    if dtype not in (torch.float32, *half):
        accepted = ", ".join(str(one).removeprefix("torch.") for one in (torch.float32, *half))
        card = f"{properties.name} (compute capability {properties.major}.{properties.minor})"
        given = str(dtype).removeprefix("torch.")
        raise ValueError(f"the model's dtype is {given}, but on {card} it must be one of {accepted}")
    if slow := [name for name, kind in kernels("cuda").items() if kind == "torch"]:
        _log.warning("no fused CUDA kernels of %s: plain torch takes their place", ", ".join(slow))


def _padded(size: int) -> int:
    """The next power of two, so that few captures serve many requests."""
    return 1 << (size - 1).bit_length()
