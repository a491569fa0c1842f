"""What operators accept: ValueErrors of one sentence, in the words of csrc/operand_checks.cpp.

``check_<operator>`` takes what the operator takes (`packed_ss.ops.schema`) and returns nothing.  Shapes, dtypes and devices are
looked at, values on a device are not, so that a check costs no wait and serves tensors without data as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..operands import check_operands, check_tensor, got, is_dense, names_of
from ..ordered_state import ORDERED_STATE
from ..rows import BLOCK_ROWS, ORDERED_ROWS
from ..schedules import MOST_CUTS
from ..state import BLOCK_STATE
from .schema import named_arguments

Sizes = dict[str, int]
_LOGITS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_WIDE = (torch.float32, torch.float64)
_MOST_WINDOW = 1024
_INT16_MAX, _INT32_MAX = 2**15 - 1, 2**31 - 1

# ---- Row operators

#: Tensors by name: dtype (None: that in which rows of the logits are computed), sizes, whether only columns must be contiguous.
_ROW_LIST = (
    ("ids", torch.int32, "N M", False),
    ("rows", torch.int32, "N M", False),
    ("positions", torch.int32, "N M", True),
    ("draft", torch.int32, "N W", True),
    ("seed", torch.int64, "N", False),
    ("temperature", torch.float64, "N", False),
    ("top_k", torch.int64, "N", False),
    ("top_p", torch.float64, "N", False),
    ("probability", None, "N M", False),
    ("log_q", None, "N M V", False),
    ("draft_log_q", None, "N W V", False),
    ("accepted", torch.int32, "N M", False),
    ("next_ids", torch.int32, "N next_R", False),
)


def check_linear_argmax(x: Tensor, weight: Tensor) -> None:
    """Refuse what `linear_argmax` does not accept."""
    op = "linear_argmax"
    if x.dim() != 3 or not x.is_floating_point():
        raise ValueError(f"{op}: x must be floating-point [N, R, H], {got(x)}.")
    if weight.dim() != 2 or weight.shape[1] != x.shape[2] or weight.shape[0] == 0 or weight.dtype != x.dtype:
        raise ValueError(
            f"{op}: weight must be {names_of([x.dtype])} [V, {x.shape[2]}] with V at least 1 as x asks, {got(weight)}."
        )
    if weight.device != x.device:
        raise ValueError(f"{op}: x and weight must be on one device, got {x.device} and {weight.device}.")


def check_argmax_rows(*arguments: Any) -> None:
    """Refuse what `argmax_rows` does not accept."""
    _check_row_operator("argmax_rows", arguments)


def check_verify_rows(*arguments: Any) -> None:
    """Refuse what `verify_rows` does not accept."""
    _check_row_operator("verify_rows", arguments)


def check_draw_rows(*arguments: Any) -> None:
    """Refuse what `draw_rows` does not accept."""
    op = "draw_rows"
    given = _check_row_operator(op, arguments)
    if given["stream"] not in (0, 2):
        raise ValueError(f"{op}: stream must be 0 (DRAFT) or 2 (TARGET), got {given['stream']}.")
    next_ids, column, entries = given["next_ids"], given["next_column"], given["ids"].shape[1]
    if next_ids is not None and not 0 <= column <= next_ids.shape[1] - entries:
        raise ValueError(
            f"{op}: next_column must leave room for {entries} of the {next_ids.shape[1]} columns of next_ids, got {column}."
        )


def _check_row_operator(op: str, arguments: Sequence[Any]) -> dict[str, Any]:
    """The arguments by name, after a check of the logits and of every tensor beside them."""
    given = named_arguments(op, arguments)
    logits = given["logits"]
    if logits.dtype not in _LOGITS:
        raise ValueError(f"{op}: logits must be {names_of(_LOGITS)}, got {names_of([logits.dtype])}.")
    if logits.dim() != 3 or not 1 <= logits.shape[2] <= _INT32_MAX:
        raise ValueError(f"{op}: logits must be [N, R, V] with V in 1 ... 2^31 - 1, got {list(logits.shape)}.")
    if not is_dense(logits):
        raise ValueError(f"{op}: logits must be contiguous along the vocabulary, got strides {list(logits.stride())}.")
    sizes = {"N": logits.shape[0], "V": logits.shape[2]}
    wide = torch.promote_types(logits.dtype, torch.float32)
    for name, dtype, shape, strided in _ROW_LIST:
        if (tensor := given.get(name)) is not None:
            check_tensor(op, name, tensor, dtype or wide, shape.split(), logits.device, sizes, strided=strided)
        elif name == "rows" and sizes["M"] > logits.shape[1]:
            raise ValueError(
                f"{op}: ids must have at most {logits.shape[1]} columns without rows, one a row of logits, got {sizes['M']}."
            )
    return given


# ---- The block layout


def check_pack_block(
    state: Sequence[Tensor], mask_token_id: int, verifier_rows: int, block_size: int, cuts: Sequence[int], rows: Sequence[Tensor]
) -> None:
    """Refuse what `pack_block` does not accept."""
    op = "pack_block"
    sizes, device = _check_state(op, BLOCK_STATE, state, {"W": block_size - 1})
    sizes["R"] = _block_rows(op, "", verifier_rows, block_size, cuts)
    _check_mask(op, mask_token_id)
    check_operands(op, "rows", BLOCK_ROWS, rows, device, sizes)


def check_advance_block(
    ids: Tensor,
    accepted: Tensor | None,
    state: Sequence[Tensor],
    verifier_rows: int,
    block_size: int,
    cuts: Sequence[int],
    shift: int,
    mask_token_id: int,
    next_verifier_rows: int,
    next_cuts: Sequence[int],
    next_rows: Sequence[Tensor],
) -> None:
    """Refuse what `advance_block` does not accept."""
    op = "advance_block"
    sizes, device = _check_state(op, BLOCK_STATE, state, {"W": block_size - 1})
    rows = _block_rows(op, "", verifier_rows, block_size, cuts)
    if shift not in (0, 1):
        raise ValueError(f"{op}: shift must be 0 or 1, got {shift}.")
    _check_ids(op, ids, sizes["N"], device, verifier_rows, rows)
    if accepted is not None:
        check_tensor(op, "accepted", accepted, torch.int32, ("N", "v"), device, sizes | {"v": verifier_rows})
    if next_rows:
        sizes["R"] = _block_rows(op, "next_", next_verifier_rows, block_size, next_cuts)
        _check_mask(op, mask_token_id)
        check_operands(op, "next_rows", BLOCK_ROWS, next_rows, device, sizes)


def _block_rows(op: str, prefix: str, verifier_rows: int, block_size: int, cuts: Sequence[int]) -> int:
    """The rows of a call."""
    if not 2 <= block_size <= _INT16_MAX:
        raise ValueError(f"{op}: block_size must be in 2 ... {_INT16_MAX}, got {block_size}.")
    if not 0 <= verifier_rows <= block_size:
        raise ValueError(f"{op}: {prefix}verifier_rows must be in 0 ... block_size = {block_size}, got {verifier_rows}.")
    inside = cuts[0] == 0 and cuts[-1] < block_size if cuts else verifier_rows > 0
    if not inside or len(cuts) > MOST_CUTS or not _ascend(cuts):
        raise ValueError(
            f"{op}: {prefix}cuts must ascend from 0, below block_size = {block_size}, {MOST_CUTS} at most, "
            f"and none only with verifier rows, got {list(cuts)}."
        )
    return verifier_rows + len(cuts) * block_size


# ---- The ordered layout


def check_pack_ordered(
    state: Sequence[Tensor],
    mask_token_id: int,
    spare_slot: int,
    waiting_rows: int,
    window: int,
    drafts: bool,
    verifies: bool,
    cuts: Sequence[int],
    rows: Sequence[Tensor],
) -> None:
    """Refuse what `pack_ordered` does not accept."""
    op = "pack_ordered"
    sizes, device = _check_state(op, ORDERED_STATE, state, {})
    _check_ordered_rows(
        op, "", "rows", sizes, device, mask_token_id, spare_slot, waiting_rows, window, drafts, verifies, cuts, rows
    )


def check_advance_ordered(
    ids: Tensor,
    probability: Tensor | None,
    accepted: Tensor | None,
    state: Sequence[Tensor],
    waiting_rows: int,
    window: int,
    verifies: bool,
    cuts: Sequence[int],
    by_confidence: bool,
    *following,
) -> None:
    """Refuse what `advance_ordered` does not accept."""
    op = "advance_ordered"
    sizes, device = _check_state(op, ORDERED_STATE, state, {})
    _check_ordered_shape(op, "", sizes, waiting_rows, window, cuts)
    verified, rows = verifies * window, (verifies + len(cuts)) * window
    _check_ids(op, ids, sizes["N"], device, verified, rows)
    ordered = by_confidence and verifies
    if ordered and (probability is None or ids.shape[1] != rows):
        raise ValueError(f"{op}: ids must have all {rows} columns, and probability be given, for an order by confidence.")
    if probability is not None:
        sizes["M"] = ids.shape[1]
        check_tensor(op, "probability", probability, _WIDE, ("N", "M"), device, sizes)
    if accepted is not None:
        check_tensor(op, "accepted", accepted, torch.int32, ("N", "window"), device, sizes | {"window": window})
    _check_next(op, sizes, device, *following)


def check_advance_native(
    ids: Tensor, probability: Tensor, state: Sequence[Tensor], window: int, threshold: float, *following
) -> None:
    """Refuse what `advance_native` does not accept."""
    op = "advance_native"
    sizes, device = _check_state(op, ORDERED_STATE, state, {})
    _check_ordered_shape(op, "", sizes, 0, window, (0,))
    if sizes["P"] < window:
        raise ValueError(f"{op}: waiting must have a column for each of the {window} positions, got {sizes['P']}.")
    _check_ids(op, ids, sizes["N"], device, window, window)
    check_tensor(op, "probability", probability, _WIDE, ("N", "window"), device, sizes | {"window": window})
    if not 0 <= threshold <= 1:
        raise ValueError(f"{op}: threshold must be in [0, 1], got {threshold}.")
    _check_next(op, sizes, device, *following)


def check_compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, first_moved: Tensor, moved_from: Tensor) -> None:
    """Refuse what `compact_cache` does not accept."""
    op, device, n = "compact_cache", keys.device, cache_len.numel()
    if keys.dim() != 5 or keys.shape[1] < n or keys.stride(4) != 1 or keys.stride(3) != keys.shape[4]:
        raise ValueError(f"{op}: keys must be [layers, N, C, Hkv, D] with contiguous slots and N at least {n}, {got(keys)}.")
    if values.shape != keys.shape or values.stride() != keys.stride() or values.dtype != keys.dtype or values.device != device:
        raise ValueError(f"{op}: values must be as keys are, {got(values)}.")
    sizes = {"N": n}
    check_tensor(op, "cache_len", cache_len, torch.int32, ("N",), device, sizes)
    check_tensor(op, "first_moved", first_moved, torch.int32, ("N",), device, sizes)
    check_tensor(op, "moved_from", moved_from, torch.int32, ("N", "T"), device, sizes)


def _check_next(
    op: str,
    sizes: Sizes,
    device: torch.device,
    mask_token_id: int,
    spare_slot: int,
    waiting_rows: int,
    window: int,
    drafts: bool,
    verifies: bool,
    cuts: Sequence[int],
    rows: Sequence[Tensor],
) -> None:
    if rows:
        _check_ordered_rows(
            op, "next_", "next_rows", sizes, device, mask_token_id, spare_slot, waiting_rows, window, drafts, verifies, cuts, rows
        )


def _check_ordered_rows(
    op: str,
    prefix: str,
    what: str,
    sizes: Sizes,
    device: torch.device,
    mask_token_id: int,
    spare_slot: int,
    waiting_rows: int,
    window: int,
    drafts: bool,
    verifies: bool,
    cuts: Sequence[int],
    rows: Sequence[Tensor],
) -> None:
    _check_ordered_shape(op, prefix, sizes, waiting_rows, window, cuts)
    _check_mask(op, mask_token_id)
    if not 0 <= spare_slot <= _INT32_MAX:
        raise ValueError(f"{op}: spare_slot must be in 0 ... 2^31 - 1, got {spare_slot}.")
    count = waiting_rows + (drafts + verifies + len(cuts)) * window
    check_operands(op, what, ORDERED_ROWS, rows, device, sizes | {"R": count, "words": -(-count // 32)})


def _check_ordered_shape(op: str, prefix: str, sizes: Sizes, waiting_rows: int, window: int, cuts: Sequence[int]) -> None:
    if not 0 <= waiting_rows <= sizes["P"]:
        raise ValueError(f"{op}: {prefix}waiting_rows must be in 0 ... {sizes['P']}, got {waiting_rows}.")
    if not 1 <= window <= sizes["W"] or sizes["W"] > _MOST_WINDOW:
        raise ValueError(f"{op}: {prefix}window must be in 1 ... W = {sizes['W']}, and W at most {_MOST_WINDOW}, got {window}.")
    if cuts and (cuts[0] != 0 or cuts[-1] >= window or len(cuts) > MOST_CUTS or not _ascend(cuts)):
        raise ValueError(
            f"{op}: {prefix}cuts must ascend from 0, below window = {window}, {MOST_CUTS} at most, got {list(cuts)}."
        )


# ---- Shared


def _check_state(op: str, operands: Sequence, state: Sequence[Tensor], sizes: Sizes) -> tuple[Sizes, torch.device]:
    """The sizes that a state's symbols stand for, and its device, which is that of its first tensor."""
    device = state[0].device if state else torch.device("cpu")
    check_operands(op, "state", operands, state, device, sizes)
    return sizes, device


def _check_ids(op: str, ids: Tensor, n: int, device: torch.device, verified: int, rows: int) -> None:
    """Tokens of all rows of a call, or of its verifier rows."""
    fits = ids.dim() == 2 and ids.shape[0] == n and ids.shape[1] in (verified, rows)
    if not fits or ids.dtype != torch.int32 or not ids.is_contiguous() or ids.device != device:
        raise ValueError(
            f"{op}: ids must be contiguous int32 [{n}, {rows}], a column for each row, or [{n}, {verified}], one for each "
            f"verifier row, on {device}, {got(ids)}."
        )


def _check_mask(op: str, mask_token_id: int) -> None:
    if not 0 <= mask_token_id <= _INT32_MAX:
        raise ValueError(f"{op}: mask_token_id must be in 0 ... 2^31 - 1, got {mask_token_id}.")


def _ascend(cuts: Sequence[int]) -> bool:
    return all(low < high for low, high in pairwise(cuts))
