"""Top-k and top-p: the smallest score that is kept of a row, without sorting it.

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

from .philox import to_gumbel, uniform_tile
from .scores import INF, NAN, NOTHING, SIGN, exp_of_negative, is_finite, key_score, log, order_key, scaled
from .statistics import best_of

#: Steps whose tokens are asked for before they are needed: a program alone has too little work to wait for memory.
AHEAD = tl.constexpr(4)


@triton.jit
def _row_scores(row_ptr, start, vocab_size, maximum, temperature, SIZE: tl.constexpr):
    """(ids, scores float32) of SIZE tokens of the row; -inf past the end."""
    ids = start + tl.arange(0, SIZE)
    x = tl.load(row_ptr + ids, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
    return ids, scaled(x, maximum, temperature)


@triton.jit
def _scores(set_ptr, row_ptr, collected, start, count, maximum, temperature, SIZE: tl.constexpr):
    """(scores float32, whether they exist) of SIZE tokens that are searched: those collected, or the row's."""
    at = start + tl.arange(0, SIZE)
    exists = at < count
    held = tl.load(set_ptr + at, mask=exists & collected, other=-float("inf"))
    x = tl.load(row_ptr + at, mask=exists & (collected == 0), other=-float("inf")).to(tl.float32)
    return tl.where(collected, held, scaled(x, maximum, temperature)), exists


@triton.jit
def _masses(score, counts, unit):
    """exp(score) as int64 in fixed point, ``unit`` for 1; 0 where it does not count."""
    return tl.where(counts, (exp_of_negative(score) * unit).to(tl.int64), 0)


@triton.jit
def _total(set_ptr, row_ptr, collected, count, kept, maximum, temperature, unit, SIZE: tl.constexpr):
    """Mass of the tokens that score at least ``kept``."""
    total = tl.full([], 0, tl.int64)
    for start in tl.range(0, count, SIZE, num_stages=AHEAD):
        score, exists = _scores(set_ptr, row_ptr, collected, start, count, maximum, temperature, SIZE)
        total += tl.sum(_masses(score, exists & (score >= kept), unit), 0)
    return total


@triton.jit
def _highest(set_ptr, row_ptr, collected, count, kept, target, maximum, temperature, unit, MASS: tl.constexpr,
             SIZE: tl.constexpr):
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
            score, exists = _scores(set_ptr, row_ptr, collected, start, count, maximum, temperature, SIZE)
            magnitude = score.to(tl.int32, bitcast=True) & 0x7FFFFFFF
            weight = _masses(score, exists & (score >= kept), unit) if MASS else exists.to(tl.int32)
            weights += tl.sum(tl.where(magnitude[:, None] <= upper[None, :], weight[:, None], 0), 0)
        digit = tl.sum((weights < target).to(tl.int32), 0)
        found = found | (digit.to(tl.int64) << shift)
    magnitude = tl.minimum(found, INF).to(tl.int32)
    return tl.where(magnitude == 0, 0, magnitude | SIGN).to(tl.float32, bitcast=True)


@triton.jit
def _narrowed(row_ptr, vocab_size, lower, upper, top_p, maximum, temperature, WIDTH: tl.constexpr):
    """A bracket of about a quarter of [lower, upper), scores from which up the mass is more, and less, than top_p of all."""
    quarter = (tl.minimum(upper, 0.0) - lower) * 0.25
    total = tl.zeros([WIDTH], tl.float32)
    low = tl.zeros([WIDTH], tl.float32)
    middle = tl.zeros([WIDTH], tl.float32)
    high = tl.zeros([WIDTH], tl.float32)
    for start in tl.range(0, vocab_size, WIDTH, num_stages=AHEAD):
        _ids, score = _row_scores(row_ptr, start, vocab_size, maximum, temperature, WIDTH)
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
def _collect(row_ptr, set_ptr, vocab_size, lower, upper, maximum, temperature, unit, ROOM: tl.constexpr, WIDTH: tl.constexpr):
    """Puts the scores in [lower, upper) together, as far as there is room; (their number, mass above, mass of the row)."""
    count = tl.full([], 0, tl.int32)
    above = tl.full([], 0, tl.int64)
    total = tl.full([], 0, tl.int64)
    for start in tl.range(0, vocab_size, WIDTH, num_stages=AHEAD):
        ids, score = _row_scores(row_ptr, start, vocab_size, maximum, temperature, WIDTH)
        taken = ((ids < vocab_size) & (score >= lower) & (score < upper)).to(tl.int32)
        found = tl.sum(taken, 0)
        if found > 0:
            at = count + tl.cumsum(taken, 0) - 1
            tl.store(set_ptr + at, score, mask=(taken != 0) & (at < ROOM))
        count += found
        mass = _masses(score, ids < vocab_size, unit)
        total += tl.sum(mass, 0)
        above += tl.sum(tl.where(score >= upper, mass, 0), 0)
    return count, above, total


@triton.jit
def filter_row(row_ptr, set_ptr, vocab_size, temperature, by_k, by_p, top_k, top_p, unit,
               ROOM: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """(key of the largest logit, smallest score that is kept, sum of exp(score) over what is) of the row that row_ptr points to.

    by_k and by_p: which filters there are, one at the least.  set_ptr: room for ROOM and for GROUPS scores.
    """
    lane = tl.arange(0, WIDTH)
    tops = tl.full([WIDTH], -float("inf"), tl.float32)
    for start in tl.range(0, vocab_size, WIDTH, num_stages=AHEAD):
        x = tl.load(row_ptr + start + lane, mask=start + lane < vocab_size, other=-float("inf")).to(tl.float32)
        tops = tl.maximum(tops, tl.where(x == x, x, float("inf")))
    key = order_key(tl.max(tops, 0))
    kept = tl.full([], -float("inf"), tl.float32)
    mass = tl.full([], 0, tl.int64)
    if is_finite(key):
        maximum = key_score(key)
        lower = kept
        upper = -kept
        tries = tl.full([], 0, tl.int32)
        if by_k:
            tries += 3  # nothing to narrow
            if top_k <= GROUPS:
                groups = tl.max(tl.reshape(tops, (WIDTH // GROUPS, GROUPS)), 0)
                tl.store(set_ptr + tl.arange(0, GROUPS), scaled(groups, maximum, temperature))
                tl.debug_barrier()
                lower = _highest(set_ptr, row_ptr, by_k, GROUPS, kept, top_k, maximum, temperature, unit, False, SIZE)
                tl.debug_barrier()
        else:
            # Tokens below would have less than 1 - top_p of mass 1, which the largest alone has; 0.01 is for rounding.
            lower = log(((1.0 - tl.maximum(top_p, 0.0)) / vocab_size).to(tl.float32)) - 0.01
        count = tl.full([], ROOM + 1, tl.int32)
        above, total = mass, mass
        while (count > ROOM) & (tries < 4):
            if (by_k == 0) & ((tries > 0) | (vocab_size > ROOM)):
                lower, upper = _narrowed(row_ptr, vocab_size, lower, upper, top_p.to(tl.float32), maximum, temperature, WIDTH)
            count, above, total = _collect(row_ptr, set_ptr, vocab_size, lower, upper, maximum, temperature, unit, ROOM, WIDTH)
            tries += 1
        tl.debug_barrier()
        collected = count <= ROOM
        searched = tl.where(collected, count, vocab_size)
        if by_k:
            kept = _highest(set_ptr, row_ptr, collected, searched, kept, top_k, maximum, temperature, unit, False, SIZE)
        mass = _total(set_ptr, row_ptr, collected, searched, kept, maximum, temperature, unit, SIZE)
        if by_p:
            if by_k:
                total = mass
            share = tl.maximum(tl.ceil(top_p * total.to(tl.float64)).to(tl.int64), 1)
            if (above >= share) | (share > above + mass):  # the bracket is wrong
                collected = by_k & collected
                searched = tl.where(collected, searched, vocab_size)
                above = tl.where(by_k, above, 0)
            kept = _highest(set_ptr, row_ptr, collected, searched, kept, share - above, maximum, temperature, unit, True, SIZE)
            mass = above + _total(set_ptr, row_ptr, collected, searched, kept, maximum, temperature, unit, SIZE)
    return key, kept, mass.to(tl.float32) / unit


@triton.jit
def draw_filtered(row_ptr, vocab_size, key, kept, temperature, seed, position, stream, WIDTH: tl.constexpr):
    """The packed argmax of score + G over the scores of a row that are kept; the scores relative to the row's maximum."""
    best = tl.full([], NOTHING, tl.int64)
    if is_finite(key):
        for start in tl.range(0, vocab_size, WIDTH, num_stages=AHEAD):
            ids, score = _row_scores(row_ptr, start, vocab_size, key_score(key), temperature, WIDTH)
            score = tl.where(score < kept, -float("inf"), score)
            if tl.max(score, 0) > -float("inf"):  # few hold a token that filters have left
                best = tl.maximum(best, best_of(score + to_gumbel(uniform_tile(seed, position, start, stream, WIDTH)), ids))
    return best
