"""The decoder: one loop for every schedule, verification mode and batch.

state --pack--> rows --model--> logits --resolve--> state        until every sequence has finished
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from . import ops  # noqa: F401 - defines torch.ops.packed_ss
from .block_steps import BlockSteps
from .layouts.block import BlockCall
from .layouts.ordered import OrderedCall
from .layouts.prefill import prefill_passes
from .models.attention import CachedAttention, SlotCache
from .models.config import ModelConfig
from .models.transformer import Transformer
from .ordered_state import OrderedProgress, OrderedState
from .ordered_steps import Order, OrderedSteps
from .request import Request, check_request, prompt_lists, whole_number
from .rows import Rows
from .schedules import Branched
from .state import FINISH_REASONS, DecodeState, Progress

Call = BlockCall | OrderedCall
State = DecodeState | OrderedState


class Streamer(Protocol):
    """What a streamer must have: transformers' `TextStreamer` and its kin do."""

    def put(self, value: Tensor) -> None:
        """Receives the prompt first, then each call's new tokens: int64, 1-D, on the CPU."""

    def end(self) -> None:
        """Called once, after the last token."""


@dataclass(frozen=True)
class GenerateOutput:
    """What a generation produced.

    tokens: the new tokens of each sequence, 1-D int64 on the CPU, a stop included.  finish_reason: "stop", "length" or
    "error" each.  nfe: model calls, the first included.  advances: the tokens that each call appended.  seconds: wall time
    of the decoder, first call included, device synchronised.
    """

    tokens: list[Tensor]
    finish_reason: list[str]
    nfe: list[int]
    advances: list[list[int]]
    seconds: float


class Decoder:
    """Lossless decoding of a model that both verifies and drafts.

    ``schedule``: "autoregressive", "linear", "packed", "quadratic" or a `packed_ss.Branched`.  ``max_length``: tokens of prompt
    and output together.  ``batch_size``: the most prompts of one `generate`.

    Block-layout models (Nemotron-Labs-Diffusion and its like): ``block_size`` is B, rows of a proposal region, W = B - 1 drafts,
    by default the checkpoint's.  ``two_call_start``: prompt and first proposal in two calls, as in the paper's temperature-1
    runs, instead of one.

    Ordered models (SetDLM): ``window`` is W, the positions from the leftmost open one on that a call looks at.  ``order`` in
    which they are verified: "left_to_right", or, at temperature 0, "confidence" (App. E.6) or a function from a window (a tuple
    of ascending output positions, from 1) to a permutation of it.  ``schedule`` also "native", SetDLM's own decoder, which is
    no lossless one.

    Raises ValueError for values outside the accepted ranges and for an argument of the other layout; warns of a window beyond
    the checkpoint's horizon.
    """

    #: Whether greedy calls take the head and its argmax in one operator instead of going by logits.
    _fused_head = False

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
    ) -> None:
        for name, value in (("max_length", max_length), ("batch_size", batch_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, but it must be a whole number of at least 1")
        self.steps = _steps(model.config, schedule, block_size, two_call_start, window, order)
        self.model, self.max_length, self.batch_size = model, max_length, batch_size
        self.schedule = self.steps.schedule
        self.device, self.dtype = model.head.weight.device, model.head.weight.dtype
        # A call's rows may lie past max_length; one more slot is the spare.
        self.cache = self._new_cache(max_length + self.steps.most_rows + 1)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Any,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | Sequence[int] = 0,
        verification: str = "auto",
        eos_token_id: int | Sequence[int] | None = None,
        stop_sequences: Sequence[Sequence[int]] = (),
        streamer: Streamer | None = None,
    ) -> GenerateOutput:
        """Continues each prompt by up to ``max_new_tokens`` tokens, exactly as the autoregressive model would.

        ``input_ids``: token ids, 1-D tensor or list, or several of them (lengths may differ).  ``temperature`` below 1e-5
        is greedy; else ``verification`` is "rejection" (the default: equal to AR in law), "coupled" (equal to AR at the
        same seed) or, to compare with, "match" (coupled's text; drafts stand where two independent draws agree).
        ``top_k`` 0 and ``top_p`` 1 filter nothing.  ``seed``: one per prompt, or s for s + i.
        ``eos_token_id``: None for the checkpoint's, one id, several, or [] for none.  ``stop_sequences``: token id lists,
        matched in the output only.  ``streamer``: transformers' interface, one prompt only.

        Raises ValueError, before anything is computed, for arguments outside these ranges.
        """
        request = check_request(
            self.model.config,
            batch_size=self.batch_size,
            max_length=self.max_length,
            input_ids=input_ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            verification=verification,
            eos_token_id=eos_token_id,
            stop_sequences=stop_sequences,
        )
        self.steps.check(request)
        if streamer is not None and len(request.prompts) > 1:
            raise ValueError(f"a streamer was given with {len(request.prompts)} prompts, but it takes one")
        self._synchronize()
        begin = time.perf_counter()
        state = self._start(request)
        stream = _Stream(streamer, request.prompts[0])
        if request.max_new_tokens:
            self._first_call(state, request)
            stream.advance(state)
            self._loop(state, request, stream)
        stream.end()
        self._synchronize()
        return _output(state, request, time.perf_counter() - begin)

    def step(self, state: State, request: Request, call: Call, slots: int) -> None:
        """One model call: pack, model, resolve.

        Reads nothing back from the device: ``call`` fixes the shape and ``slots`` bounds the cache that rows may see or
        write.  On a CPU the loop passes what is live, on a GPU always the same.
        """
        rows = self.steps.pack(state, call, slots - 1)
        self._resolve(self._forward(rows, slots, call, request), state, request, call)

    def _loop(self, state: State, request: Request, stream: _Stream) -> None:
        """Makes call after call until every sequence has finished."""
        for call in itertools.chain(self.steps.opening, itertools.cycle(self.schedule.cycle)):
            progress = state.progress()
            if all(progress.finish_reason):
                return
            self.steps.order(state, call)
            call = self._live(progress, request, call)
            self.step(state, request, call, self._slots(max(progress.cache_len) + call.rows + 1))
            stream.advance(state)

    def _live(self, progress: Progress | OrderedProgress, request: Request, call: Call) -> Call:
        """The call without the rows that nobody needs now."""
        return self.steps.live(progress, request, call)

    def _slots(self, needed: int) -> int:
        """How many cache slots a call is shown, of which ``needed`` are in use: no more than those."""
        return needed

    def _forward(self, rows: Rows, slots: int, call: Call, request: Request) -> tuple[Tensor, ...]:
        """What resolve takes of the call's last rows: their logits [N, head_rows, V], or their argmax only (`_fused_head`)."""
        model = self.model
        layers = self.cache.layers(rows.ids.shape[0], slots)
        attend = CachedAttention(rows, layers, model.config, model.frequencies)
        if self._fused_head and request.verification == "greedy":
            x = model.hidden(rows.ids, attend, call.head_rows, call.proposal_rows)
            return torch.ops.packed_ss.linear_argmax(x, model.head.weight)
        return (model(rows.ids, attend, call.head_rows, call.proposal_rows),)

    def _first_call(self, state: State, request: Request) -> None:
        """The prompt, with the first proposal block where the steps have one, in one counted call."""
        masks, first = self.steps.masks, self.steps.first
        longest = max(len(prompt) for prompt in request.prompts)
        slots = self._slots(longest + masks + 1)
        for rows, is_last in prefill_passes(request.prompts, masks, self.model.config.mask_token_id, slots - 1, self.device):
            outputs = self._forward(rows, slots, first if is_last else self.steps.prompt_only, request)
        self.steps.prefilled(state)
        self._resolve(outputs, state, request, first)

    def _resolve(
        self, outputs: tuple[Tensor, ...], state: State, request: Request, call: Call, following: Call | None = None
    ) -> None:
        """Advances the state by a call's outputs, and writes the rows of the ``following`` call where its shape is known."""
        self.steps.resolve(outputs, state, request, call, following, self.cache)

    def _start(self, request: Request) -> State:
        return self._new_state(request, self.device, stops=request.stops)

    def _new_state(
        self, request: Request, device: torch.device, *, stops: list[list[int]], calls: int | None = None, stores: bool = True
    ) -> State:
        """The state before the first call; ``stores``: with room for log Q where the mode needs it."""
        stored = (self.model.config.vocab_size, torch.promote_types(self.dtype, torch.float32))
        return self.steps.new_state(
            request,
            device,
            capacity=self.max_length,
            stops=stops,
            calls=calls,
            log_q=stored if stores and request.verification == "rejection" else None,
        )

    def _new_cache(self, capacity: int) -> SlotCache:
        return SlotCache(self.model.config, self.batch_size, capacity, self.dtype, self.device)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _steps(
    config: ModelConfig,
    schedule: str | Branched,
    block_size: int | None,
    two_call_start: bool,
    window: int | None,
    order: Order | None,
) -> BlockSteps | OrderedSteps:
    """The steps of the model's layout.  Raises ValueError for an argument of the other one."""
    kinds = {"block": "of the block layout, such as Nemotron-Labs-Diffusion", "ordered": "an ordered one, such as SetDLM"}
    given = {
        "block": {"window": window, "order": order},
        "ordered": {"block_size": block_size, "two_call_start": two_call_start or None},
    }
    for name, value in given[config.layout].items():
        if value is not None:
            instead = "block_size" if config.layout == "block" else "window and order"
            raise ValueError(f"{name} is {value!r}, but the model is {kinds[config.layout]}, which takes {instead}")
    if config.layout == "block":
        return BlockSteps(config, schedule, block_size, two_call_start)
    return OrderedSteps(config, schedule, window, "left_to_right" if order is None else order)


def generate(
    model: Transformer,
    input_ids: Any,
    max_new_tokens: int = 512,
    *,
    schedule: str | Branched = "packed",
    block_size: int | None = None,
    window: int | None = None,
    order: Order | None = None,
    decoder: type[Decoder] = Decoder,
    **options: Any,
) -> GenerateOutput:
    """One `Decoder.generate`, by a ``decoder`` made for it and just large enough; ``options`` are that method's."""
    prompts = prompt_lists(input_ids, model.config.vocab_size)
    new = whole_number("max_new_tokens", max_new_tokens, least=0)
    made = decoder(
        model, schedule, block_size, max_length=max(map(len, prompts)) + new, batch_size=len(prompts), window=window, order=order
    )
    return made.generate(prompts, new, **options)


class _Stream:
    """Hands each call's new tokens to a streamer, the prompt first."""

    def __init__(self, streamer: Streamer | None, prompt: list[int]) -> None:
        self.streamer, self.seen = streamer, len(prompt)
        if streamer is not None:
            streamer.put(torch.tensor(prompt))

    def advance(self, state: State) -> None:
        if self.streamer is None:
            return
        length = int(state.length[0])
        if length > self.seen:
            self.streamer.put(state.tokens[0, self.seen : length].cpu().long())
            self.seen = length

    def end(self) -> None:
        if self.streamer is not None:
            self.streamer.end()


def _output(state: State, request: Request, seconds: float) -> GenerateOutput:
    lengths, nfe = state.length.tolist(), state.nfe.tolist()
    tokens, advances = state.tokens.cpu().long(), state.advances.tolist()
    reasons = [FINISH_REASONS[code] for code in state.finish_reason.tolist()]
    return GenerateOutput(
        tokens=[tokens[i, len(prompt) : lengths[i]].clone() for i, prompt in enumerate(request.prompts)],
        finish_reason=reasons if request.max_new_tokens else ["length"] * len(reasons),
        nfe=nfe,
        advances=[calls[:count] for calls, count in zip(advances, nfe, strict=True)],
        seconds=seconds,
    )
