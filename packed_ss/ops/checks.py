"""What the resolves and pack_block accept: ValueErrors of one sentence, as csrc/resolve_checks.cpp has them.

Each function takes what its operator takes (`packed_ss.ops.schema`) and returns nothing. Shapes, dtypes and settings are looked
at, values on a device are not, so that a check costs no wait and serves tensors without data as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

_LOGITS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MOST_CUTS = 256
_INT16_MAX, _INT32_MAX = 2**15 - 1, 2**31 - 1
_STATE = 21  # operands from `tokens` to `next_slots`


def check_resolve_greedy(logits: Tensor, *state) -> None:
    """Refuses what `resolve_greedy` does not accept."""
    check_logits("resolve_greedy", logits)
    _check_state("resolve_greedy", "logits", logits, *state)


def check_resolve_argmax(best: Tensor, ids: Tensor, *state) -> None:
    """Refuses what `resolve_argmax` does not accept."""
    op = "resolve_argmax"
    if best.dtype not in (torch.float32, torch.float64) or best.dim() != 2:
        raise ValueError(f"{op}: best must be float32 or float64 [N, rows], {got(best)}.")
    check_tensor(op, best.device, "ids", ids, torch.int32, best.shape, "[N, rows] as in best")
    _check_state(op, "best", best, *state)


def check_resolve_coupled(logits: Tensor, *arguments) -> None:
    """Refuses what `resolve_coupled` does not accept."""
    check_logits("resolve_coupled", logits)
    _check_state("resolve_coupled", "logits", logits, *arguments[:_STATE])
    check_sampling("resolve_coupled", logits, *arguments[_STATE:])


def check_resolve_match(logits: Tensor, *arguments) -> None:
    """Refuses what `resolve_match` does not accept."""
    check_logits("resolve_match", logits)
    _check_state("resolve_match", "logits", logits, *arguments[:_STATE])
    check_sampling("resolve_match", logits, *arguments[_STATE:])


def check_resolve_rejection(logits: Tensor, *arguments) -> None:
    """Refuses what `resolve_rejection` does not accept."""
    op, (*sampling, draft_log_q) = "resolve_rejection", arguments[_STATE:]
    check_logits(op, logits)
    width = _check_state(op, "logits", logits, *arguments[:_STATE])
    check_sampling(op, logits, *sampling)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    shape = (logits.shape[0], width, logits.shape[2])
    check_tensor(op, logits.device, "draft_log_q", draft_log_q, dtype, shape, "[N, W, V]")


def check_pack_block(
    tokens: Tensor,
    length: Tensor,
    cache_len: Tensor,
    draft: Tensor,
    draft_len: Tensor,
    mask_token_id: int,
    verifier_rows: int,
    block_size: int,
    cuts: Sequence[int],
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
) -> None:
    """Refuses what `pack_block` does not accept."""
    op, device = "pack_block", tokens.device
    check_matrix(op, device, "tokens", tokens, None, "[N, T]")
    n = tokens.shape[0]
    rows = _check_shape(op, "", verifier_rows, block_size, cuts, 0)
    check_numbers(op, device, n, length=length, cache_len=cache_len, draft_len=draft_len)
    check_tensor(op, device, "draft", draft, torch.int32, (n, block_size - 1), "[N, W]")
    check_rows(op, device, "", (n, rows), mask_token_id, ids, positions, slots)


def check_logits(op: str, logits: Tensor) -> None:
    if logits.dtype not in _LOGITS:
        raise ValueError(f"{op}: logits must be float32, bfloat16, float16 or float64, got {_name(logits.dtype)}.")
    if logits.dim() != 3 or not 1 <= logits.shape[2] <= _INT32_MAX:
        raise ValueError(f"{op}: logits must be [N, rows, V] with V in 1 ... 2^31 - 1, got {list(logits.shape)}.")
    if logits.stride(2) != 1 and logits.shape[2] != 1:
        raise ValueError(f"{op}: logits must be contiguous along the vocabulary, got strides {list(logits.stride())}.")


def _check_state(
    op: str,
    source: str,
    results: Tensor,
    tokens: Tensor,
    length: Tensor,
    cache_len: Tensor,
    draft: Tensor,
    draft_len: Tensor,
    finish_reason: Tensor,
    nfe: Tensor,
    advances: Tensor,
    limit: Tensor,
    prompt_length: Tensor,
    stops: Tensor,
    verifier_rows: int,
    block_size: int,
    cuts: Sequence[int],
    shift: int,
    mask_token_id: int,
    next_verifier_rows: int,
    next_cuts: Sequence[int],
    next_ids: Tensor | None,
    next_positions: Tensor | None,
    next_slots: Tensor | None,
) -> int:
    """W.  ``results`` [N, rows, ...] are logits, or what stands for them, called ``source``."""
    n, device = results.shape[0], results.device
    rows = _check_shape(op, "", verifier_rows, block_size, cuts, shift)
    if results.shape[1] != rows:
        raise ValueError(
            f"{op}: {source} must have verifier_rows + len(cuts) * block_size = {rows} rows, got {list(results.shape)}."
        )
    check_matrix(op, device, "tokens", tokens, n, f"[N, T] with N as in {source}")
    check_tensor(op, device, "draft", draft, torch.int32, (n, block_size - 1), "[N, W]")
    check_numbers(
        op,
        device,
        n,
        length=length,
        cache_len=cache_len,
        draft_len=draft_len,
        finish_reason=finish_reason,
        nfe=nfe,
        limit=limit,
        prompt_length=prompt_length,
    )
    check_matrix(op, device, "advances", advances, n, f"[N, calls] with N as in {source}")
    check_matrix(op, device, "stops", stops, None, "[S, M] with M >= 1")
    buffers = next_ids, next_positions, next_slots
    if any(buffer is not None for buffer in buffers):
        if not all(buffer is not None for buffer in buffers):
            raise ValueError(f"{op}: next_ids, next_positions and next_slots must be given together or not at all.")
        rows = _check_shape(op, "next_", next_verifier_rows, block_size, next_cuts, 0)
        check_rows(op, device, "next_", (n, rows), mask_token_id, *buffers)
    return block_size - 1


def check_sampling(op: str, logits: Tensor, seed: Tensor, temperature: float, top_k: int, top_p: float) -> None:
    check_tensor(op, logits.device, "seed", seed, torch.int64, (logits.shape[0],), "[N]")
    if not 2.0**-150 < temperature < 2.0**128 - 2.0**103:  # between them, float32 rounds to neither 0 nor infinity
        raise ValueError(f"{op}: temperature must be a float32 number above 0 and finite, got {temperature}.")
    if top_k < 0:
        raise ValueError(f"{op}: top_k must be 0 (every token) or more, got {top_k}.")
    if not 0 < top_p <= 1:
        raise ValueError(f"{op}: top_p must be in (0, 1], got {top_p}.")


def _check_shape(op: str, prefix: str, verifier_rows: int, block_size: int, cuts: Sequence[int], shift: int) -> int:
    """The rows of a call."""
    if not 1 <= block_size <= _INT16_MAX:
        raise ValueError(f"{op}: block_size must be in 1 ... {_INT16_MAX}, got {block_size}.")
    if not 0 <= verifier_rows <= block_size:
        raise ValueError(f"{op}: {prefix}verifier_rows must be in 0 ... block_size = {block_size}, got {verifier_rows}.")
    if shift not in (0, 1):
        raise ValueError(f"{op}: shift must be 0 or 1, got {shift}.")
    inside = cuts[0] == 0 and cuts[-1] < block_size if cuts else verifier_rows > 0
    if not inside or len(cuts) > _MOST_CUTS or any(low >= high for low, high in pairwise(cuts)):
        raise ValueError(
            f"{op}: {prefix}cuts must ascend from 0, below block_size = {block_size}, {_MOST_CUTS} at most, "
            f"and none only with verifier rows, got {list(cuts)}."
        )
    return verifier_rows + len(cuts) * block_size


def check_rows(
    op: str,
    device: torch.device,
    prefix: str,
    shape: tuple[int, int],
    mask_token_id: int,
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
) -> None:
    if not 0 <= mask_token_id <= _INT32_MAX:
        raise ValueError(f"{op}: mask_token_id must be in 0 ... 2^31 - 1, got {mask_token_id}.")
    for name, buffer in (("ids", ids), ("positions", positions), ("slots", slots)):
        check_tensor(op, device, prefix + name, buffer, torch.int32, shape, "[N, rows]")


def check_numbers(op: str, device: torch.device, n: int, **numbers: Tensor) -> None:
    """One int32 for each sequence."""
    for name, tensor in numbers.items():
        check_tensor(op, device, name, tensor, torch.int32, (n,), "[N]")


def check_tensor(
    op: str, device: torch.device, name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], meaning: str
) -> None:
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous() or tensor.device != device:
        raise ValueError(f"{op}: {name} must be contiguous {_name(dtype)} {meaning} = {list(shape)} on {device}, {got(tensor)}.")


def check_matrix(op: str, device: torch.device, name: str, tensor: Tensor, rows: int | None, meaning: str) -> None:
    """The same of an int32 matrix with any number of columns but 0, and of rows where ``rows`` is None."""
    fits = tensor.dim() == 2 and rows in (None, tensor.shape[0]) and tensor.shape[1] >= 1
    if not fits or tensor.dtype != torch.int32 or not tensor.is_contiguous() or tensor.device != device:
        raise ValueError(f"{op}: {name} must be contiguous int32 {meaning} on {device}, {got(tensor)}.")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def got(tensor: Tensor) -> str:
    gap = "" if tensor.is_contiguous() else "non-contiguous "
    return f"got {gap}{_name(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"
