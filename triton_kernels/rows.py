"""Which rows of a call a program is about, for the kernels of the resolves and of the rows of the ordered layout.

A launch has one program for each sequence, row and *slice* of the vocabulary.  Its rows are either fixed, every row of the call
that h could make a resolve ask for, or *retained*: those of the branch that h has chosen.  A row's results lie at its *place*
among the ``places`` of its sequence: the row itself where every row has one (``by_row``), else the verifier row, or v + j for the
row of draft token j.
"""

from __future__ import annotations

import triton
import triton.language as tl

RUNNING = tl.constexpr(0)
#: Of a verdict: the sequence goes on, its row h has no finite maximum, or it had finished before.
GOES_ON = tl.constexpr(0)
FAILED = tl.constexpr(1)
FINISHED = tl.constexpr(2)


@triton.jit
def task_of_program(rows, slices):
    """(sequence as int64, row among ``rows``, slice) of this program; slices of a row are neighbours."""
    program = tl.program_id(0)
    pair = program // slices
    return (pair // rows).to(tl.int64), pair % rows, program % slices


@triton.jit
def verified_drafts(draft_len_ptr, i, verifier_rows):
    """min(|D|, v - 1): rows 0 ... that of them may be consulted; -1 without verifier rows."""
    return tl.minimum(tl.maximum(tl.load(draft_len_ptr + i), 0), verifier_rows - 1)


@triton.jit
def retained_rows(h, verifier_rows, block_size, shift, CUTS: tl.constexpr):
    """(first row, number of rows) that propose the next draft after an advance of h + 1.

    The branch with the largest cut c <= h, and in it the rows of the positions still open: W - 1 - (h - c), one more in the first
    call, whose region starts later.
    """
    branch = h * 0
    cut = h * 0
    for k in tl.static_range(1, len(CUTS)):
        branch = tl.where(CUTS[k] <= h, k, branch)
        cut = tl.where(CUTS[k] <= h, CUTS[k], cut)
    inside = h - cut + 2 - shift
    return verifier_rows + branch * block_size + inside, tl.maximum(block_size - inside, 0)


@triton.jit
def locate(i, slot, finish_reason_ptr, length_ptr, draft_len_ptr, verdict_ptr, verifier_rows, block_size, shift, by_row,
           CUTS: tl.constexpr, RETAINED: tl.constexpr):
    """(whether anybody will ask for it, row, position, place) of the row in ``slot`` of a launch.

    ``position``: the absolute index of the token that the row predicts.  Slots of a launch of fixed rows are the rows of the
    call, all of them or the verifier's alone; of a call with several branches, only the latter.
    """
    n = tl.load(length_ptr + i)
    wanted = tl.load(finish_reason_ptr + i) == RUNNING
    if RETAINED:
        h = tl.load(verdict_ptr + 2 * i)
        first, count = retained_rows(h, verifier_rows, block_size, shift, CUTS)
        wanted = wanted & (tl.load(verdict_ptr + 2 * i + 1) == GOES_ON) & (slot < count)
        row = first + slot
        position = n + h + 1 + slot
        place = tl.where(by_row != 0, row, verifier_rows + slot)
    else:
        drafts = verified_drafts(draft_len_ptr, i, verifier_rows)
        inside = slot - verifier_rows
        # The first row of a region has no use; after an advance of at least one, neither has the one that predicts n.
        skipped = tl.where(verifier_rows > 0, 2 - shift, 1)
        wanted = wanted & tl.where(inside < 0, slot <= drafts, inside >= skipped)
        row = slot
        position = n + tl.where(inside < 0, slot, tl.where(verifier_rows > 0, inside + shift, inside) - 1)
        place = slot
    return wanted, row, position, place


@triton.jit
def listed(i, rank, rows_ptr, positions_ptr, width, most):
    """(whether it is asked for, row, position) of the row of a rank in the ordered layout, from tables on the device.

    rows_ptr: [N, 2], the first row and how many; positions_ptr: [N, width], what each predicts; most: rows of a sequence.
    """
    row = tl.load(rows_ptr + 2 * i) + rank
    wanted = rank < tl.load(rows_ptr + 2 * i + 1)
    position = tl.load(positions_ptr + i * width + rank)
    return wanted, tl.maximum(tl.minimum(row, most - 1), 0), tl.maximum(position, 0)


@triton.jit
def load_slice(logits_ptr, stride_n, stride_r, i, row, split, vocab_size, SLICE: tl.constexpr):
    """(ids int32, logits float32) of a slice of a row; -inf past the end."""
    ids = split * SLICE + tl.arange(0, SLICE)
    x = tl.load(logits_ptr + i * stride_n + row.to(tl.int64) * stride_r + ids, mask=ids < vocab_size, other=-float("inf"))
    return ids, x.to(tl.float32)
