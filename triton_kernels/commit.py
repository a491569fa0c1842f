"""The end of a resolve: accept, truncate, append, retain, and the next call's rows; one program for each sequence.

What `packed_ss.ops.resolve` does in these steps is the specification.  All launches before see the state from before the call,
since it changes in the last one alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .draws import PARTS, drawn, log_weight, row_statistics
from .rows import FAILED, FINISHED, GOES_ON, RUNNING, load_slice, retained_rows, verified_drafts
from .scores import INF, NOTHING, is_finite, key_score, order_key, packed_id, packed_key

# finish_reason codes (packed_ss.state.FINISH_REASONS).
STOP = tl.constexpr(1)
LENGTH = tl.constexpr(2)
ERROR = tl.constexpr(3)

# Where the results of rows come from: `argmax_rows`, the caller of resolve_argmax, `sample_rows`, or that and `correct_rows`.
ARGMAX = tl.constexpr(0)
GIVEN = tl.constexpr(1)
COUPLED = tl.constexpr(2)
REJECTION = tl.constexpr(3)

STEP = tl.constexpr(32)  # rows at a time


@triton.jit
def best_packed(best_ptr, place, exists, slices, ROWS: tl.constexpr):
    """The largest of packed results [.., slices] at ``place`` [ROWS]."""
    part = tl.arange(0, PARTS)
    best = tl.full([ROWS, PARTS], NOTHING, tl.int64)
    for start in range(0, slices, PARTS):
        inside = exists[:, None] & (start + part < slices)[None, :]
        at = (place * slices)[:, None] + (start + part)[None, :]
        best = tl.maximum(best, tl.load(best_ptr + at, mask=inside, other=NOTHING))
    return tl.max(best, 1)


@triton.jit
def _results(place, exists, best_ptr, ids_ptr, slice_key_ptr, slices, temperature, SOURCE: tl.constexpr, ROWS: tl.constexpr):
    """(key of the largest logit, id) of rows at ``place`` [ROWS]; the pointers are to the results of one sequence."""
    if SOURCE == GIVEN:
        key = order_key(tl.load(best_ptr + place, mask=exists, other=0.0))
        ids = tl.load(ids_ptr + place, mask=exists, other=0)
    elif SOURCE == ARGMAX:
        best = best_packed(best_ptr, place, exists, slices, ROWS)
        key, ids = packed_key(best), packed_id(best)
    else:
        key, ids = drawn(slice_key_ptr, best_ptr, place, exists, slices, temperature, ROWS)
    return key, ids


@triton.jit
def _match(i, draft_ptr, draft_len_ptr, best_ptr, ids_ptr, slice_key_ptr, verifier_rows, width, slices, temperature,
           SOURCE: tl.constexpr):
    """(h, token of row h, whether that row has no finite maximum): accepted is the target's own token.

    best_ptr, ids_ptr, slice_key_ptr: the results of this sequence.
    """
    drafts = verified_drafts(draft_len_ptr, i, verifier_rows)
    h = drafts + 1
    token = drafts * 0
    failed = drafts * 0
    for start in range(0, verifier_rows, STEP):
        row = start + tl.arange(0, STEP)
        exists = row <= drafts
        key, ids = _results(row, exists, best_ptr, ids_ptr, slice_key_ptr, slices, temperature, SOURCE, STEP)
        d = tl.load(draft_ptr + i * width + row, mask=row < drafts, other=-1)
        accepted = is_finite(key) & (row < drafts) & (d == ids)
        first = tl.min(tl.where(exists & (accepted == 0), row, drafts + 1), 0)
        here = first < h
        token = tl.where(here, tl.sum(tl.where(row == first, ids, 0), 0), token)
        failed = tl.where(here, tl.sum(((row == first) & (is_finite(key) == 0)).to(tl.int32), 0), failed)
        h = tl.minimum(first, h)
    return h, token, failed


@triton.jit(do_not_specialize=["verifier_rows", "width", "places", "slices"])
def judge(finish_reason_ptr, draft_ptr, draft_len_ptr, best_ptr, slice_key_ptr, verdict_ptr, verifier_rows, width, places, slices,
          temperature, SOURCE: tl.constexpr):
    """Program (sequence): h before the rows that it chooses are looked at.

    Reads the results of its verifier rows, 8 or 12 bytes a slice; writes verdict [N, 2] int32: h, and what follows.
    """
    i = tl.program_id(0).to(tl.int64)
    if tl.load(finish_reason_ptr + i) == RUNNING:
        at = i * places * slices
        h, _, failed = _match(i, draft_ptr, draft_len_ptr, best_ptr + at, best_ptr, slice_key_ptr + at, verifier_rows, width,
                              slices, temperature, SOURCE)
        tl.store(verdict_ptr + 2 * i, h)
        tl.store(verdict_ptr + 2 * i + 1, tl.where(failed != 0, FAILED, GOES_ON))


@triton.jit
def _candidate(draft_ptr, k, h, token):
    """The tokens for positions n + k: d_1 ... d_h, then ``token``."""
    return tl.where(k < h, tl.load(draft_ptr + k, mask=(k >= 0) & (k < h), other=0), token)


@triton.jit
def _commit(i, n, cache_len, nfe, limit, prompt_length, h, token, failed, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr,
            finish_reason_ptr, nfe_ptr, advances_ptr, stops_ptr, capacity, calls, stop_count, stop_length,
            CANDIDATES: tl.constexpr, STOPS: tl.constexpr):
    """Appends a = min(A, tokens left to the limit, first stop) tokens; returns whether the sequence goes on.

    n ... prompt_length: the state before.  draft_ptr: the draft of this sequence.  A stop reaches back over earlier calls, but
    not into the prompt.
    """
    tokens_ptr += i * capacity
    j = tl.arange(0, CANDIDATES)
    room = tl.maximum(tl.minimum(limit, capacity) - n, 0)
    most = tl.minimum(h + 1 - failed, room)
    advance = most
    stopped = advance < 0
    if STOPS > 0:
        s = tl.arange(0, STOPS)
        whole = (s < stop_count)[None, :] & (j < most)[:, None]  # the end of candidate j completes stop s, as far as looked
        for back in range(stop_length):
            wanted = tl.load(stops_ptr + s * stop_length + (stop_length - 1 - back), mask=s < stop_count, other=-1)
            at = n + j - back
            before = tl.load(tokens_ptr + at, mask=(at < n) & (at >= prompt_length), other=0)
            there = tl.where(at < n, before, _candidate(draft_ptr, j - back, h, token))
            same = (there[:, None] == wanted[None, :]) & (at >= prompt_length)[:, None]
            whole = whole & (same | (wanted < 0)[None, :])
        first = tl.min(tl.where(tl.max(whole.to(tl.int32), 1) > 0, j, most), 0)
        stopped = first < most
        advance = tl.where(stopped, first + 1, most)
    appended = _candidate(draft_ptr, j, h, token)
    reason = tl.where(failed != 0, ERROR, RUNNING)
    reason = tl.where(advance == room, LENGTH, reason)
    reason = tl.where(stopped, STOP, reason)
    tl.debug_barrier()  # every thread has read what it needs of the state before any of it changes
    tl.store(tokens_ptr + n + j, appended, mask=j < advance)
    tl.store(advances_ptr + i * calls + nfe, advance, mask=nfe < calls)
    tl.store(finish_reason_ptr + i, reason)
    tl.store(length_ptr + i, n + advance)
    tl.store(cache_len_ptr + i, cache_len + advance)
    tl.store(nfe_ptr + i, nfe + 1)
    return reason == RUNNING


@triton.jit
def _write_rows(i, start, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr, capacity, width, block_size,
                mask_token_id, verifier_rows, rows, ids_ptr, positions_ptr, slots_ptr, CUTS: tl.constexpr, SIZE: tl.constexpr):
    """Writes rows start ... start + SIZE - 1 of sequence i of the next call: tokens, positions, cache slots."""
    r = start + tl.arange(0, SIZE)
    exists = r < rows
    inside = tl.maximum(r - verifier_rows, 0)
    region = inside // block_size
    inside = inside % block_size
    cut = r * 0
    for k in tl.static_range(1, len(CUTS)):
        cut = tl.where(region == k, CUTS[k], cut)
    is_verifier = r < verifier_rows
    source = tl.where(is_verifier, r, cut)  # 0: the last token, k: d_k
    known = exists & (is_verifier | (inside == 0))
    last = tl.load(length_ptr + i) - 1
    drafts = tl.minimum(tl.load(draft_len_ptr + i), width)
    use_last = known & (source == 0) & (last >= 0) & (last < capacity)
    use_draft = known & (source > 0) & (source <= drafts)
    ids = tl.load(tokens_ptr + i * capacity + last + r * 0, mask=use_last, other=0)
    ids = tl.where(use_draft, tl.load(draft_ptr + i * width + source - 1, mask=use_draft, other=0), ids)
    ids = tl.where(use_last | use_draft, ids, mask_token_id)
    at = i * rows + r
    tl.store(ids_ptr + at, ids, mask=exists)
    tl.store(positions_ptr + at, last + tl.where(is_verifier, r, cut + inside), mask=exists)
    tl.store(slots_ptr + at, tl.load(cache_len_ptr + i) + r, mask=exists)


@triton.jit
def _finish_sequence(i, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr,
                     limit_ptr, prompt_length_ptr, stops_ptr, best_ptr, ids_ptr, slice_key_ptr, verdict_ptr, corrected_ptr,
                     next_ids_ptr, next_positions_ptr, next_slots_ptr,
                     capacity, width, calls, stop_count, stop_length, verifier_rows, block_size, shift, by_row, places, slices,
                     temperature, mask_token_id, next_verifier_rows, next_rows,
                     CUTS: tl.constexpr, NEXT_CUTS: tl.constexpr, SOURCE: tl.constexpr, VERIFIES: tl.constexpr,
                     HAS_NEXT: tl.constexpr, CANDIDATES: tl.constexpr, STOPS: tl.constexpr):
    count = tl.full([], 0, tl.int32)
    best_ptr += i * places * slices
    ids_ptr += i * places * slices
    slice_key_ptr += i * places * slices
    # Asked for together: what this program takes is the time that memory needs to answer, one question after the other.
    n, cache_len, nfe = tl.load(length_ptr + i), tl.load(cache_len_ptr + i), tl.load(nfe_ptr + i)
    limit, prompt_length = tl.load(limit_ptr + i), tl.load(prompt_length_ptr + i)
    if tl.load(finish_reason_ptr + i) == RUNNING:
        goes_on = count == 0
        if VERIFIES:
            if SOURCE == REJECTION:
                h = tl.load(verdict_ptr + 2 * i)
                failed = (tl.load(verdict_ptr + 2 * i + 1) == FAILED).to(tl.int32)
                # The residual decides, and p where it is 0 throughout: that of p equal to Q.
                pair = tl.arange(0, 2)
                results = best_packed(corrected_ptr, 2 * i + pair, pair < 2, slices, 2)
                left = tl.max(tl.where(pair == 0, results, NOTHING), 0)
                whole = tl.max(tl.where(pair == 1, results, NOTHING), 0)
                token = packed_id(tl.where(packed_key(left) > -INF, left, whole))
            else:
                h, token, failed = _match(i, draft_ptr, draft_len_ptr, best_ptr, ids_ptr, slice_key_ptr, verifier_rows, width,
                                          slices, temperature, SOURCE)
            goes_on = _commit(i, n, cache_len, nfe, limit, prompt_length, h, token, failed, tokens_ptr, length_ptr, cache_len_ptr,
                              draft_ptr + i * width, finish_reason_ptr, nfe_ptr, advances_ptr, stops_ptr, capacity, calls,
                              stop_count, stop_length, CANDIDATES, STOPS)
            first, open_rows = retained_rows(h, verifier_rows, block_size, shift, CUTS)
        else:
            tl.store(nfe_ptr + i, nfe + 1)
            first = count + 1
            open_rows = count + width
        if len(CUTS) > 0:  # noqa: SIM102  (known when it is compiled)
            if goes_on:
                count = tl.minimum(open_rows, width)
                known = count
                for start in range(0, count, STEP):
                    j = start + tl.arange(0, STEP)
                    exists = j < count
                    place = tl.where(by_row != 0, first, verifier_rows) + j
                    key, ids = _results(place, exists, best_ptr, ids_ptr, slice_key_ptr, slices, temperature, SOURCE, STEP)
                    tl.store(draft_ptr + i * width + j, ids, mask=exists)
                    if SOURCE == REJECTION:  # a row without a finite maximum yields no draft from there on
                        known = tl.minimum(known, tl.min(tl.where(exists & (is_finite(key) == 0), j, count), 0))
                count = known
    tl.store(draft_len_ptr + i, count)
    if HAS_NEXT:
        tl.debug_barrier()  # every thread sees the new state
        for start in range(0, next_rows, 128):
            _write_rows(i, start, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr, capacity, width, block_size,
                        mask_token_id, next_verifier_rows, next_rows, next_ids_ptr, next_positions_ptr, next_slots_ptr,
                        NEXT_CUTS, 128)


@triton.jit
def _store_log_q(i, j, split, logits_ptr, stride_n, stride_r, vocab_size, finish_reason_ptr, verdict_ptr, draft_log_q_ptr,
                 row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, width, verifier_rows, block_size, shift,
                 by_row, places, slices, temperature,
                 CUTS: tl.constexpr, VERIFIES: tl.constexpr, FILTERED: tl.constexpr, UNIT: tl.constexpr, SLICE: tl.constexpr):
    """Writes a slice of log Q of draft token j, from its row.  Of the state, it reads only what its launch does not change."""
    if VERIFIES:
        status = tl.load(verdict_ptr + 2 * i + 1)
        first, count = retained_rows(tl.load(verdict_ptr + 2 * i), verifier_rows, block_size, shift, CUTS)
    else:
        status = tl.where(tl.load(finish_reason_ptr + i) == RUNNING, GOES_ON, FINISHED)
        first = status * 0 + 1
        count = status * 0 + width
    if (status == GOES_ON) & (j < count):
        one = tl.arange(0, 1)
        place = i * places + tl.where(by_row != 0, first, verifier_rows) + j + one
        key, kept, log_sum = row_statistics(place, one == 0, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr,
                                            slices, temperature, FILTERED, 1)
        ids, x = load_slice(logits_ptr, stride_n, stride_r, i, first + j, split, vocab_size, SLICE)
        log_q = log_weight(x, key_score(key), kept, log_sum, temperature, UNIT)
        tl.store(draft_log_q_ptr + (i * width + j) * vocab_size + ids, log_q, mask=ids < vocab_size)


_SMALL = ["capacity", "width", "calls", "stop_count", "stop_length", "verifier_rows", "block_size", "shift", "by_row", "places",
          "slices", "mask_token_id", "next_verifier_rows", "next_rows"]


@triton.jit(do_not_specialize=_SMALL)
def finish(tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr, limit_ptr,
           prompt_length_ptr, stops_ptr, best_ptr, ids_ptr, slice_key_ptr, verdict_ptr, corrected_ptr,
           next_ids_ptr, next_positions_ptr, next_slots_ptr,
           capacity, width, calls, stop_count, stop_length, verifier_rows, block_size, shift, by_row, places, slices, temperature,
           mask_token_id, next_verifier_rows, next_rows,
           CUTS: tl.constexpr, NEXT_CUTS: tl.constexpr, SOURCE: tl.constexpr, VERIFIES: tl.constexpr, HAS_NEXT: tl.constexpr,
           CANDIDATES: tl.constexpr, STOPS: tl.constexpr):
    """Program (sequence).

    Reads the results of its rows, 8 bytes a slice (12 where they were drawn); writes the state, 4 (a + W + 6) bytes, and 12 bytes
    for each row of the next call.
    """
    _finish_sequence(tl.program_id(0).to(tl.int64), tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr,
                     finish_reason_ptr, nfe_ptr, advances_ptr, limit_ptr, prompt_length_ptr, stops_ptr, best_ptr, ids_ptr,
                     slice_key_ptr, verdict_ptr, corrected_ptr, next_ids_ptr, next_positions_ptr, next_slots_ptr,
                     capacity, width, calls, stop_count, stop_length, verifier_rows, block_size, shift, by_row, places, slices,
                     temperature, mask_token_id, next_verifier_rows, next_rows,
                     CUTS, NEXT_CUTS, SOURCE, VERIFIES, HAS_NEXT, CANDIDATES, STOPS)


@triton.jit(do_not_specialize=_SMALL)
def store_and_finish(logits_ptr, stride_n, stride_r, vocab_size, draft_log_q_ptr, row_key_ptr, row_kept_ptr, row_sum_ptr,
                     slice_sum_ptr,
                     tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr, finish_reason_ptr, nfe_ptr, advances_ptr,
                     limit_ptr, prompt_length_ptr, stops_ptr, best_ptr, ids_ptr, slice_key_ptr, verdict_ptr, corrected_ptr,
                     next_ids_ptr, next_positions_ptr, next_slots_ptr,
                     capacity, width, calls, stop_count, stop_length, verifier_rows, block_size, shift, by_row, places, slices,
                     temperature, mask_token_id, next_verifier_rows, next_rows,
                     CUTS: tl.constexpr, NEXT_CUTS: tl.constexpr, SOURCE: tl.constexpr, VERIFIES: tl.constexpr,
                     HAS_NEXT: tl.constexpr, CANDIDATES: tl.constexpr, STOPS: tl.constexpr,
                     FILTERED: tl.constexpr, UNIT: tl.constexpr, SLICE: tl.constexpr):
    """Program (sequence, slice of the row of a draft token), and for each sequence a first one that is `finish`'s.

    The others read the rows that stay open, sizeof(logit) * V bytes each, and write 4 V bytes of log Q for each.
    """
    per_sequence = 1 + width * slices
    i = (tl.program_id(0) // per_sequence).to(tl.int64)
    task = tl.program_id(0) % per_sequence - 1
    if task < 0:
        _finish_sequence(i, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr, finish_reason_ptr, nfe_ptr,
                         advances_ptr, limit_ptr, prompt_length_ptr, stops_ptr, best_ptr, ids_ptr, slice_key_ptr, verdict_ptr,
                         corrected_ptr, next_ids_ptr, next_positions_ptr, next_slots_ptr,
                         capacity, width, calls, stop_count, stop_length, verifier_rows, block_size, shift, by_row, places,
                         slices, temperature, mask_token_id, next_verifier_rows, next_rows,
                         CUTS, NEXT_CUTS, SOURCE, VERIFIES, HAS_NEXT, CANDIDATES, STOPS)
    else:
        _store_log_q(i, task // slices, task % slices, logits_ptr, stride_n, stride_r, vocab_size, finish_reason_ptr, verdict_ptr,
                     draft_log_q_ptr, row_key_ptr, row_kept_ptr, row_sum_ptr, slice_key_ptr, slice_sum_ptr, width, verifier_rows,
                     block_size, shift, by_row, places, slices, temperature, CUTS, VERIFIES, FILTERED, UNIT, SLICE)


@triton.jit(do_not_specialize=["capacity", "width", "block_size", "mask_token_id", "verifier_rows", "rows"])
def pack_rows(tokens_ptr, length_ptr, cache_len_ptr, draft_ptr, draft_len_ptr, capacity, width, block_size, mask_token_id,
              verifier_rows, rows, ids_ptr, positions_ptr, slots_ptr, CUTS: tl.constexpr, SIZE: tl.constexpr):
    """Program (sequence, SIZE rows): reads at most 16 bytes of state a row and writes 12."""
    _write_rows(tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE, tokens_ptr, length_ptr, cache_len_ptr, draft_ptr,
                draft_len_ptr, capacity, width, block_size, mask_token_id, verifier_rows, rows, ids_ptr, positions_ptr, slots_ptr,
                CUTS, SIZE)
