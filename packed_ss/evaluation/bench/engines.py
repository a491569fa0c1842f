"""Our decoders as contenders, with the time that their model takes.

On a CPU two looks at the clock around each forward cost nothing beside it, so every response has its model time.  On a GPU the
forward is part of a captured graph and runs while the host does other work: events around it are waited for after every
replay, which takes the overlap away.  There model time comes from responses of their own, marked ``timed``, and wall time from
the others.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from ... import cuda
from ...decoder import Decoder, GenerateOutput
from ...models.transformer import Transformer
from ..compare import decoder_for
from .measured import Measured
from .plan import Contender


class HostTimed(Decoder):
    """A decoder on the CPU that notes the seconds inside the model's forward, the first call's and all."""

    model_seconds = first_model_seconds = 0.0

    @functools.wraps(Decoder.generate)
    def generate(self, *arguments: Any, **options: Any) -> GenerateOutput:
        self.model_seconds = self.first_model_seconds = 0.0
        return super().generate(*arguments, **options)

    def _first_call(self, *arguments: Any) -> None:
        super()._first_call(*arguments)
        self.first_model_seconds = self.model_seconds

    def _forward(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        begin = time.perf_counter()
        outputs = super()._forward(*arguments)
        self.model_seconds += time.perf_counter() - begin
        return outputs


class EventTimed(cuda.Decoder):
    """A decoder on a GPU that does the same by events, waiting for every replay: its wall time is not the decoder's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._spans: list[Callable[[], float]] = []
        self._inside: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._first = 0

    @functools.wraps(cuda.Decoder.generate)
    def generate(self, *arguments: Any, **options: Any) -> GenerateOutput:
        self._spans = []
        out = super().generate(*arguments, **options)
        seconds = [span() for span in self._spans]
        self.first_model_seconds = sum(seconds[: self._first])
        # The last replays found every sequence finished: calls that do not count.
        self.model_seconds = sum(seconds[: self._first + out.nfe[0] - 1])
        return out

    def _first_call(self, *arguments: Any) -> None:
        super()._first_call(*arguments)
        self._first = len(self._spans)

    def _forward(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        captured = torch.cuda.is_current_stream_capturing()
        begin, end = (torch.cuda.Event(enable_timing=True, external=captured) for _ in range(2))
        begin.record()
        outputs = super()._forward(*arguments)
        end.record()
        if captured:
            self._inside.append((begin, end))
        else:
            self._spans.append(lambda: _elapsed(begin, end))
        return outputs

    def _captured(self, request: Any) -> Any:
        spans, self._inside = self._spans, []
        self._spans = []  # of warm-ups, which are no part of the generation
        session = super()._captured(request)
        self._spans = spans
        session.graph = _Waited(session.graph, self._inside, self)
        return session


class _Waited:
    """A graph whose replay is waited for, so that the events inside it can be read before the next one."""

    def __init__(self, graph: Any, inside: list[tuple[torch.cuda.Event, torch.cuda.Event]], decoder: EventTimed) -> None:
        self._graph, self._inside, self._decoder = graph, inside, decoder

    def replay(self) -> None:
        self._graph.replay()
        torch.cuda.synchronize()
        for begin, end in self._inside:
            seconds = _elapsed(begin, end)
            self._decoder._spans.append(lambda seconds=seconds: seconds)


def _elapsed(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end)


class Ours:
    """An `Engine` around our decoders.  ``contender``'s block size is known by now; ``max_length`` is of prompt and output."""

    def __init__(self, model: Transformer, contender: Contender, max_length: int) -> None:
        on_gpu = model.head.weight.is_cuda
        options = {"max_length": max_length}
        if model.config.layout == "block":
            options["block_size"] = contender.block_size
        else:
            options |= {"window": contender.window, "order": contender.order}
        self._options: dict[str, Any] = {} if contender.verification == "auto" else {"verification": contender.verification}
        self._plain = (decoder_for(model) if on_gpu else HostTimed)(model, contender.schedule, **options)
        self._timed = EventTimed(model, contender.schedule, **options) if on_gpu else self._plain
        self.separate = on_gpu
        self.rows: int | None = max(call.rows for call in self._plain.schedule.cycle)

    def generate(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        return self._measured(self._plain, prompt, cap, temperature, seed, with_model=not self.separate)

    def generate_timed(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        return self._measured(self._timed, prompt, cap, temperature, seed, with_model=True)

    def _measured(
        self, decoder: Any, prompt: list[int], cap: int, temperature: float, seed: int, *, with_model: bool
    ) -> Measured:
        out = decoder.generate(prompt, max_new_tokens=cap, temperature=temperature, seed=seed, **self._options)
        return Measured(
            tokens=out.tokens[0].tolist(),
            nfe=out.nfe[0],
            advances=out.advances[0],
            seconds=out.seconds,
            finish_reason=out.finish_reason[0],
            model_seconds=decoder.model_seconds if with_model else None,
            first_model_seconds=decoder.first_model_seconds if with_model else None,
        )
