"""pack_ordered as a Triton kernel (packed_ss/ops/pack_ordered.py): the rows and the tail mask of a call of the ordered layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from packed_ss.operands import named
from packed_ss.ops import checks
from packed_ss.ordered_state import ORDERED_STATE

from . import tiles
from .checks import check_on_device

RUNNING = tl.constexpr(0)
#: Rows of a program at the most, and words of their masks at a time.
_ROWS = 64
_WORDS = 16


@triton.jit
def _below(bound, first):
    """int32 words whose bits from ``first`` on are set below ``bound``."""
    bits = tl.minimum(tl.maximum(bound - first, 0), 32).to(tl.int64)
    return ((tl.full([], 1, tl.int64) << bits) - 1).to(tl.int32)


@triton.jit
def _drafted(draft_ptr, retained_ptr, order_ptr, rank, inside, PENDING: tl.constexpr):
    """Whether open positions of ranks have a draft token; with PENDING also where it is yet to be drawn."""
    there = tl.load(draft_ptr + rank, mask=inside, other=-1) >= 0
    if PENDING:
        there = there | (tl.load(retained_ptr + rank, mask=inside, other=-1) >= 0)
    return there & (tl.load(order_ptr + rank, mask=inside, other=-1) >= 0)


@triton.jit
def write_rows(i, start, tokens_ptr, cache_len_ptr, finish_reason_ptr, order_ptr, draft_ptr, waiting_ptr, retained_ptr,
               ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr,
               capacity, width, most_waiting, mask_token_id, spare_slot, waiting_rows, window, rows, words,
               DRAFTS: tl.constexpr, VERIFIES: tl.constexpr, CUTS: tl.constexpr, PENDING: tl.constexpr,
               WINDOW: tl.constexpr, WAITING: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Writes ROWS rows of sequence i of a call, from ``start`` on."""
    row = start + tl.arange(0, ROWS)
    rank = tl.arange(0, WINDOW)
    due = tl.arange(0, WAITING)
    order_ptr += i * width
    draft_ptr += i * width
    retained_ptr += i * width
    waiting_ptr += i * most_waiting
    p = tl.sum((tl.load(waiting_ptr + due, mask=due < waiting_rows, other=-1) >= 0).to(tl.int32), 0)
    drafted = _drafted(draft_ptr, retained_ptr, order_ptr, rank, rank < window, PENDING)
    kappa = tl.minimum(tl.min(tl.where(drafted, WINDOW, rank), 0), window)

    # N, then the regions of O, M and R.
    waits = row < waiting_rows
    region = tl.maximum(row - waiting_rows, 0) // window
    r = tl.maximum(row - waiting_rows, 0) % window
    exists = row < rows
    position = tl.load(order_ptr + r, mask=exists & (waits == 0), other=-1)
    position = tl.where(waits, tl.load(waiting_ptr + row, mask=waits & exists, other=-1), position)
    stands = exists & (position >= 0)
    ids = tl.load(tokens_ptr + i * capacity + position, mask=stands & waits & (position < capacity), other=mask_token_id)
    if DRAFTS:
        draft = tl.load(draft_ptr + r, mask=stands & (waits == 0) & (region == 0), other=-1)
        ids = tl.where(draft >= 0, draft, ids)
    tail = tl.where(waits, row, row - waiting_rows + p)
    at = i * rows + row
    tl.store(ids_ptr + at, ids, mask=exists)
    tl.store(positions_ptr + at, tl.maximum(position, 0), mask=exists)
    tl.store(slots_ptr + at, tl.where(stands, tl.load(cache_len_ptr + i) + tail, spare_slot), mask=exists)

    before = r  # how many ranks of O a row sees
    asked = (waits == 0) & (region == DRAFTS) & (r <= kappa) if VERIFIES else row < 0
    for k in tl.static_range(len(CUTS)):
        mine = region == DRAFTS + VERIFIES + k
        before = tl.where(mine, CUTS[k], before)
        # A proposal at a rank that a verified call resolves has no use: one behind the cut at the least.
        asked = asked | ((waits == 0) & mine & (r >= CUTS[k] + VERIFIES) & (CUTS[k] <= kappa))
    asked = asked & stands & (tl.load(finish_reason_ptr + i) == RUNNING)
    tl.store(predicts_ptr + at, tl.where(asked, position, -1), mask=exists)
    before = p + tl.where(waits, 0, before)
    causal = tl.minimum(tl.where(waits, row + 1, waiting_rows), p)
    for first in range(0, words, WORDS):
        word = first + tl.arange(0, WORDS)
        mask = _below(causal[:, None], 32 * word[None, :])
        own = tail[:, None] - 32 * word[None, :]
        mask = mask | tl.where((own >= 0) & (own < 32), tl.full([], 1, tl.int32) << (own & 31), 0)
        if DRAFTS:
            bit = tl.arange(0, 32)
            slot_rank = 32 * word[:, None] + bit[None, :] - p  # the rank whose token is in a slot of the tail
            seen = _drafted(draft_ptr, retained_ptr, order_ptr, slot_rank, (slot_rank >= 0) & (slot_rank < window), PENDING)
            tokens = tl.sum(seen.to(tl.int32) << bit[None, :], 1)
            mask = mask | (tokens[None, :] & _below(before[:, None], 32 * word[None, :]))
        mask = tl.where(stands[:, None], mask, 0)
        tl.store(tail_mask_ptr + at[:, None] * words + word[None, :], mask, mask=exists[:, None] & (word < words)[None, :])


_SMALL = ["capacity", "width", "most_waiting", "mask_token_id", "spare_slot", "waiting_rows", "window", "rows", "words"]


@triton.jit(do_not_specialize=_SMALL)
def pack_rows(tokens_ptr, length_ptr, cache_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, end_ptr, stopped_ptr,
              prompt_length_ptr, stops_ptr, order_ptr, draft_ptr, waiting_ptr, cached_ptr, moved_from_ptr, first_moved_ptr,
              retained_ptr, ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr,
              capacity, width, most_waiting, mask_token_id, spare_slot, waiting_rows, window, rows, words,
              DRAFTS: tl.constexpr, VERIFIES: tl.constexpr, CUTS: tl.constexpr,
              WINDOW: tl.constexpr, WAITING: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Program (sequence, ROWS rows).

    Reads the window and what waits, 4 (2 W + P) bytes; writes 16 bytes a row, and a bit for each pair of rows.
    """
    write_rows(tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS, tokens_ptr, cache_len_ptr, finish_reason_ptr, order_ptr,
               draft_ptr, waiting_ptr, retained_ptr, ids_ptr, positions_ptr, slots_ptr, predicts_ptr, tail_mask_ptr,
               capacity, width, most_waiting, mask_token_id, spare_slot, waiting_rows, window, rows, words,
               DRAFTS, VERIFIES, CUTS, False, WINDOW, WAITING, ROWS, WORDS)


def call_operands(mask_token_id: int, spare_slot: int, waiting_rows: int, window: int, drafts: bool, verifies: bool,
                  cuts: Sequence[int], rows: Sequence[Tensor]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """What `write_rows` takes of a call besides tensors: sizes, and constants."""
    count, words = rows[-1].shape[1:]
    constants = {"DRAFTS": int(drafts), "VERIFIES": int(verifies), "CUTS": tuple(cuts), "WINDOW": tiles.padded(window),
                 "WAITING": tiles.padded(waiting_rows, 1), "ROWS": min(_ROWS, tiles.padded(count)),
                 "WORDS": min(_WORDS, tiles.padded(words, 1))}
    return (mask_token_id, spare_slot, waiting_rows, window, count, words), constants


def pack_ordered(state: Sequence[Tensor], *call: Any) -> None:
    """`packed_ss.ops.pack_ordered.pack_ordered`: ids, positions, slots and predicts [N, R] of a call, and who sees whom."""
    checks.check_pack_ordered(state, *call)
    s = named(ORDERED_STATE, state)
    check_on_device("pack_ordered", "tokens", s.tokens)
    if s.tokens.shape[0]:
        sizes, constants = call_operands(*call)
        step = constants["ROWS"]
        with tiles.on(s.tokens.device):
            pack_rows[(s.tokens.shape[0], triton.cdiv(sizes[4], step))](
                *state, *call[-1], s.tokens.shape[1], s.order.shape[1], s.waiting.shape[1], *sizes, **constants,
                num_warps=1 if step < _ROWS else 4)
