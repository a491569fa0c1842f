"""From a call's logits to the next state: row operators make tokens of logits, an advance operator makes state of tokens.

    greedy      argmax_rows (or the fused head)     advance     argmax_rows of the retained rows
    coupled     draw_rows, stream TARGET            advance     draw_rows of the retained rows, stream TARGET
    match       draw_rows, stream TARGET            advance     draw_rows of the retained rows, stream DRAFT
    rejection   verify_rows                         advance     draw_rows of the retained rows, stream DRAFT, log Q stored

The draft comes from the rows that the advance retains, so that nothing is drawn in vain.  Where the calls' shapes are fixed, as
in a captured iteration, greedy and coupled tokens of all rows come first instead: that is two launches fewer.  In any order but
left to right all rows' tokens come first too, for the draft is retained by position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .layouts.block import BlockCall
from .layouts.block_layout import BlockLayout
from .layouts.ordered import OrderedCall
from .layouts.ordered_layout import OrderedLayout
from .models.attention import SlotCache
from .request import Request
from .rows import Rows
from .sampling import Stream
from .state import State


class Resolver:
    """What follows the model's forward in each call of a decoder."""

    def __init__(self, layout: BlockLayout | OrderedLayout) -> None:
        self.layout: Any = layout

    def __call__(
        self,
        outputs: Tensor,
        rows: Rows,
        state: State,
        request: Request,
        call: BlockCall | OrderedCall,
        following: BlockCall | OrderedCall | None,
        cache: SlotCache,
    ) -> None:
        """Advance the state by a call's outputs, and write the rows of the ``following`` call where its shape is known.

        outputs: logits [N, head rows, V], or int32 [N, head rows], the argmax of each row.
        """
        mode, layout = request.verification, self.layout
        if outputs.dtype == torch.int32:
            layout.advance(outputs, None, None, state, call, following, cache)
            return
        logits = layout.usable(outputs)
        count = logits.shape[1]
        if layout.in_any_order and count:  # the draft is retained by position, and ordered by the probability of its tokens
            ids = rows.results(count, count).ids
            probability = torch.empty(ids.shape, dtype=_wide(logits), device=ids.device) if layout.wants_probability else None
            torch.ops.packed_ss.argmax_rows(logits, None, None, None, ids, probability)
            layout.advance(ids, None, probability, state, call, following, cache)
            return
        all_rows = following is not None and len(call.cuts) < 2 and mode in ("greedy", "coupled")
        verified = call.verified_rows
        predicts, ids, accepted = rows.results(count, count if all_rows else verified)
        draft = None if all_rows else state.draft  # behind the first token that is not its draft, rows need not be read
        if not ids.shape[1]:
            pass
        elif mode == "rejection":
            self.verify(logits, predicts, state, ids, accepted)
        elif mode == "greedy":
            torch.ops.packed_ss.argmax_rows(logits, None, predicts, draft, ids, None)
        else:
            torch.ops.packed_ss.draw_rows(logits, None, predicts, draft, *state.sampling, int(Stream.TARGET), ids, None, None, 0)
        layout.advance(ids, accepted if mode == "rejection" and verified else None, None, state, call, following, cache)
        if call.cuts and not all_rows:
            self._propose(logits, state, mode, following, cache)

    def verify(self, logits: Tensor, predicts: Tensor, state: State, ids: Tensor, accepted: Tensor) -> None:
        """Verify the draft by rejection: ids and accepted [N, v] as `verify_rows` writes them."""
        torch.ops.packed_ss.verify_rows(logits, predicts, *state.sampling, state.draft, state.draft_log_q, ids, accepted)

    def _propose(
        self, logits: Tensor, state: State, mode: str, following: BlockCall | OrderedCall | None, cache: SlotCache
    ) -> None:
        """Take the next draft from the rows that the advance has retained."""
        layout, next_ids, column = self.layout, None, 0
        if following is not None and mode != "greedy":
            first = layout.draft_column(following)
            next_ids, column = (None, 0) if first is None else (layout.buffers(state, following).ids, first)
        if mode == "greedy":
            torch.ops.packed_ss.argmax_rows(logits, state.retained, state.order, None, state.draft, None)
        else:
            stream = Stream.TARGET if mode == "coupled" else Stream.DRAFT
            log_q = state.draft_log_q if mode == "rejection" else None
            torch.ops.packed_ss.draw_rows(
                logits, state.retained, state.order, None, *state.sampling, int(stream), state.draft, log_q, next_ids, column
            )
        if following is not None and next_ids is None:
            layout.pack(state, following, cache.capacity - 1)


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)
