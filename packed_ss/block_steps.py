"""The steps of the block layout: its state, its calls' rows, and what resolves their logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .layouts.block import BlockCall, tables
from .models.attention import SlotCache
from .models.config import ModelConfig
from .request import Request
from .rows import Rows
from .schedules import Branched, block_schedule
from .state import DecodeState, Progress

#: For a resolve that leaves the next call's rows to `pack_block`: no MASK id, no shape, no buffers.
_NO_ROWS = (0, 0, (), None, None, None)


class BlockSteps:
    """What a decoder does to decode a block-layout model under ``schedule`` at block size B.

    Raises ValueError for a block size that is not a whole number of at least 2 and for what `block_schedule` refuses.
    """

    def __init__(self, config: ModelConfig, schedule: str | Branched, block_size: int | None, two_call_start: bool) -> None:
        b = config.block_size if block_size is None else block_size
        if b is None:
            raise ValueError("block_size is not given and the checkpoint names none")
        if isinstance(b, bool) or not isinstance(b, int) or b < 2:
            raise ValueError(f"block_size is {b!r}, but it must be a whole number of at least 2")
        self.config, self.block_size = config, b
        self.schedule = block_schedule(schedule, b)
        proposes = self.schedule.proposes
        self.masks = b if proposes and not two_call_start else 0
        #: A pass of the prompt with nothing to resolve; the call that ends in the prompt; the calls between it and the cycle.
        self.prompt_only = BlockCall(0, b, ())
        self.first = BlockCall(1, b, (0,), shift=1) if self.masks else BlockCall(1, b, ())
        self.opening = (BlockCall(0, b, (0,)),) if proposes and two_call_start else ()
        #: Slots that a call's rows may take past max_length.
        self.most_rows = max(max(call.rows for call in self.schedule.cycle), 1 + b)
        #: What distinguishes this decoder from others of the layout, for records.
        self.settings = {"block_size": b}

    def check(self, request: Request) -> None:
        """Every request that is well-formed can be served."""

    def new_state(
        self,
        request: Request,
        device: torch.device,
        *,
        capacity: int,
        stops: Sequence[Sequence[int]],
        calls: int | None = None,
        log_q: tuple[int, torch.dtype] | None = None,
    ) -> DecodeState:
        """The state before the first call; arguments as those of `DecodeState.start`."""
        return DecodeState.start(
            request.prompts,
            max_new_tokens=request.max_new_tokens,
            block_size=self.block_size,
            capacity=capacity,
            stops=stops,
            seeds=request.seeds,
            device=device,
            calls=calls,
            log_q=log_q,
        )

    def prefilled(self, state: DecodeState) -> None:
        """The prompt's keys and values are in the cache, but for its last token's, which the first call counts as its own."""
        state.cache_len.copy_(state.length - 1)

    def order(self, state: DecodeState, call: BlockCall) -> None:
        """Positions are decoded from left to right."""

    def live(self, progress: Progress, request: Request, call: BlockCall) -> BlockCall:
        """The call without verifier rows that hold no draft, or none that the limit leaves room for.

        Rejection tests the draft of the limit's own position too: its token must not depend on the batch's other rows.
        """
        spared = 0 if request.verification == "rejection" else 1
        useful = [
            0 if finished else min(drafts, limit - length - spared)
            for finished, length, _, drafts, limit in zip(*progress, strict=True)
        ]
        v = min(call.verifier_rows, max(useful) + 1)
        return BlockCall(v, call.block_size, tuple(cut for cut in call.cuts if cut < max(v, 1)))

    def buffers(self, state: DecodeState, call: BlockCall) -> Rows:
        """The input buffers of a call's shape, kept with the state; their cache_len is the state's."""
        if call not in state.rows:
            mask = tables(call.verifier_rows, call.block_size, call.cuts, state.length.device).tail_mask
            state.rows[call] = Rows.empty(state.length.shape[0], call.rows, state.cache_len, mask)
        return state.rows[call]

    def pack(self, state: DecodeState, call: BlockCall, spare_slot: int) -> Rows:
        """The rows of a call, written from the state."""
        rows = self.buffers(state, call)
        torch.ops.packed_ss.pack_block(
            state.tokens,
            state.length,
            state.cache_len,
            state.draft,
            state.draft_len,
            self.config.mask_token_id,
            call.verifier_rows,
            call.block_size,
            call.cuts,
            rows.ids,
            rows.positions,
            rows.slots,
        )
        return rows

    def resolve(
        self,
        outputs: tuple[Tensor, ...],
        state: DecodeState,
        request: Request,
        call: BlockCall,
        following: BlockCall | None,
        cache: SlotCache,
    ) -> None:
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

    def _next_rows(self, state: DecodeState, call: BlockCall | None) -> tuple[Any, ...]:
        """MASK id, shape and buffers of the rows that a resolve is to write; nothing for those that `pack_block` writes."""
        if call is None:
            return _NO_ROWS
        rows = self.buffers(state, call)
        return self.config.mask_token_id, call.verifier_rows, call.cuts, rows.ids, rows.positions, rows.slots
