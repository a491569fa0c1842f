"""The decoder: one loop for every schedule, verification mode and batch.

    state --pack--> rows --model--> logits --resolve--> state        until every sequence has finished
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from . import ops  # noqa: F401 - defines torch.ops.packed_ss
from .layouts.block import BlockCall, tables
from .layouts.prefill import prefill_passes
from .models.attention import CachedAttention, SlotCache
from .models.transformer import Transformer
from .request import Request, check_request, prompt_lists, whole_number
from .rows import Rows
from .schedules import Branched, block_schedule
from .state import FINISH_REASONS, DecodeState, Progress

#: For a resolve that leaves the next call's rows to `pack_block`: no MASK id, no shape, no buffers.
_NO_ROWS = (0, 0, (), None, None, None)


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
    """Lossless decoding of a block-layout model (Nemotron-Labs-Diffusion and its like).

    ``schedule``: "autoregressive", "linear", "packed", "quadratic" or a `packed_ss.Branched`.  ``block_size``: B, rows of a
    proposal region, W = B - 1 drafts; default the checkpoint's.  ``max_length``: tokens of prompt and output together.
    ``batch_size``: the most prompts of one `generate`.  ``two_call_start``: prompt and first proposal in two calls, as in
    the paper's temperature-1 runs, instead of one.  Raises ValueError for values outside the accepted ranges.
    """

    #: Whether greedy calls take the head and its argmax in one operator instead of going by logits.
    _fused_head = False

    def __init__(self, model: Transformer, schedule: str | Branched = "packed", block_size: int | None = None,
                 max_length: int = 4096, batch_size: int = 1, two_call_start: bool = False) -> None:
        if model.config.layout != "block":
            raise ValueError("the model is an ordered one, such as SetDLM, but this decoder is for models of the block layout")
        b = model.config.block_size if block_size is None else block_size
        if b is None:
            raise ValueError("block_size is not given and the checkpoint names none")
        for name, value, least in (("block_size", b, 2), ("max_length", max_length, 1), ("batch_size", batch_size, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}, but it must be a whole number of at least {least}")
        self.model, self.block_size, self.max_length, self.batch_size = model, b, max_length, batch_size
        self.schedule = block_schedule(schedule, b)
        self.two_call_start = two_call_start
        self.device, self.dtype = model.head.weight.device, model.head.weight.dtype
        # A call's rows may lie past max_length by a region; one more slot is the spare.
        widest = max(max(call.rows for call in self.schedule.cycle), 1 + b)
        self.cache = self._new_cache(max_length + widest + 1)

    @torch.no_grad()
    def generate(self, input_ids: Any, max_new_tokens: int = 512, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, seed: int | Sequence[int] = 0, verification: str = "auto",
                 eos_token_id: int | Sequence[int] | None = None, stop_sequences: Sequence[Sequence[int]] = (),
                 streamer: Streamer | None = None) -> GenerateOutput:
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
            self.model.config, batch_size=self.batch_size, max_length=self.max_length, input_ids=input_ids,
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
            verification=verification, eos_token_id=eos_token_id, stop_sequences=stop_sequences)
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

    def step(self, state: DecodeState, request: Request, call: BlockCall, slots: int) -> None:
        """One model call: pack, model, resolve.

        Reads nothing back from the device: ``call`` fixes the shape and ``slots`` bounds the cache that rows may see or
        write.  On a CPU the loop passes what is live, on a GPU always the same.
        """
        rows = self._pack(state, call)
        self._resolve(self._forward(rows, slots, call.rows, request), state, request, call)

    def _pack(self, state: DecodeState, call: BlockCall) -> Rows:
        """The rows of a call, written from the state."""
        rows = self._buffers(state, call)
        torch.ops.packed_ss.pack_block(
            state.tokens, state.length, state.cache_len, state.draft, state.draft_len, self.model.config.mask_token_id,
            call.verifier_rows, call.block_size, call.cuts, rows.ids, rows.positions, rows.slots)
        return rows

    def _loop(self, state: DecodeState, request: Request, stream: _Stream) -> None:
        """Makes call after call until every sequence has finished."""
        for call in self._calls():
            progress = state.progress()
            if all(progress.finish_reason):
                return
            call = self._live(progress, request, call)
            self.step(state, request, call, self._slots(max(progress.cache_len) + call.rows + 1))
            stream.advance(state)

    def _slots(self, needed: int) -> int:
        """How many cache slots a call is shown, of which ``needed`` are in use: no more than those."""
        return needed

    def _calls(self) -> Iterator[BlockCall]:
        """The calls after the first one: with ``two_call_start`` one that only proposes, then the schedule's cycle."""
        if self.two_call_start and self.schedule.proposes:
            yield BlockCall(0, self.block_size, (0,))
        yield from itertools.cycle(self.schedule.cycle)

    def _live(self, progress: Progress, request: Request, call: BlockCall) -> BlockCall:
        """The call without verifier rows that hold no draft, or none that the limit leaves room for.

        Rejection tests the draft of the limit's own position too: its token must not depend on the batch's other rows.
        """
        spared = 0 if request.verification == "rejection" else 1
        useful = [0 if finished else min(drafts, limit - length - spared)
                  for finished, length, _, drafts, limit in zip(*progress, strict=True)]
        v = min(call.verifier_rows, max(useful) + 1)
        return BlockCall(v, call.block_size, tuple(cut for cut in call.cuts if cut < max(v, 1)))

    def _forward(self, rows: Rows, slots: int, head_rows: int, request: Request) -> tuple[Tensor, ...]:
        """What resolve takes of the last rows: their logits [N, head_rows, V], or their argmax only (`_fused_head`)."""
        model = self.model
        layers = self.cache.layers(rows.ids.shape[0], slots)
        attend = CachedAttention(rows, layers, model.config, model.frequencies)
        if self._fused_head and request.verification == "greedy":
            return torch.ops.packed_ss.linear_argmax(model.hidden(rows.ids, attend, head_rows), model.head.weight)
        return (model(rows.ids, attend, head_rows),)

    def _first_call(self, state: DecodeState, request: Request) -> None:
        """Prompt and first proposal block in one counted call; or, with ``two_call_start``, the prompt alone."""
        b = self.block_size
        masks = b if self.schedule.proposes and not self.two_call_start else 0
        longest = max(len(prompt) for prompt in request.prompts)
        slots = self._slots(longest + masks + 1)
        for rows, head_rows in prefill_passes(request.prompts, masks, self.model.config.mask_token_id, slots - 1, self.device):
            outputs = self._forward(rows, slots, head_rows, request)
        state.cache_len.copy_(state.length - 1)
        self._resolve(outputs, state, request, BlockCall(1, b, (0,) if masks else (), shift=1 if masks else 0))

    def _resolve(self, outputs: tuple[Tensor, ...], state: DecodeState, request: Request, call: BlockCall,
                 following: BlockCall | None = None) -> None:
        """Advances the state by a call's outputs, and writes the rows of the ``following`` call where its shape is known."""
        shape = (call.verifier_rows, call.block_size, call.cuts, call.shift, *self._next_rows(state, following))
        sampling = (state.seed, request.temperature, request.top_k, request.top_p)
        if request.verification == "greedy":
            resolve = torch.ops.packed_ss.resolve_greedy if len(outputs) == 1 else torch.ops.packed_ss.resolve_argmax
            resolve(*outputs, *state.operands(), *shape)
        elif request.verification == "coupled":
            torch.ops.packed_ss.resolve_coupled(*outputs, *state.operands(), *shape, *sampling)
        elif request.verification == "match":
            torch.ops.packed_ss.resolve_match(*outputs, *state.operands(), *shape, *sampling)
        else:
            torch.ops.packed_ss.resolve_rejection(*outputs, *state.operands(), *shape, *sampling, state.draft_log_q)

    def _next_rows(self, state: DecodeState, call: BlockCall | None) -> tuple:
        """MASK id, shape and buffers of the rows that a resolve is to write; nothing for those that `pack_block` writes."""
        if call is None:
            return _NO_ROWS
        rows = self._buffers(state, call)
        return self.model.config.mask_token_id, call.verifier_rows, call.cuts, rows.ids, rows.positions, rows.slots

    def _start(self, request: Request) -> DecodeState:
        return self._new_state(request, self.device, stops=request.stops)

    def _new_state(self, request: Request, device: torch.device, *, stops: list[list[int]], calls: int | None = None,
                   stores: bool = True) -> DecodeState:
        """The state before the first call; ``stores``: with room for log Q where the mode needs it."""
        stored = (self.model.config.vocab_size, torch.promote_types(self.dtype, torch.float32))
        return DecodeState.start(
            request.prompts, max_new_tokens=request.max_new_tokens, block_size=self.block_size, capacity=self.max_length,
            stops=stops, seeds=request.seeds, device=device, calls=calls,
            log_q=stored if stores and request.verification == "rejection" else None)

    def _new_cache(self, capacity: int) -> SlotCache:
        return SlotCache(self.model.config, self.batch_size, capacity, self.dtype, self.device)

    def _buffers(self, state: DecodeState, call: BlockCall) -> Rows:
        """The input buffers of a call's shape, kept with the state; their cache_len is the state's."""
        if call not in state.rows:
            mask = tables(call.verifier_rows, call.block_size, call.cuts, self.device).tail_mask
            state.rows[call] = Rows.empty(state.length.shape[0], call.rows, state.cache_len, mask)
        return state.rows[call]

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def generate(model: Transformer, input_ids: Any, max_new_tokens: int = 512, *, schedule: str | Branched = "packed",
             block_size: int | None = None, decoder: type[Decoder] = Decoder, **options: Any) -> GenerateOutput:
    """One `Decoder.generate`, by a ``decoder`` made for it and just large enough; ``options`` are that method's."""
    prompts = prompt_lists(input_ids, model.config.vocab_size)
    new = whole_number("max_new_tokens", max_new_tokens, least=0)
    made = decoder(model, schedule, block_size, max_length=max(map(len, prompts)) + new, batch_size=len(prompts))
    return made.generate(prompts, new, **options)


class _Stream:
    """Hands each call's new tokens to a streamer, the prompt first."""

    def __init__(self, streamer: Streamer | None, prompt: list[int]) -> None:
        self.streamer, self.seen = streamer, len(prompt)
        if streamer is not None:
            streamer.put(torch.tensor(prompt))

    def advance(self, state: DecodeState) -> None:
        if self.streamer is None:
            return
        length = int(state.length[0])
        if length > self.seen:
            self.streamer.put(state.tokens[0, self.seen: length].cpu().long())
            self.seen = length

    def end(self) -> None:
        if self.streamer is not None:
            self.streamer.end()


def _output(state: DecodeState, request: Request, seconds: float) -> GenerateOutput:
    lengths, nfe = state.length.tolist(), state.nfe.tolist()
    tokens, advances = state.tokens.cpu().long(), state.advances.tolist()
    reasons = [FINISH_REASONS[code] for code in state.finish_reason.tolist()]
    return GenerateOutput(
        tokens=[tokens[i, len(prompt): lengths[i]].clone() for i, prompt in enumerate(request.prompts)],
        finish_reason=reasons if request.max_new_tokens else ["length"] * len(reasons),
        nfe=nfe, advances=[calls[:count] for calls, count in zip(advances, nfe, strict=True)], seconds=seconds)
