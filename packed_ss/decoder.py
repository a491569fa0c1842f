"""The decoder: one loop for every schedule, verification mode and batch.

    state --pack--> rows --model--> logits --resolve--> state        until every sequence has finished

Which rows a call has is the layout's (`packed_ss.layouts`), what its logits do to the state the resolver's (`packed_ss.resolve`),
and how calls are run, one by one or as captured iterations, the runtime's (`packed_ss.runtime`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import ops  # noqa: F401 - defines torch.ops.packed_ss
from .exclusive import Exclusive, plain_torch
from .layouts import layout_for
from .layouts.block import BlockCall
from .layouts.ordered import OrderedCall
from .layouts.ordered_layout import Order
from .layouts.prefill import prefill_passes
from .models.attention import CachedAttention, SlotCache
from .models.transformer import Transformer
from .observer import Observer
from .ordered_state import OrderedState
from .request import Request, check_request, prompt_lists, whole_number
from .resolve import Resolver
from .rows import Rows
from .runtime import RUNTIMES, open_runtime
from .runtime.captured import check_cache_fits
from .schedules import Branched
from .state import FINISH_REASONS, BlockState, sampling_settings, stops_tensor
from .streaming import Stream, Streamer

Call = BlockCall | OrderedCall
State = BlockState | OrderedState


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

    ``runtime``: "eager" makes call after call; "captured" replays one iteration as a CUDA graph and never waits for the device
    inside it; "auto" is captured on a GPU (eager where ``order`` is a function) and eager elsewhere.  Of the captured one:
    ``loop``, "bursts" of ``burst`` iterations or "device", a whole generation as one launch.  ``head``: "fused" computes a greedy
    call's argmax with the head and never writes logits, "logits" writes them, as ordered models always do; "auto" is fused on a
    GPU.  One decoder keeps to one.  ``observer`` watches it.

    One `generate` runs at a time: another thread waits for its turn.

    Raises ValueError for values outside the accepted ranges, for an argument of the other layout and for a cache that does not
    fit; RuntimeError where a captured runtime is asked for and there is no GPU; warns of a window beyond the checkpoint's
    horizon.
    """

    #: What ``runtime`` may be besides "auto", which is the first.
    runtimes: tuple[str, ...] = RUNTIMES

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
        runtime: str = "auto",
        loop: str = "bursts",
        head: str = "auto",
        burst: int = 1,
        observer: Observer | None = None,
    ) -> None:
        for name, size in (("max_length", max_length), ("batch_size", batch_size), ("burst", burst)):
            whole_number(name, size, least=1)
        for name, value, accepted in (("head", head, ("auto", "fused", "logits")), ("loop", loop, ("bursts", "device"))):
            if value not in accepted:
                raise ValueError(f"{name} is {value!r}, but it must be one of {', '.join(accepted)}")
        if runtime not in ("auto", *self.runtimes):
            raise ValueError(f"runtime is {runtime!r}, but it must be one of auto, {', '.join(self.runtimes)}")
        self.layout: Any = layout_for(model.config, schedule, block_size, two_call_start, window, order)
        self.model, self.max_length, self.batch_size = model, max_length, batch_size
        self.schedule = self.layout.schedule
        self.device, self.dtype = model.head.weight.device, model.head.weight.dtype
        chosen = self.runtimes[0] if runtime == "auto" else runtime
        self.runtime = open_runtime(chosen, self.device, self.dtype, loop=loop, burst=burst, order=order)
        self.fuses_head = self.layout.takes_ids and (head == "fused" or (head == "auto" and self.device.type == "cuda"))
        # A call's rows may lie past max_length; one more slot is the spare.
        capacity = max_length + self.layout.most_rows + 1
        check_cache_fits(model.config, batch_size, max_length, capacity, self.dtype, self.runtime.free_memory())
        self.cache = SlotCache(model.config, batch_size, capacity, self.dtype, self.device)
        self.resolver = Resolver(self.layout)
        self.observer = observer or Observer()
        self._turn = Exclusive()

    def generate(
        self,
        input_ids: Any,
        max_new_tokens: int = 512,
        temperature: float | Sequence[float] = 0.0,
        top_k: int | Sequence[int] = 0,
        top_p: float | Sequence[float] = 1.0,
        seed: int | Sequence[int] = 0,
        verification: str = "auto",
        eos_token_id: int | Sequence[int] | None = None,
        stop_sequences: Sequence[Sequence[int]] = (),
        streamer: Streamer | None = None,
    ) -> GenerateOutput:
        """Continue each prompt by up to ``max_new_tokens`` tokens, exactly as the autoregressive model would.

        ``input_ids``: token ids, 1-D tensor or list, or several of them (lengths may differ).  ``temperature``, ``top_k`` and
        ``top_p``: one value, or one for each prompt.  A temperature below 1e-5 is greedy; else ``verification`` is "rejection"
        (the default: equal to AR in law), "coupled" (equal to AR at the same seed) or, to compare with, "match" (coupled's text;
        drafts stand where two independent draws agree).  ``top_k`` 0 and ``top_p`` 1 filter nothing.  ``seed``: one per prompt,
        or s for s + i.  ``eos_token_id``: None for the checkpoint's, one id, several, or [] for none.  ``stop_sequences``: token
        id lists, matched in the output only.  ``streamer``: transformers' interface, one prompt only.

        Raises ValueError, before anything is computed, for arguments outside these ranges, and RuntimeError for a call from the
        streamer or observer of a generation of this decoder.
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
        self.layout.check(request)
        if streamer is not None and len(request.prompts) > 1:
            raise ValueError(f"a streamer was given with {len(request.prompts)} prompts, but it takes one")
        with self._turn, plain_torch(), self.runtime.active():
            return self._generate(request, streamer)

    def _generate(self, request: Request, streamer: Streamer | None) -> GenerateOutput:
        self.runtime.synchronize()
        begin = time.perf_counter()
        state = self.runtime.start(self, request)
        self.observer.generation_begins(state, request)
        stream = Stream(streamer, request.prompts[0])
        if request.max_new_tokens:
            self.first_call(state, request)
            self.observer.first_call_ends()
            stream.advance(state.length, state.tokens)
            self.observer.loop_begins()
            try:
                self.runtime.loop(self, state, request, stream)
            finally:
                self.observer.loop_ends()
        stream.end()
        self.runtime.synchronize()
        return _output(state, request, time.perf_counter() - begin)

    def first_call(self, state: State, request: Request) -> None:
        """The prompt, with the first proposal block where the layout has one, in one counted call."""
        layout, longest = self.layout, max(len(prompt) for prompt in request.prompts)
        slots = self.runtime.slots(self, longest + layout.masks + 1)
        mask = self.model.config.mask_token_id
        for rows, is_last in prefill_passes(request.prompts, layout.masks, mask, slots - 1, self.device):
            outputs = self.forward(rows, slots, layout.first if is_last else layout.prompt_only, request)
        layout.prefilled(state)
        self.resolve(outputs, rows, state, request, layout.first)

    def step(self, state: State, request: Request, call: Call, slots: int) -> None:
        """One model call: pack, model, resolve.

        Reads nothing back from the device: ``call`` fixes the shape and ``slots`` bounds the cache that rows may see or
        write.  The eager runtime passes what is live, the captured one always the same.
        """
        rows = self.layout.pack(state, call, slots - 1)
        self.resolve(self.forward(rows, slots, call, request), rows, state, request, call)

    def forward(self, rows: Rows, slots: int, call: Call, request: Request) -> Tensor:
        """Run the model: logits [N, head rows, V] of a call's last rows, or, with a fused head, the argmax of each, int32."""
        self.observer.forward_begins(call)
        model = self.model
        layers = self.cache.layers(rows.ids.shape[0], slots)
        attend = CachedAttention(rows, layers, model.config, model.frequencies)
        if self.fuses_head and request.verification == "greedy":
            x = model.hidden(rows.ids, attend, call.head_rows, call.proposal_rows)
            outputs = torch.ops.packed_ss.linear_argmax(x, model.head.weight)
        else:
            outputs = model(rows.ids, attend, call.head_rows, call.proposal_rows)
        self.observer.forward_ends(call)
        return outputs

    def resolve(
        self, outputs: Tensor, rows: Rows, state: State, request: Request, call: Call, following: Call | None = None
    ) -> None:
        """Advance the state by a call's outputs, and write the rows of the ``following`` call where its shape is known."""
        self.observer.resolve_begins(call, outputs, state)
        self.resolver(outputs, rows, state, request, call, following, self.cache)
        self.observer.resolve_ends(call, outputs, state)

    def new_state(
        self,
        request: Request,
        device: torch.device,
        *,
        stops: Tensor | None = None,
        calls: int | None = None,
        stores: bool = True,
    ) -> State:
        """The state before the first call; ``stores``: with room for log Q where the mode needs it."""
        stored = (self.model.config.vocab_size, torch.promote_types(self.dtype, torch.float32))
        return self.layout.new_state(
            request,
            device,
            capacity=self.max_length,
            sampling=sampling_settings(request.seeds, request.temperature, request.top_k, request.top_p),
            stops=stops_tensor(request.stops) if stops is None else stops,
            calls=calls,
            log_q=stored if stores and request.verification == "rejection" else None,
        )


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
    length = max(map(len, prompts)) + new
    made = decoder(model, schedule, block_size, max_length=length, batch_size=len(prompts), window=window, order=order)
    return made.generate(prompts, new, **options)


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
