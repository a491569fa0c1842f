"""packed_ss on NVIDIA GPUs: the names of `packed_ss`, with fused kernels and the iteration captured as a CUDA graph.

    import packed_ss.cuda as packed_ss

Importing it needs no GPU; `is_available` tells, and `load_model` and `Decoder` say in one sentence what is missing.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import OrderedDict, deque
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from . import __version__, decoder
from .capture import CudaRuntime, Graph, Reports
from .decoder import GenerateOutput, State
from .device_loop import DeviceLoop
from .device_loop import obstacle as device_loop_obstacle
from .models import glue, loading
from .models.attention import SlotCache
from .models.tokenizer import load_tokenizer
from .models.transformer import Transformer
from .ops import kernels
from .ordered_steps import Order
from .request import Request
from .schedules import Branched

__all__ = [
    "Branched",
    "Decoder",
    "GenerateOutput",
    "__version__",
    "generate",
    "info",
    "is_available",
    "load_model",
    "load_tokenizer",
]

_log = logging.getLogger(__name__)

#: Captured iterations that a decoder keeps; the one used longest ago goes first.
GRAPHS = 8
#: No token has this id, so a stop made of it never matches.
_NEVER = 2**31 - 1


def obstacle() -> str:
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


def is_available() -> bool:
    """Whether this process has a GPU that torch can use."""
    return not obstacle()


def info() -> dict[str, Any]:
    """What decoding on the GPU would use here, and what is missing for it.

    available, reason; torch, cuda, triton, flashinfer: versions or None; kernels: by operator "native", "triton" or
    "torch"; device_loop: empty, or why ``loop="device"`` would fall back.  With a GPU also device, capability, memory_gib.
    """
    reason = obstacle()
    facts: dict[str, Any] = {
        "available": not reason,
        "reason": reason,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "flashinfer": _version("flashinfer"),
        "glue": glue.obstacle() or "FlashInfer",
        "kernels": kernels("cuda"),
        "device_loop": device_loop_obstacle(),
    }
    if not reason:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / 2**30, 1),
        }
    return facts


def load_model(
    path_or_id: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> Transformer:
    """`packed_ss.load_model` onto a GPU.  Raises RuntimeError where there is none, ValueError for another device."""
    _need_gpu()
    if device is not None and torch.device(device).type != "cuda":
        raise ValueError(f"device is {str(device)!r}, but packed_ss.cuda loads onto a GPU; packed_ss.load_model takes any device")
    return loading.load_model(path_or_id, device=device or "cuda", dtype=dtype, revision=revision, adapter=adapter)


class Decoder(decoder.Decoder):
    """`packed_ss.Decoder` as captured CUDA graphs: same arguments, same text, no wait for the device inside an iteration.

    ``loop``: "bursts" queues iterations ``burst`` at a time and reads the flags of the burst before; "device" runs a whole
    generation as one launch, where the driver can, and else falls back to bursts with a logged reason.  ``head``: "fused"
    computes a greedy call's argmax with the head and never writes logits, "logits" writes them, as ordered models always do;
    one decoder keeps to one.

    The first `generate` of a batch size, mode and sampling setting warms up and captures; later ones replay.

    Raises RuntimeError where there is no GPU, ValueError for a model on another device, of a dtype that the card lacks, or
    too large a cache, and for values outside the accepted ranges; `generate` also `packed_ss.capture.CaptureFailed`.
    """

    def __init__(
        self,
        model: Transformer,
        schedule: str | Branched = "packed",
        block_size: int | None = None,
        max_length: int = 4096,
        batch_size: int = 1,
        two_call_start: bool = False,
        *,
        window: int | None = None,
        order: Order | None = None,
        loop: str = "bursts",
        head: str = "fused",
        burst: int = 1,
    ) -> None:
        for name, value, accepted in (("loop", loop, ("bursts", "device")), ("head", head, ("fused", "logits"))):
            if value not in accepted:
                raise ValueError(f"{name} is {value!r}, but it must be one of {', '.join(accepted)}")
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise ValueError(f"burst is {burst!r}, but it must be a whole number of at least 1")
        if callable(order):
            raise ValueError(
                f"order is {order!r}, but a captured iteration takes left_to_right or confidence; packed_ss.Decoder "
                "takes functions"
            )
        self._runtime = self._open(model.head.weight.device, model.head.weight.dtype)
        super().__init__(model, schedule, block_size, max_length, batch_size, two_call_start, window=window, order=order)
        # Ordered models exclude ids, and ask for probabilities: both need the logits.
        self._fused_head, self.burst = head == "fused" and model.config.layout == "block", burst
        self.loop = self._possible(loop)
        self._sessions: OrderedDict[tuple, _Session] = OrderedDict()

    @functools.wraps(decoder.Decoder.generate)
    def generate(self, *arguments: Any, **options: Any) -> GenerateOutput:
        with self._runtime.active():
            return super().generate(*arguments, **options)

    def _loop(self, state: State, request: Request, stream: decoder._Stream) -> None:
        """Queues iteration after iteration, looking only at reports of what was queued a burst earlier."""
        for call in self.steps.opening:
            self.step(state, request, call, self.cache.capacity)
        self.steps.pack(state, self.schedule.cycle[0], self.cache.capacity - 1)
        session = self._session(request)
        if session.whole is not None and stream.streamer is None:
            session.whole.launch()
            return
        reports = session.reports(self._runtime, stream.streamer is not None)
        pending = deque([self._runtime.report(reports)])
        while True:
            for _ in range(self.burst):
                session.graph.replay()
            pending.append(self._runtime.report(reports))
            seen = pending.popleft()()
            stream.advance(seen)
            if seen.finished:
                return

    def _start(self, request: Request) -> State:
        state = self._session(request).state
        state.load(self._static_state(request, torch.device("cpu"), stores=False))
        return state

    def _session(self, request: Request) -> _Session:
        """The static state and the captured iteration for this kind of request."""
        sampling = () if request.verification == "greedy" else (request.temperature, request.top_k, request.top_p)
        key = (len(request.prompts), request.verification, *sampling, *_stops_shape(request.stops))
        if key not in self._sessions:
            self._sessions[key] = self._captured(request)
            if len(self._sessions) > GRAPHS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _captured(self, request: Request) -> _Session:
        """A new session, captured on sequences that have all finished: no kernel changes a state of those."""
        state = self._static_state(request, self.device, stores=True)
        state.finish_reason.fill_(1)
        graph = self._runtime.capture(lambda: self._iteration(state, request), keep=self.loop == "device")
        return _Session(state, graph, self._whole(graph, state) if self.loop == "device" else None)

    def _whole(self, graph: Any, state: State) -> DeviceLoop | None:
        """The generation as one launch; None, with a logged reason, where CUDA refuses this iteration as the body of a loop."""
        try:
            return DeviceLoop(graph, state.finish_reason, state.advances.shape[1])
        except RuntimeError as error:
            _log.warning("loop='device' falls back to bursts: %s", error)
            return None

    def _static_state(self, request: Request, device: torch.device, *, stores: bool) -> State:
        """A state whose shapes depend on the request's kind alone."""
        count, longest = _stops_shape(request.stops)
        unused = [[_NEVER] * longest] * (count - len(request.stops))
        return self._new_state(request, device, stops=request.stops + unused, calls=2 * self.max_length + 3, stores=stores)

    def _iteration(self, state: State, request: Request) -> None:
        """What is captured: each call of the schedule's cycle and its resolve, which writes the next call's rows."""
        cycle = self.schedule.cycle
        for call, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            outputs = self._forward(self.steps.buffers(state, call), self.cache.capacity, call, request)
            self._resolve(outputs, state, request, call, following)

    def _slots(self, needed: int) -> int:
        return self.cache.capacity

    def _new_cache(self, capacity: int) -> SlotCache:
        """Refuses a cache that does not fit, before any of it is allocated."""
        c = self.model.config
        needed = 2 * c.num_layers * self.batch_size * capacity * c.num_kv_heads * c.head_dim * self.dtype.itemsize
        free = self._runtime.free_memory()
        if needed > free:
            raise ValueError(
                f"max_length {self.max_length} with batch_size {self.batch_size} needs {needed / 2**30:.2f} GiB for "
                f"keys and values, but {free / 2**30:.2f} GiB of the GPU's memory is free"
            )
        return super()._new_cache(capacity)

    def _open(self, device: torch.device, dtype: torch.dtype) -> CudaRuntime:
        """The runtime of the model's GPU.  Raises as the class says."""
        _need_gpu()
        if device.type != "cuda":
            raise ValueError(
                f"the model is on {device}, but packed_ss.cuda decodes on a GPU: load it with "
                "packed_ss.cuda.load_model, or decode with packed_ss.Decoder"
            )
        properties = torch.cuda.get_device_properties(device)
        half = (torch.float16, torch.bfloat16) if properties.major >= 8 else (torch.float16,)
        if dtype not in (torch.float32, *half):
            accepted = ", ".join(str(one).removeprefix("torch.") for one in (torch.float32, *half))
            card = f"{properties.name} (compute capability {properties.major}.{properties.minor})"
            given = str(dtype).removeprefix("torch.")
            raise ValueError(f"the model's dtype is {given}, but on {card} it must be one of {accepted}")
        # No other kernel than plain torch's is made of resolve_match: it is there to compare with.
        if slow := [name for name, kind in kernels("cuda").items() if kind == "torch" and name != "resolve_match"]:
            _log.warning("no fused CUDA kernels of %s: plain torch takes their place", ", ".join(slow))
        return CudaRuntime(device)

    def _possible(self, loop: str) -> str:
        """The loop that runs: "device" where it is asked for and can be."""
        if loop == "device" and (reason := device_loop_obstacle()):
            _log.warning("loop='device' falls back to bursts: %s", reason)
            return "bursts"
        return loop

    def _synchronize(self) -> None:
        self._runtime.synchronize()


def generate(model: Transformer, input_ids: Any, max_new_tokens: int = 512, **options: Any) -> GenerateOutput:
    """`packed_ss.generate` on the GPU.  It warms up and captures anew each time: keep a `Decoder` to decode more than once."""
    return decoder.generate(model, input_ids, max_new_tokens, decoder=Decoder, **options)


@dataclass
class _Session:
    """What one kind of request decodes with; the graph's kernels point into the state."""

    state: State
    graph: Graph
    whole: DeviceLoop | None

    def __post_init__(self) -> None:
        self._reports: dict[bool, Reports] = {}

    def reports(self, runtime: CudaRuntime, streams: bool) -> Reports:
        if streams not in self._reports:
            self._reports[streams] = runtime.reports(self.state, streams)
        return self._reports[streams]


def _stops_shape(stops: list[list[int]]) -> tuple[int, int]:
    """[S, M] of the stops' buffer: powers of two, one row at least to spare, so that few graphs serve many requests."""
    longest = max(map(len, stops), default=1)
    return max(4, 1 << len(stops).bit_length()), 1 << (longest - 1).bit_length()


def _need_gpu() -> None:
    if reason := obstacle():
        raise RuntimeError(f"packed_ss.cuda needs an NVIDIA GPU, but {reason}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
