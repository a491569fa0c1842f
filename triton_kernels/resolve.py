"""The resolves as Triton kernels: logits of one call and the state in, the next state out (packed_ss/ops/resolve.py).

    operator            launches: at most one branch cut    more cuts    with top-k or top-p, in turn
    resolve_argmax                1                         1
    resolve_greedy                2                         4
    resolve_coupled               2                         4            3, 6
    resolve_rejection             4                         4            4, 5
    pack_block, uniform_noise     1

Up to one branch, every row whose result h could make a resolve ask for is looked at in the first launch: of the W proposal rows
a - 1 are read for nothing, which costs less than another launch after h is known.  With more branches most rows would be read
for nothing, so h comes first; resolve_rejection has it in any case before it draws the next draft, so it draws what stays open.

Every wrapper is safe to capture: grids and buffers follow from shapes, nothing on the device is read by the host, and only
torch.empty allocates.  Buffers hold whatever they do before a call, and nothing needs them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from packed_ss.ops import checks

from . import commit
from .checks import check_logits, check_on_device
from .launches import Call, Sample, Work
from .philox import DRAFT, TARGET
from .philox import uniform_noise as uniform_noise

_CALL = len(Call._fields)


def resolve_greedy(logits: Tensor, *state: Any) -> None:
    """`packed_ss.ops.resolve.resolve_greedy`: accept while the draft is the argmax, append the argmax, retain the suffix of Z.

    logits [N, rows, V] in float32, bfloat16 or float16, any strides but along V; ``state`` as in `packed_ss.ops.schema`.
    """
    checks.check_resolve_greedy(logits, *state)
    check_logits("resolve_greedy", logits)
    call = Call(*state)
    if not logits.shape[0]:
        return
    work = Work("resolve_greedy", call, len(call.cuts) <= 1, logits)
    best = work.scratch(torch.int64, work.places, work.slices)
    if work.by_row:
        work.argmax(best, call.rows, retained=False)
    else:
        work.argmax(best, call.verifier_rows, retained=False)
        work.judge(commit.ARGMAX, best, best)
        work.argmax(best, work.width, retained=True)
    work.finish(commit.ARGMAX, best, best, best, best)


def resolve_argmax(best: Tensor, ids: Tensor, *state: Any) -> None:
    """`resolve_greedy` from each row's argmax ids [N, rows] int32 and its logit best [N, rows] float32 (`linear_argmax`)."""
    checks.check_resolve_argmax(best, ids, *state)
    check_on_device("resolve_argmax", "best", best)
    if best.dtype != torch.float32:
        raise ValueError(f"resolve_argmax: best must be float32 in Triton kernels, got {best.dtype}.")
    if best.shape[0]:
        best = best.contiguous()
        Work("resolve_argmax", Call(*state), True).finish(commit.GIVEN, best, ids, best, best)


def resolve_coupled(logits: Tensor, *arguments: Any) -> None:
    """`packed_ss.ops.resolve.resolve_coupled`: greedy on perturbed scores, argmax(log p + G) and argmax(log q + G), the same G.

    ``arguments``: state, then seed [N] int64, temperature, top_k and top_p.
    """
    checks.check_resolve_coupled(logits, *arguments)
    call, (seed, temperature, top_k, top_p) = Call(*arguments[:_CALL]), arguments[_CALL:]
    check_logits("resolve_coupled", logits)
    if not logits.shape[0]:
        return
    work = Work("resolve_coupled", call, len(call.cuts) <= 1, logits, temperature)
    sample = Sample(work, seed, TARGET, top_k, top_p, sums=False)
    if work.by_row:
        sample.scan(call.rows, retained=False)
    else:
        sample.scan(call.verifier_rows, retained=False)
        work.judge(commit.COUPLED, sample.drawn, sample.slice_key)
        sample.scan(work.width, retained=True)
    work.finish(commit.COUPLED, sample.drawn, sample.drawn, sample.slice_key, sample.drawn)


def resolve_rejection(logits: Tensor, *arguments: Any) -> None:
    """`packed_ss.ops.resolve.resolve_rejection`: accept with probability min(1, p/Q), correct from [p - Q]+, draft from q.

    ``arguments``: those of `resolve_coupled`, then draft_log_q [N, W, V] float32, which holds log Q of the draft being verified
    and receives that of the next.
    """
    checks.check_resolve_rejection(logits, *arguments)
    call, (seed, temperature, top_k, top_p, draft_log_q) = Call(*arguments[:_CALL]), arguments[_CALL:]
    check_logits("resolve_rejection", logits)
    if not logits.shape[0]:
        return
    filtered = 0 < top_k < logits.shape[2] or top_p < 1.0
    # One launch filters all rows, which takes as long as filtering half of them; slices wait for h.
    by_row = not call.verifier_rows or (filtered and len(call.cuts) <= 1)
    work = Work("resolve_rejection", call, by_row, logits, temperature)
    sample = Sample(work, seed, DRAFT, top_k, top_p, sums=True)
    corrected = work.scratch(torch.int64, 2, work.slices)
    drafts = call.cuts and work.width
    if not call.verifier_rows:
        sample.scan(call.rows, retained=False)
    else:
        sample.scan(call.rows if by_row else call.verifier_rows, retained=False, draws=False)
        sample.correct(draft_log_q, corrected)
        if drafts:
            sample.scan(work.width, retained=True, filters=not by_row)
    if drafts:
        work.store_and_finish(sample, draft_log_q, corrected)
    else:
        work.finish(commit.REJECTION, sample.drawn, sample.drawn, sample.slice_key, corrected)


def pack_block(tokens: Tensor, length: Tensor, cache_len: Tensor, draft: Tensor, draft_len: Tensor, mask_token_id: int,
               verifier_rows: int, block_size: int, cuts: Sequence[int], ids: Tensor, positions: Tensor, slots: Tensor) -> None:
    """`packed_ss.ops.pack.pack_block`: writes ids, positions and slots [N, rows] of the next call from the state."""
    checks.check_pack_block(tokens, length, cache_len, draft, draft_len, mask_token_id, verifier_rows, block_size, cuts, ids,
                            positions, slots)
    check_on_device("pack_block", "tokens", tokens)
    n, rows = ids.shape
    if n:
        commit.pack_rows[(n, triton.cdiv(rows, 128))](
            tokens, length, cache_len, draft, draft_len, tokens.shape[1], block_size - 1, block_size, mask_token_id,
            verifier_rows, rows, ids, positions, slots, CUTS=tuple(cuts), SIZE=128, num_warps=4)
