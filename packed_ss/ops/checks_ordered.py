"""What the operators of the ordered layout accept: ValueErrors of one sentence, as csrc/ordered_checks.cpp has them.

Each function takes what its operator takes (`packed_ss.ops.schema`) and returns nothing; values on a device are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .checks import check_logits, check_matrix, check_numbers, check_rows, check_sampling, check_tensor, got

_MOST_WINDOW = 1024
_STATE = 17  # operands from `tokens` to `retained`


def check_argmax_rows(logits: Tensor, probability: bool) -> None:
    """Refuses what `argmax_rows` does not accept."""
    check_logits("argmax_rows", logits)


def check_draw_rows(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    seed: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    stream: int,
    ids: Tensor,
    log_q: Tensor | None,
) -> None:
    """Refuses what `draw_rows` does not accept."""
    op = "draw_rows"
    width = _check_chosen(op, logits, rows, positions, seed, temperature, top_k, top_p)
    if stream not in (0, 2):
        raise ValueError(f"{op}: stream must be 0 (DRAFT) or 2 (TARGET), got {stream}.")
    check_tensor(op, logits.device, "ids", ids, torch.int32, positions.shape, "[N, W] as in positions")
    if log_q is not None:
        _check_log_q(op, logits, "log_q", log_q, width)


def check_verify_rows(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    seed: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    draft: Tensor,
    draft_log_q: Tensor,
) -> None:
    """Refuses what `verify_rows` does not accept."""
    op = "verify_rows"
    width = _check_chosen(op, logits, rows, positions, seed, temperature, top_k, top_p)
    check_tensor(op, logits.device, "draft", draft, torch.int32, positions.shape, "[N, W] as in positions")
    _check_log_q(op, logits, "draft_log_q", draft_log_q, width)


def check_resolve_ordered(ids: Tensor, probability: Tensor | None, accepted: Tensor | None, *arguments) -> None:
    """Refuses what `resolve_ordered` does not accept."""
    op, (waiting_rows, window, verifies, cuts, by_confidence) = "resolve_ordered", arguments[_STATE:]
    if ids.dtype != torch.int32 or ids.dim() != 2 or not ids.is_contiguous():
        raise ValueError(f"{op}: ids must be contiguous int32 [N, rows], {got(ids)}.")
    width, most = _check_state(op, ids, *arguments[:_STATE])
    _check_shape(op, waiting_rows, most, window, width, cuts)
    whole = (verifies + len(cuts)) * window
    if ids.shape[1] not in (whole, verifies * window):
        raise ValueError(
            f"{op}: ids must have a column for each verifier and proposal row, {whole} in all, or for each verifier "
            f"row, got {list(ids.shape)}."
        )
    if by_confidence and verifies and ids.shape[1] != whole:
        raise ValueError(
            f"{op}: ids must have the {whole} columns of all rows for an order by confidence, got {list(ids.shape)}."
        )
    if probability is not None:
        _check_probability(op, ids, probability)
    elif by_confidence and verifies:
        raise ValueError(f"{op}: probability must be given for an order by confidence.")
    if accepted is not None:
        check_tensor(op, ids.device, "accepted", accepted, torch.int32, (ids.shape[0], width), "[N, W]")


def check_resolve_native(ids: Tensor, probability: Tensor, *arguments) -> None:
    """Refuses what `resolve_native` does not accept."""
    op, (window, threshold) = "resolve_native", arguments[_STATE:]
    if ids.dtype != torch.int32 or ids.dim() != 2 or ids.shape[1] != window or not ids.is_contiguous():
        raise ValueError(f"{op}: ids must be contiguous int32 [N, window = {window}], {got(ids)}.")
    width, most = _check_state(op, ids, *arguments[:_STATE])
    _check_shape(op, most, most, window, width, (0,))
    if most < window:
        raise ValueError(f"{op}: waiting must have a column for each of the {window} positions, got {most}.")
    _check_probability(op, ids, probability)
    if not 0 <= threshold <= 1:
        raise ValueError(f"{op}: threshold must be in [0, 1], got {threshold}.")


def check_compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, source: Tensor, moved: Tensor) -> None:
    """Refuses what `compact_cache` does not accept."""
    op, device, n = "compact_cache", keys.device, cache_len.numel()
    if keys.dim() != 5 or keys.shape[1] < n or keys.stride(4) != 1 or keys.stride(3) != keys.shape[4]:
        raise ValueError(f"{op}: keys must be [layers, N, C, Hkv, D] with contiguous slots and N at least {n}, {got(keys)}.")
    if values.shape != keys.shape or values.stride() != keys.stride() or values.dtype != keys.dtype or values.device != device:
        raise ValueError(f"{op}: values must be as keys are, {got(values)}.")
    check_numbers(op, device, n, cache_len=cache_len, moved=moved)
    check_matrix(op, device, "source", source, n, "[N, T]")


def check_pack_ordered(
    tokens: Tensor,
    cache_len: Tensor,
    order: Tensor,
    draft: Tensor,
    waiting: Tensor,
    mask_token_id: int,
    spare_slot: int,
    waiting_rows: int,
    window: int,
    drafts: bool,
    verifies: bool,
    cuts: Sequence[int],
    ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    tail_mask: Tensor,
    consulted: Tensor,
) -> None:
    """Refuses what `pack_ordered` does not accept."""
    op, device = "pack_ordered", tokens.device
    check_matrix(op, device, "tokens", tokens, None, "[N, T]")
    n = tokens.shape[0]
    check_numbers(op, device, n, cache_len=cache_len)
    check_matrix(op, device, "order", order, n, "[N, W]")
    check_tensor(op, device, "draft", draft, torch.int32, order.shape, "[N, W] as in order")
    check_matrix(op, device, "waiting", waiting, n, "[N, P]")
    _check_shape(op, waiting_rows, waiting.shape[1], window, order.shape[1], cuts)
    if not 0 <= spare_slot < 2**31:
        raise ValueError(f"{op}: spare_slot must be in 0 ... 2^31 - 1, got {spare_slot}.")
    rows = waiting_rows + (drafts + verifies + len(cuts)) * window
    check_rows(op, device, "", (n, rows), mask_token_id, ids, positions, slots)
    check_tensor(op, device, "tail_mask", tail_mask, torch.int32, (n, rows, -(-rows // 32)), "[N, rows, words]")
    check_tensor(op, device, "consulted", consulted, torch.int32, (n, 2), "[N, 2]")


def _check_chosen(
    op: str, logits: Tensor, rows: Tensor, positions: Tensor, seed: Tensor, temperature: float, top_k: int, top_p: float
) -> int:
    """W."""
    check_logits(op, logits)
    n, device = logits.shape[0], logits.device
    check_tensor(op, device, "rows", rows, torch.int32, (n, 2), "[N, 2]")
    check_matrix(op, device, "positions", positions, n, "[N, W]")
    check_sampling(op, logits, seed, temperature, top_k, top_p)
    return positions.shape[1]


def _check_log_q(op: str, logits: Tensor, name: str, log_q: Tensor, width: int) -> None:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    check_tensor(op, logits.device, name, log_q, dtype, (logits.shape[0], width, logits.shape[2]), "[N, W, V]")


def _check_probability(op: str, ids: Tensor, probability: Tensor) -> None:
    if (
        probability.dtype not in (torch.float32, torch.float64)
        or probability.shape != ids.shape
        or not probability.is_contiguous()
        or probability.device != ids.device
    ):
        raise ValueError(
            f"{op}: probability must be contiguous float32 or float64 {list(ids.shape)} as ids on {ids.device}, "
            f"{got(probability)}."
        )


def _check_state(
    op: str,
    ids: Tensor,
    tokens: Tensor,
    length: Tensor,
    cache_len: Tensor,
    finish_reason: Tensor,
    nfe: Tensor,
    advances: Tensor,
    end: Tensor,
    stopped: Tensor,
    prompt_length: Tensor,
    stops: Tensor,
    order: Tensor,
    draft: Tensor,
    waiting: Tensor,
    cached: Tensor,
    source: Tensor,
    moved: Tensor,
    retained: Tensor,
) -> tuple[int, int]:
    """W and P."""
    n, device = ids.shape[0], ids.device
    check_matrix(op, device, "tokens", tokens, n, "[N, T] with N as in ids")
    check_numbers(
        op,
        device,
        n,
        length=length,
        cache_len=cache_len,
        finish_reason=finish_reason,
        nfe=nfe,
        end=end,
        stopped=stopped,
        prompt_length=prompt_length,
        moved=moved,
    )
    check_matrix(op, device, "advances", advances, n, "[N, calls] with N as in ids")
    check_matrix(op, device, "stops", stops, None, "[S, M] with M >= 1")
    check_matrix(op, device, "order", order, n, "[N, W] with N as in ids")
    check_tensor(op, device, "draft", draft, torch.int32, order.shape, "[N, W] as in order")
    check_matrix(op, device, "waiting", waiting, n, "[N, P] with N as in ids")
    for name, tensor in (("cached", cached), ("source", source)):
        check_tensor(op, device, name, tensor, torch.int32, tokens.shape, "[N, T] as in tokens")
    check_tensor(op, device, "retained", retained, torch.int32, (n, 2), "[N, 2]")
    return order.shape[1], waiting.shape[1]


def _check_shape(op: str, waiting_rows: int, most_waiting: int, window: int, width: int, cuts: Sequence[int]) -> None:
    if not 0 <= waiting_rows <= most_waiting:
        raise ValueError(f"{op}: waiting_rows must be in 0 ... {most_waiting}, got {waiting_rows}.")
    if not 1 <= window <= width or width > _MOST_WINDOW:
        raise ValueError(f"{op}: window must be in 1 ... W = {width}, and W at most {_MOST_WINDOW}, got {window}.")
    if cuts and (cuts[0] != 0 or cuts[-1] >= window or any(low >= high for low, high in pairwise(cuts))):
        raise ValueError(f"{op}: cuts must ascend from 0, below window = {window}, got {list(cuts)}.")
