"""Top-k and top-p: the smallest score that is kept of each row, without sorting it.

Both ask for the same thing, the lowest score such that what stands above it weighs less than a target: in numbers of tokens less
than k; in mass less than top_p of all.  Equally, it is the highest score from which up the weight reaches the target.  A search
finds it three bits at a time, in a fixed number of passes.  Weights are integers, masses in fixed point, so that no order of
additions changes a bit; ties share a score and are kept or left together.

Few tokens are searched: those in a bracket around the score in question, which are collected if there is room for them.  For
top-k its lower end is the k-th largest of the maxima of groups of tokens.  For top-p it starts where the tokens of the whole
vocabulary could not make up 1 - top_p, and sums at three scores in it narrow it down, more than once if need be.  Sums of float32
are good enough for that, since the masses above and inside the bracket say whether it is right; if not, or if there is no room,
the whole row is searched.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rows import locate, task_of_program
from .scores import INF, NAN, SIGN, exp_of_negative, is_finite, key_score, log, order_key, scaled

#: Steps whose tokens are asked for before they are needed: a program alone has too little work to wait for memory.
AHEAD = tl.constexpr(4)


@triton.jit
def _scores(set_ptr, start, count, maximum, temperature, FROM_LOGITS: tl.constexpr, UNIT: tl.constexpr, SIZE: tl.constexpr):
    """(scores float32, whether they exist) of SIZE tokens of a set: a buffer of scores, or the logits of the row."""
    at = start + tl.arange(0, SIZE)
    score = tl.load(set_ptr + at, mask=at < count, other=-float("inf")).to(tl.float32)
    if FROM_LOGITS:
        score = scaled(score, maximum, temperature, UNIT)
    return score, at < count


@triton.jit
def _masses(score, counts, whole):
    """exp(score) as int64 in fixed point, ``whole`` for 1; 0 where it does not count."""
    return tl.where(counts, (exp_of_negative(score) * whole).to(tl.int64), 0)


@triton.jit
def _total(set_ptr, count, kept, maximum, temperature, whole, FROM_LOGITS: tl.constexpr, UNIT: tl.constexpr, SIZE: tl.constexpr):
    """Mass of the tokens of a set that score at least ``kept``."""
    total = tl.full([], 0, tl.int64)
    for start in tl.range(0, count, SIZE, num_stages=AHEAD):
        score, exists = _scores(set_ptr, start, count, maximum, temperature, FROM_LOGITS, UNIT, SIZE)
        total += tl.sum(_masses(score, exists & (score >= kept), whole), 0)
    return total


@triton.jit
def _highest(set_ptr, count, kept, target, maximum, temperature, whole,
             MASS: tl.constexpr, FROM_LOGITS: tl.constexpr, UNIT: tl.constexpr, SIZE: tl.constexpr):
    """The highest score from which up the tokens that score at least ``kept`` weigh ``target``, which is at least 1.

    Scores are at most 0, so that the bits of their magnitudes have the reverse order.  Found is the smallest magnitude up to
    which the weight reaches the target, from its highest bits on.
    """
    digits = tl.arange(0, 8).to(tl.int64)
    found = tl.full([], 0, tl.int64)
    for step in range(11):
        shift = 30 - 3 * step
        upper = found | (digits << shift) | ((tl.full([], 1, tl.int64) << shift) - 1)
        upper = tl.minimum(upper, NAN).to(tl.int32)  # of the first digit only two values are magnitudes
        weights = tl.zeros([8], tl.int64 if MASS else tl.int32)
        for start in tl.range(0, count, SIZE, num_stages=AHEAD):
            score, exists = _scores(set_ptr, start, count, maximum, temperature, FROM_LOGITS, UNIT, SIZE)
            magnitude = score.to(tl.int32, bitcast=True) & 0x7FFFFFFF
            weight = _masses(score, exists & (score >= kept), whole) if MASS else exists.to(tl.int32)
            weights += tl.sum(tl.where(magnitude[:, None] <= upper[None, :], weight[:, None], 0), 0)
        digit = tl.sum((weights < target).to(tl.int32), 0)
        found = found | (digit.to(tl.int64) << shift)
    magnitude = tl.minimum(found, INF).to(tl.int32)
    return tl.where(magnitude == 0, 0, magnitude | SIGN).to(tl.float32, bitcast=True)


@triton.jit
def _narrowed(logits_ptr, vocab_size, lower, upper, top_p, maximum, temperature, UNIT: tl.constexpr, WIDTH: tl.constexpr):
    """A bracket of about a quarter of [lower, upper), scores from which up the mass is more, and less, than top_p of all."""
    quarter = (tl.minimum(upper, 0.0) - lower) * 0.25
    total = tl.zeros([WIDTH], tl.float32)
    low = tl.zeros([WIDTH], tl.float32)
    middle = tl.zeros([WIDTH], tl.float32)
    high = tl.zeros([WIDTH], tl.float32)
    for start in tl.range(0, vocab_size, WIDTH, num_stages=AHEAD):
        score, _exists = _scores(logits_ptr, start, vocab_size, maximum, temperature, True, UNIT, WIDTH)
        mass = tl.exp(score)
        total += mass
        low += tl.where(score >= lower + quarter, mass, 0.0)
        middle += tl.where(score >= lower + 2.0 * quarter, mass, 0.0)
        high += tl.where(score >= lower + 3.0 * quarter, mass, 0.0)
    target = top_p * tl.sum(total, 0)
    from_low, from_middle, from_high = tl.sum(low, 0), tl.sum(middle, 0), tl.sum(high, 0)
    # What float32 leaves in doubt stays inside.
    most = target * 1.0001
    more = (from_low >= most).to(tl.int32) + (from_middle >= most).to(tl.int32) + (from_high >= most).to(tl.int32)
    least = target * 0.9999
    less = (from_low < least).to(tl.int32) + (from_middle < least).to(tl.int32) + (from_high < least).to(tl.int32)
    return lower + more.to(tl.float32) * quarter, tl.where(less > 0, lower + (4 - less).to(tl.float32) * quarter, upper)


@triton.jit
def _collect(logits_ptr, set_ptr, vocab_size, lower, upper, maximum, temperature, whole, MASS: tl.constexpr, UNIT: tl.constexpr,
             ROOM: tl.constexpr, WIDTH: tl.constexpr):
    """Puts the scores in [lower, upper) together, as far as there is room.

    Returns their number, and with MASS the masses above and of the whole row.
    """
    count = tl.full([], 0, tl.int32)
    above = tl.full([], 0, tl.int64)
    total = tl.full([], 0, tl.int64)
    for start in tl.range(0, vocab_size, WIDTH, num_stages=AHEAD):
        score, exists = _scores(logits_ptr, start, vocab_size, maximum, temperature, True, UNIT, WIDTH)
        taken = (exists & (score >= lower) & (score < upper)).to(tl.int32)
        found = tl.sum(taken, 0)
        if found > 0:
            at = count + tl.cumsum(taken, 0) - 1
            tl.store(set_ptr + at, score, mask=(taken != 0) & (at < ROOM))
        count += found
        if MASS:
            mass = _masses(score, exists, whole)
            total += tl.sum(mass, 0)
            above += tl.sum(tl.where(score >= upper, mass, 0), 0)
    return count, above, total


@triton.jit
def _share(total, top_p_high, top_p_low):
    """ceil(top_p * total), at least 1; top_p is the sum of two float32 numbers, which has as many digits as float64 keeps."""
    share = (tl.full([], 0.0, tl.float64) + top_p_high + top_p_low) * total.to(tl.float64)
    return tl.maximum(tl.ceil(share).to(tl.int64), 1)


@triton.jit
def _top_k(set_ptr, count, maximum, temperature, whole, top_k, top_p_high, top_p_low,
           TOP_P: tl.constexpr, FROM_LOGITS: tl.constexpr, UNIT: tl.constexpr, SIZE: tl.constexpr):
    """(smallest score that is kept, mass of all that are) by top-k and then top-p, in a set that has them."""
    kept = _highest(set_ptr, count, -float("inf"), tl.full([], 0, tl.int64) + top_k, maximum, temperature, whole, False,
                    FROM_LOGITS, UNIT, SIZE)
    total = _total(set_ptr, count, kept, maximum, temperature, whole, FROM_LOGITS, UNIT, SIZE)
    if TOP_P:
        kept = _highest(set_ptr, count, kept, _share(total, top_p_high, top_p_low), maximum, temperature, whole, True,
                        FROM_LOGITS, UNIT, SIZE)
        total = _total(set_ptr, count, kept, maximum, temperature, whole, FROM_LOGITS, UNIT, SIZE)
    return kept, total


@triton.jit
def filter_row(logits_ptr, at_row, vocab_size, row_key_ptr, row_kept_ptr, row_sum_ptr, groups_ptr, set_ptr,
               temperature, top_k, top_p_high, top_p_low, whole,
               TOP_K: tl.constexpr, TOP_P: tl.constexpr, UNIT: tl.constexpr,
               ROOM: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Writes the statistics of the row of logits that logits_ptr points to, at ``at_row`` (see `filter_rows`)."""
    program = tl.program_id(0).to(tl.int64)
    groups_ptr += program * GROUPS
    set_ptr += program * ROOM
    lane = tl.arange(0, WIDTH)
    tops = tl.full([WIDTH], -float("inf"), tl.float32)
    for start in tl.range(0, vocab_size, WIDTH, num_stages=AHEAD):
        x = tl.load(logits_ptr + start + lane, mask=start + lane < vocab_size, other=-float("inf")).to(tl.float32)
        tops = tl.maximum(tops, tl.where(x == x, x, float("inf")))
    key = order_key(tl.max(tops, 0))
    tl.store(row_key_ptr + at_row, key)
    if is_finite(key):
        maximum = key_score(key)
        kept = tl.full([], -float("inf"), tl.float32)
        mass = tl.full([], 0, tl.int64)
        lower = kept
        upper = -kept
        if TOP_K:
            if top_k <= GROUPS:
                groups = tl.max(tl.reshape(tops, (WIDTH // GROUPS, GROUPS)), 0)
                tl.store(groups_ptr + tl.arange(0, GROUPS), scaled(groups, maximum, temperature, UNIT))
                tl.debug_barrier()
                lower = _highest(groups_ptr, GROUPS, kept, mass + top_k, maximum, temperature, whole, False, False, UNIT,
                                 SIZE)
            count, above, total = _collect(logits_ptr, set_ptr, vocab_size, lower, upper, maximum, temperature, whole, False,
                                           UNIT, ROOM, WIDTH)
            tl.debug_barrier()
            if count <= ROOM:
                kept, mass = _top_k(set_ptr, count, maximum, temperature, whole, top_k, top_p_high, top_p_low, TOP_P, False,
                                    UNIT, SIZE)
            else:
                kept, mass = _top_k(logits_ptr, vocab_size, maximum, temperature, whole, top_k, top_p_high, top_p_low, TOP_P,
                                    True, UNIT, SIZE)
        else:
            # Tokens below would have less than 1 - top_p of mass 1, which the largest alone has; 0.01 is for rounding.
            lower = log(((1.0 - top_p_high) - top_p_low) / vocab_size) - 0.01
            count = tl.full([], ROOM + 1, tl.int32)
            above, total = mass, mass
            tries = tl.full([], 0, tl.int32)
            while (count > ROOM) & (tries < 4):
                if (tries > 0) | (vocab_size > ROOM):
                    lower, upper = _narrowed(logits_ptr, vocab_size, lower, upper, top_p_high, maximum, temperature, UNIT,
                                             WIDTH)
                count, above, total = _collect(logits_ptr, set_ptr, vocab_size, lower, upper, maximum, temperature, whole,
                                               True, UNIT, ROOM, WIDTH)
                tries += 1
            tl.debug_barrier()
            share = _share(total, top_p_high, top_p_low)
            found = mass
            if count <= ROOM:
                found = _total(set_ptr, count, kept, maximum, temperature, whole, False, UNIT, SIZE)
            if (above < share) & (share <= above + found):
                kept = _highest(set_ptr, count, kept, share - above, maximum, temperature, whole, True, False, UNIT, SIZE)
                mass = above + _total(set_ptr, count, kept, maximum, temperature, whole, False, UNIT, SIZE)
            else:
                kept = _highest(logits_ptr, vocab_size, kept, share, maximum, temperature, whole, True, True, UNIT, SIZE)
                mass = _total(logits_ptr, vocab_size, kept, maximum, temperature, whole, True, UNIT, WIDTH)
        tl.store(row_kept_ptr + at_row, kept)
        tl.store(row_sum_ptr + at_row, mass.to(tl.float32) / whole)


@triton.jit(do_not_specialize=["verifier_rows", "block_size", "shift", "by_row", "rows", "places", "top_k"])
def filter_rows(logits_ptr, stride_n, stride_r, vocab_size, finish_reason_ptr, length_ptr, draft_len_ptr, verdict_ptr,
                row_key_ptr, row_kept_ptr, row_sum_ptr, groups_ptr, set_ptr,
                verifier_rows, block_size, shift, by_row, rows, places, temperature, top_k, top_p_high, top_p_low, whole,
                CUTS: tl.constexpr, RETAINED: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr, UNIT: tl.constexpr,
                ROOM: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """Program (sequence, row).

    Reads every row that may be asked for, sizeof(logit) * V bytes, two or three times, mostly from the L2 cache (a dozen times
    more if its bracket has no room), and writes 12 bytes of statistics [N, places]: the key of the largest logit, the smallest
    score that is kept, and the sum of exp(score) over what is.  groups [programs, GROUPS] and set [programs, ROOM] are scratch.
    """
    i, slot, _split = task_of_program(rows, 1)
    wanted, row, _position, place = locate(i, slot, finish_reason_ptr, length_ptr, draft_len_ptr, verdict_ptr, verifier_rows,
                                           block_size, shift, by_row, CUTS, RETAINED)
    if wanted:
        filter_row(logits_ptr + i * stride_n + row.to(tl.int64) * stride_r, i * places + place, vocab_size, row_key_ptr,
                   row_kept_ptr, row_sum_ptr, groups_ptr, set_ptr, temperature, top_k, top_p_high, top_p_low, whole,
                   TOP_K, TOP_P, UNIT, ROOM, GROUPS, WIDTH, SIZE)
