"""pack_ordered as a Triton kernel (packed_ss/ops/pack_ordered.py): the rows and the tail mask of a call of the ordered layout."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops import checks_ordered as checks

from . import tiles
from .checks import check_on_device

#: Rows of a program at the most, and words of their masks at a time.
_ROWS = 64
_WORDS = 16


@triton.jit
def _below(bound, first):
    """int32 words whose bits from ``first`` on are set below ``bound``."""
    bits = tl.minimum(tl.maximum(bound - first, 0), 32).to(tl.int64)
    return ((tl.full([], 1, tl.int64) << bits) - 1).to(tl.int32)


_SMALL = ["capacity", "width", "most", "mask_token_id", "spare_slot", "waiting_rows", "window", "rows", "words"]


@triton.jit(do_not_specialize=_SMALL)
def pack_rows(tokens_ptr, cache_len_ptr, order_ptr, draft_ptr, waiting_ptr, ids_ptr, positions_ptr, slots_ptr, tail_mask_ptr,
              consulted_ptr, capacity, width, most, mask_token_id, spare_slot, waiting_rows, window, rows, words,
              DRAFTS: tl.constexpr, VERIFIES: tl.constexpr, CUTS: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr,
              ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Program (sequence, ROWS rows).

    Reads the window and what waits, 4 (2 W + P) bytes; writes 12 bytes a row, and a bit for each pair of rows.
    """
    i = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    rank = tl.arange(0, WIDTH)
    due = tl.arange(0, MOST)
    order_ptr += i * width
    draft_ptr += i * width
    waiting_ptr += i * most
    p = tl.sum((tl.load(waiting_ptr + due, mask=due < waiting_rows, other=-1) >= 0).to(tl.int32), 0)

    # N, then the regions of O, M and R.
    waits = row < waiting_rows
    region = tl.maximum(row - waiting_rows, 0) // window
    r = tl.maximum(row - waiting_rows, 0) % window
    exists = row < rows
    where = tl.load(order_ptr + r, mask=exists & (waits == 0), other=-1)
    where = tl.where(waits, tl.load(waiting_ptr + row, mask=waits & exists, other=-1), where)
    stands = exists & (where >= 0)
    known = stands & waits & (where < capacity)
    ids = tl.load(tokens_ptr + i * capacity + where, mask=known, other=0)
    ids = tl.where(known, ids, mask_token_id)
    if DRAFTS:
        shown = stands & (waits == 0) & (region == 0)
        draft = tl.load(draft_ptr + r, mask=shown, other=-1)
        ids = tl.where(shown & (draft >= 0), draft, ids)
    tail = tl.where(waits, row, row - waiting_rows + p)
    at = i * rows + row
    tl.store(ids_ptr + at, ids, mask=exists)
    tl.store(positions_ptr + at, tl.maximum(where, 0), mask=exists)
    tl.store(slots_ptr + at, tl.where(stands, tl.load(cache_len_ptr + i) + tail, spare_slot), mask=exists)

    before = r  # how many ranks of O a row sees
    for k in tl.static_range(len(CUTS)):
        before = tl.where(region == DRAFTS + VERIFIES + k, CUTS[k], before)
    before = p + tl.where(waits, 0, before)
    causal = tl.minimum(tl.where(waits, row + 1, waiting_rows), p)
    for start in range(0, words, WORDS):
        word = start + tl.arange(0, WORDS)
        mask = _below(causal[:, None], 32 * word[None, :])
        own = tail[:, None] - 32 * word[None, :]
        mask = mask | tl.where((own >= 0) & (own < 32), tl.full([], 1, tl.int32) << (own & 31), 0)
        if DRAFTS:
            bit = tl.arange(0, 32)
            rank_there = 32 * word[:, None] + bit[None, :] - p  # the rank whose token is in a slot of the tail
            there = (rank_there >= 0) & (rank_there < window)
            token = (tl.load(draft_ptr + rank_there, mask=there, other=-1) >= 0) \
                & (tl.load(order_ptr + rank_there, mask=there, other=-1) >= 0)
            tokens = tl.sum(token.to(tl.int32) << bit[None, :], 1)
            mask = mask | (tokens[None, :] & _below(before[:, None], 32 * word[None, :]))
        mask = tl.where(stands[:, None], mask, 0)
        tl.store(tail_mask_ptr + at[:, None] * words + word[None, :], mask, mask=exists[:, None] & (word < words)[None, :])

    if tl.program_id(1) == 0:
        tl.store(consulted_ptr + 2 * i, 0)
        count = p * 0
        if VERIFIES:
            is_open = tl.load(order_ptr + rank, mask=rank < window, other=-1) >= 0
            drafted = is_open & (tl.load(draft_ptr + rank, mask=rank < window, other=-1) >= 0)
            leading = tl.minimum(tl.min(tl.where(drafted, WIDTH, rank), 0), window)
            count = tl.minimum(leading + 1, tl.sum(is_open.to(tl.int32), 0))
        tl.store(consulted_ptr + 2 * i + 1, count)


def pack_ordered(tokens: Tensor, cache_len: Tensor, order: Tensor, draft: Tensor, waiting: Tensor, mask_token_id: int,
                 spare_slot: int, waiting_rows: int, window: int, drafts: bool, verifies: bool, cuts: Sequence[int], ids: Tensor,
                 positions: Tensor, slots: Tensor, tail_mask: Tensor, consulted: Tensor) -> None:
    """`packed_ss.ops.pack_ordered.pack_ordered`: ids, positions and slots [N, R] of a call, who sees whom, and which rows of
    logits verification may ask for.  One launch, safe to capture."""
    checks.check_pack_ordered(tokens, cache_len, order, draft, waiting, mask_token_id, spare_slot, waiting_rows, window, drafts,
                              verifies, cuts, ids, positions, slots, tail_mask, consulted)
    check_on_device("pack_ordered", "tokens", tokens)
    n, rows = ids.shape
    if n:
        step = min(_ROWS, tiles.padded(rows))
        words = tail_mask.shape[2]
        pack_rows[(n, max(1, triton.cdiv(rows, step)))](
            tokens, cache_len, order, draft, waiting, ids, positions, slots, tail_mask, consulted, tokens.shape[1],
            order.shape[1], waiting.shape[1], mask_token_id, spare_slot, waiting_rows, window, rows, words,
            DRAFTS=int(drafts), VERIFIES=int(verifies), CUTS=tuple(cuts), WIDTH=tiles.padded(window),
            MOST=tiles.padded(waiting.shape[1]), ROWS=step, WORDS=min(_WORDS, tiles.padded(words, 1)),
            num_warps=1 if step < _ROWS else 4)
