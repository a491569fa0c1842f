"""The block layout as a decoder uses it: its schedule's calls, their rows, and what advances its state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..models.attention import SlotCache
from ..models.config import ModelConfig
from ..request import Request
from ..rows import BLOCK_ROWS, Rows
from ..schedules import Branched, block_schedule
from ..state import BlockState, Progress
from .block import BlockCall, tables


class BlockLayout:
    """What a decoder does to decode a block-layout model under ``schedule`` at block size B.

    Raises ValueError for a block size that is not a whole number of at least 2 and for what `block_schedule` refuses.
    """

    #: Whether positions are decoded in another order than left to right, and advances ask for probabilities of tokens.
    in_any_order = wants_probability = False
    #: Whether the head may be fused with its argmax: no id is excluded.
    takes_ids = True

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
        """Accept every request that is well-formed."""

    def new_state(self, request: Request, device: torch.device, **shape: Any) -> BlockState:
        """The state before the first call; further arguments are those of `BlockState.start`."""
        return BlockState.start(
            request.prompts, max_new_tokens=request.max_new_tokens, block_size=self.block_size, device=device, **shape
        )

    def prefilled(self, state: BlockState) -> None:
        """Note that the prompt is in the cache, but for its last token, which the first call counts as its own."""
        state.cache_len.copy_(state.length - 1)

    def order(self, state: BlockState, call: BlockCall) -> None:
        """Decode positions from left to right."""

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

    def buffers(self, state: BlockState, call: BlockCall) -> Rows:
        """The input buffers of a call's shape, kept with the state; their cache_len is the state's."""
        if call not in state.rows:
            mask = tables(call.verifier_rows, call.block_size, call.cuts, state.length.device).tail_mask
            state.rows[call] = Rows.empty(state.length.shape[0], call.rows, state.cache_len, mask)
        return state.rows[call]

    def pack(self, state: BlockState, call: BlockCall, spare_slot: int) -> Rows:
        """The rows of a call, written from the state."""
        rows = self.buffers(state, call)
        torch.ops.packed_ss.pack_block(
            state.operands(), self.config.mask_token_id, call.verifier_rows, call.block_size, call.cuts,
            rows.operands(len(BLOCK_ROWS)),
        )  # fmt: skip
        return rows

    def usable(self, logits: Tensor) -> Tensor:
        """The logits, no id excluded."""
        return logits

    def advance(
        self,
        ids: Tensor,
        accepted: Tensor | None,
        probability: Tensor | None,
        state: BlockState,
        call: BlockCall,
        following: BlockCall | None,
        cache: SlotCache,
    ) -> None:
        """Advance the state by a call's tokens; write the rows of the ``following`` call where its shape is known."""
        next_shape: tuple[Any, ...] = (0, 0, (), [])
        if following is not None:
            rows = self.buffers(state, following).operands(len(BLOCK_ROWS))
            next_shape = (self.config.mask_token_id, following.verifier_rows, following.cuts, rows)
        torch.ops.packed_ss.advance_block(
            ids, accepted, state.operands(), call.verifier_rows, call.block_size, call.cuts, call.shift, *next_shape
        )

    def draft_column(self, call: BlockCall) -> int | None:
        """The first column of a call's rows that hold the draft; None where further rows hold some of it."""
        return 1 if call.verifier_rows and len(call.cuts) < 2 else None
