"""Our decoders as candidates, with the time that their model takes.

On a CPU two looks at the clock around each forward cost nothing beside it, so every response has its model time.  On a GPU the
forward is part of a captured graph and runs while the host does other work: events around it are waited for after every
replay, which takes the overlap away.  There model time comes from responses of their own, marked ``timed``, and wall time from
the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...decoder import Decoder
from ...models.transformer import Transformer
from ...observer import Observer
from .measured import Measured
from .plan import Candidate


class ForwardTimes(Observer):
    """Note the seconds of each forward of a generation, by the host's clock."""

    def __init__(self) -> None:
        self.spans: list[Callable[[], float]] = []
        self.first = 0

    def generation_begins(self, state: Any, request: Any) -> None:
        self.spans, self.first = [], 0

    def first_call_ends(self) -> None:
        self.first = len(self.spans)

    def forward_begins(self, call: Any) -> None:
        self._begin = time.perf_counter()

    def forward_ends(self, call: Any) -> None:
        self.spans.append(partial(float, time.perf_counter() - self._begin))

    def seconds(self, nfe: int) -> tuple[float, float]:
        """Return the seconds of all ``nfe`` calls and of the first; replays after the last one that counts do not count."""
        seconds = [span() for span in self.spans[: self.first + nfe - 1]]
        return sum(seconds), sum(seconds[: self.first])


class ForwardEvents(ForwardTimes):
    """Do the same by CUDA events, inside captured graphs too, for one kind of request.

    Every replay is waited for, so that its events can be read before the next one: the decoder's wall time is not its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._inside: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._captures = False

    def capture_begins(self) -> None:
        self._inside, self._captures = [], True

    def capture_ends(self) -> None:
        self._captures = False

    def forward_begins(self, call: Any) -> None:
        captured = torch.cuda.is_current_stream_capturing()
        self._events = tuple(torch.cuda.Event(enable_timing=True, external=captured) for _ in range(2))
        self._events[0].record()

    def forward_ends(self, call: Any) -> None:
        begin, end = self._events
        end.record()
        if torch.cuda.is_current_stream_capturing():
            self._inside.append((begin, end))
        elif not self._captures:  # else a warm-up
            self.spans.append(partial(_elapsed, begin, end))

    def replay_ends(self) -> None:
        torch.cuda.synchronize()
        self.spans += [partial(float, _elapsed(*events)) for events in self._inside]  # read before the next replay


def _elapsed(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end)


class Ours:
    """An `Engine` around our decoders.  ``candidate``'s block size is known by now; ``max_length`` is of prompt and output."""

    def __init__(self, model: Transformer, candidate: Candidate, max_length: int) -> None:
        self.separate = model.head.weight.is_cuda
        options: dict[str, Any] = {"max_length": max_length}
        if model.config.layout == "block":
            options["block_size"] = candidate.block_size
        else:
            options |= {"window": candidate.window, "order": candidate.order}
        self._options: dict[str, Any] = {} if candidate.verification == "auto" else {"verification": candidate.verification}
        self._clock = ForwardEvents() if self.separate else ForwardTimes()
        self._timed = Decoder(model, candidate.schedule, **options, observer=self._clock)
        self._plain = Decoder(model, candidate.schedule, **options) if self.separate else self._timed
        self.rows: int | None = max(call.rows for call in self._plain.schedule.cycle)

    def generate(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        return self._measured(self._plain, prompt, cap, temperature, seed)

    def generate_timed(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        return self._measured(self._timed, prompt, cap, temperature, seed)

    def _measured(self, decoder: Decoder, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        out = decoder.generate(prompt, max_new_tokens=cap, temperature=temperature, seed=seed, **self._options)
        inside, first = self._clock.seconds(out.nfe[0]) if decoder is self._timed else (None, None)
        return Measured(
            tokens=out.tokens[0].tolist(),
            nfe=out.nfe[0],
            advances=out.advances[0],
            seconds=out.seconds,
            finish_reason=out.finish_reason[0],
            model_seconds=inside,
            first_model_seconds=first,
        )
