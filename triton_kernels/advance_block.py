"""advance_block and pack_block as Triton kernels (packed_ss/ops/advance_block.py, packed_ss/ops/pack.py): one launch each.

A program advances a sequence: it accepts, truncates, appends, retains the next draft, and writes the next call's rows where they
are wanted.  Every thread has read what it needs of the state before any of it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from packed_ss.operands import named
from packed_ss.ops import checks
from packed_ss.state import BLOCK_STATE

from . import tiles
from .checks import check_on_device

# finish_reason codes (packed_ss.state.FINISH_REASONS).
RUNNING = tl.constexpr(0)
STOP = tl.constexpr(1)
LENGTH = tl.constexpr(2)
ERROR = tl.constexpr(3)

#: Draft entries, and rows, at a time.
_STEP = tl.constexpr(128)


@triton.jit
def _candidate(draft_ptr, k, h, token):
    """The tokens for positions n + k: d_1 ... d_h, then ``token``."""
    return tl.where(k < h, tl.load(draft_ptr + k, mask=(k >= 0) & (k < h), other=0), token)


@triton.jit
def _commit(i, n, h, token, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, limit_ptr,
            prompt_length_ptr, stops_ptr, capacity, calls, stop_count, stop_length, SIZE: tl.constexpr, STOPS: tl.constexpr):
    """Appends a = min(A, tokens left to the limit, first stop) tokens: h of the draft, and ``token`` unless it is -1.

    n: the length before.  tokens_ptr, draft_ptr and stops_ptr are those of this sequence.  A stop reaches back over earlier
    calls, but not into the prompt.  Returns a and whether the sequence goes on.
    """
    j = tl.arange(0, SIZE)
    cache_len, nfe, prompt_length = tl.load(cache_len_ptr + i), tl.load(nfe_ptr + i), tl.load(prompt_length_ptr + i)
    room = tl.maximum(tl.minimum(tl.load(limit_ptr + i), capacity) - n, 0)
    most = tl.minimum(h + (token >= 0).to(tl.int32), room)
    advance = most
    stopped = advance < 0
    if STOPS > 0:
        s = tl.arange(0, STOPS)
        ends = (s < stop_count)[None, :] & (j < most)[:, None]  # candidate j completes stop s, as far as looked
        for back in range(stop_length):
            wanted = tl.load(stops_ptr + s * stop_length + (stop_length - 1 - back), mask=s < stop_count, other=-1)
            at = n + j - back
            before = tl.load(tokens_ptr + at, mask=(at < n) & (at >= prompt_length), other=0)
            there = tl.where(at < n, before, _candidate(draft_ptr, j - back, h, token))
            same = (there[:, None] == wanted[None, :]) & (at >= prompt_length)[:, None]
            ends = ends & (same | (wanted < 0)[None, :])
        first = tl.min(tl.where(tl.max(ends.to(tl.int32), 1) > 0, j, most), 0)
        stopped = first < most
        advance = tl.where(stopped, first + 1, most)
    appended = _candidate(draft_ptr, j, h, token)
    reason = tl.where(token < 0, ERROR, RUNNING)
    reason = tl.where(advance == room, LENGTH, reason)
    reason = tl.where(stopped, STOP, reason)
    tl.debug_barrier()
    tl.store(tokens_ptr + n + j, appended, mask=j < advance)
    tl.store(advances_ptr + i * calls + nfe, advance, mask=nfe < calls)
    tl.store(finish_reason_ptr + i, reason)
    tl.store(length_ptr + i, n + advance)
    tl.store(cache_len_ptr + i, cache_len + advance)
    tl.store(nfe_ptr + i, nfe + 1)
    return advance, reason == RUNNING


@triton.jit
def _write_rows(i, start, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, retained_ptr, finish_reason_ptr, ids_ptr,
                positions_ptr, slots_ptr, predicts_ptr, capacity, width, block_size, mask_token_id, verifier_rows, rows,
                CUTS: tl.constexpr, PENDING: tl.constexpr):
    """Writes _STEP rows of sequence i of a call, from ``start`` on; with PENDING, entries yet to be drawn count as there."""
    draft_ptr += i * width
    kappa = tl.full([], 0, tl.int32) + width
    for first in range(0, width, _STEP):
        j = first + tl.arange(0, _STEP)
        there = tl.load(draft_ptr + j, mask=j < width, other=-1) >= 0
        if PENDING:
            there = there | (tl.load(retained_ptr + i * width + j, mask=j < width, other=-1) >= 0)
        kappa = tl.minimum(kappa, tl.min(tl.where(there, width, j), 0))
    row = start + tl.arange(0, _STEP)
    exists = row < rows
    inside = tl.maximum(row - verifier_rows, 0)
    region = inside // block_size
    inside = inside % block_size
    cut = row * 0
    for k in tl.static_range(1, len(CUTS)):
        cut = tl.where(region == k, CUTS[k], cut)
    verifies = row < verifier_rows
    shown = tl.where(verifies, row, cut)  # 0: the last token, k: d_k
    known = exists & (verifies | (inside == 0))
    last = tl.load(length_ptr + i) - 1
    ids = tl.load(draft_ptr + shown - 1, mask=known & (shown > 0) & (shown <= width), other=-1)
    use_last = known & (shown == 0) & (last >= 0) & (last < capacity)
    ids = tl.where(use_last, tl.load(tokens_ptr + i * capacity + last + row * 0, mask=use_last, other=-1), ids)
    # The first row of a region has no use; after an advance of at least one, neither has the one that predicts the next token.
    asked = (shown <= kappa) & (verifies | (inside >= tl.where(verifier_rows > 0, 2, 1)))
    asked = asked & (tl.load(finish_reason_ptr + i) == RUNNING)
    at = i * rows + row
    position = last + tl.where(verifies, row, cut + inside)
    tl.store(ids_ptr + at, tl.where(ids >= 0, ids, mask_token_id), mask=exists)
    tl.store(positions_ptr + at, position, mask=exists)
    tl.store(slots_ptr + at, tl.load(cache_len_ptr + i) + row, mask=exists)
    tl.store(predicts_ptr + at, tl.where(asked, position + verifies.to(tl.int32), -1), mask=exists)


_SMALL = ["capacity", "width", "calls", "stop_count", "stop_length", "columns", "verifier_rows", "block_size", "shift",
          "mask_token_id", "next_verifier_rows", "rows"]


@triton.jit(do_not_specialize=_SMALL)
def advance_sequence(tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, retained_ptr, order_ptr, finish_reason_ptr, nfe_ptr,
                     advances_ptr, limit_ptr, prompt_length_ptr, stops_ptr, call_ids_ptr, accepted_ptr,
                     ids_ptr, positions_ptr, slots_ptr, predicts_ptr,
                     capacity, width, calls, stop_count, stop_length, columns, verifier_rows, block_size, shift, mask_token_id,
                     next_verifier_rows, rows, CUTS: tl.constexpr, NEXT_CUTS: tl.constexpr, VERIFIES: tl.constexpr,
                     DRAWN_LATER: tl.constexpr, SIZE: tl.constexpr, STOPS: tl.constexpr):
    """Program (sequence).

    Reads what the call has of it, 4 bytes a column, and writes the state, 4 (a + 3 W + 6) bytes, and 16 bytes for each row of the
    next call.
    """
    i = tl.program_id(0).to(tl.int64)
    n = tl.load(length_ptr + i)
    call_ids_ptr += i * columns
    running = tl.load(finish_reason_ptr + i) == RUNNING
    goes_on = running
    h = tl.full([], 0, tl.int32)
    advance = h
    if running:
        if VERIFIES:
            j = tl.arange(0, SIZE)
            drafted = (j < verifier_rows - 1) & (j < width)
            draft = tl.load(draft_ptr + i * width + j, mask=drafted, other=-1)
            if accepted_ptr is not None:
                same = tl.load(accepted_ptr + i * verifier_rows + j, mask=drafted, other=0) > 0
            else:
                same = draft == tl.load(call_ids_ptr + j, mask=drafted, other=-1)
            h = tl.min(tl.where(same & (draft >= 0), SIZE, j), 0)
            advance, goes_on = _commit(i, n, h, tl.load(call_ids_ptr + h), tokens_ptr + i * capacity, length_ptr, cache_len_ptr,
                                       draft_ptr + i * width, finish_reason_ptr, nfe_ptr, advances_ptr, limit_ptr,
                                       prompt_length_ptr, stops_ptr + i * stop_count * stop_length, capacity, calls, stop_count,
                                       stop_length, SIZE, STOPS)
        else:
            tl.store(nfe_ptr + i, tl.load(nfe_ptr + i) + 1)
    # The branch of the largest cut c <= h, and in it the rows of the positions still open.
    branch = h * 0
    inside = advance + 1 - shift
    for k in tl.static_range(1, len(CUTS)):
        branch = tl.where(CUTS[k] <= h, k, branch)
        inside = tl.where(CUTS[k] <= h, advance + 1 - shift - CUTS[k], inside)
    first = verifier_rows + branch * block_size + inside
    count = tl.where(goes_on, tl.minimum(width, block_size - inside), 0) if len(CUTS) > 0 else h * 0
    for start in range(0, width, _STEP):
        j = start + tl.arange(0, _STEP)
        row = tl.where(j < count, first + j, -1)
        draft = row * 0 - 1
        if not DRAWN_LATER:
            draft = tl.load(call_ids_ptr + row, mask=row >= 0, other=-1)
            row = draft * 0 - 1
        tl.store(draft_ptr + i * width + j, draft, mask=j < width)
        tl.store(retained_ptr + i * width + j, row, mask=j < width)
        tl.store(order_ptr + i * width + j, n + advance + j, mask=(j < width) & running)
    if ids_ptr is not None:
        tl.debug_barrier()  # every thread sees the new state
        for start in range(0, rows, _STEP):
            _write_rows(i, start, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, retained_ptr, finish_reason_ptr, ids_ptr,
                        positions_ptr, slots_ptr, predicts_ptr, capacity, width, block_size, mask_token_id, next_verifier_rows,
                        rows, NEXT_CUTS, True)


@triton.jit(do_not_specialize=["capacity", "width", "block_size", "mask_token_id", "verifier_rows", "rows"])
def pack_rows(tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, retained_ptr, order_ptr, finish_reason_ptr, nfe_ptr, advances_ptr,
              limit_ptr, prompt_length_ptr, stops_ptr, ids_ptr, positions_ptr, slots_ptr, predicts_ptr,
              capacity, width, block_size, mask_token_id, verifier_rows, rows, CUTS: tl.constexpr):
    """Program (sequence, _STEP rows): reads the draft, and at most 12 bytes of state a row, and writes 16."""
    _write_rows(tl.program_id(0).to(tl.int64), tl.program_id(1) * _STEP, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr,
                retained_ptr, finish_reason_ptr, ids_ptr, positions_ptr, slots_ptr, predicts_ptr, capacity, width, block_size,
                mask_token_id, verifier_rows, rows, CUTS, False)


def advance_block(ids: Tensor, accepted: Tensor | None, state: Sequence[Tensor], verifier_rows: int, block_size: int,
                  cuts: Sequence[int], shift: int, mask_token_id: int, next_verifier_rows: int, next_cuts: Sequence[int],
                  next_rows: Sequence[Tensor]) -> None:
    """`packed_ss.ops.advance_block.advance_block`: accept, truncate, append, retain, and write the next call's rows."""
    checks.check_advance_block(ids, accepted, state, verifier_rows, block_size, cuts, shift, mask_token_id, next_verifier_rows,
                               next_cuts, next_rows)
    check_on_device("advance_block", "ids", ids)
    s = named(BLOCK_STATE, state)
    n, stop_count, stop_length = s.stops.shape
    if n:
        with tiles.on(ids.device):
            advance_sequence[(n,)](
                *state, ids, accepted, *(next_rows or [None] * 4), s.tokens.shape[1], block_size - 1, s.advances.shape[1],
                stop_count, stop_length, ids.shape[1], verifier_rows, block_size, shift, mask_token_id, next_verifier_rows,
                next_rows[0].shape[1] if next_rows else 0, CUTS=tuple(cuts), NEXT_CUTS=tuple(next_cuts) if next_rows else (),
                VERIFIES=verifier_rows > 0, DRAWN_LATER=ids.shape[1] < verifier_rows + len(cuts) * block_size,
                SIZE=tiles.padded(verifier_rows, 1), STOPS=tiles.padded(stop_count, 1) if stop_count else 0, num_warps=4,
                maxnreg=tiles.REGISTERS)


def pack_block(state: Sequence[Tensor], mask_token_id: int, verifier_rows: int, block_size: int, cuts: Sequence[int],
               rows: Sequence[Tensor]) -> None:
    """`packed_ss.ops.pack.pack_block`: writes ids, positions, slots and predicts [N, R] of the next call."""
    checks.check_pack_block(state, mask_token_id, verifier_rows, block_size, cuts, rows)
    tokens, (n, count) = state[0], rows[0].shape
    check_on_device("pack_block", "tokens", tokens)
    if n:
        with tiles.on(tokens.device):
            pack_rows[(n, triton.cdiv(count, _STEP.value))](
                *state, *rows, tokens.shape[1], block_size - 1, block_size, mask_token_id, verifier_rows, count, CUTS=tuple(cuts),
                num_warps=4)
