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


def check_pack_block(*arguments: Any) -> None:
    """Refuse what `pack_block` does not accept."""
    op, g = "pack_block", named_arguments("pack_block", arguments)
    sizes, device = _check_state(op, BLOCK_STATE, g["state"], {"W": g["block_size"] - 1})
    _check_block_rows(op, "", "rows", sizes, device, g)


def check_advance_block(*arguments: Any) -> None:
    """Refuse what `advance_block` does not accept."""
    op, g = "advance_block", named_arguments("advance_block", arguments)
    v, b = g["verifier_rows"], g["block_size"]
    sizes, device = _check_state(op, BLOCK_STATE, g["state"], {"W": b - 1})
    rows = _block_rows(op, "", v, b, g["cuts"])
    if g["shift"] not in (0, 1):
        raise ValueError(f"{op}: shift must be 0 or 1, got {g['shift']}.")
    _check_ids(op, g["ids"], sizes["N"], device, v, rows)
    if g["accepted"] is not None:
        check_tensor(op, "accepted", g["accepted"], torch.int32, ("N", "v"), device, sizes | {"v": v})
    if g["next_rows"]:
        _check_block_rows(op, "next_", "next_rows", sizes, device, g)


def _check_block_rows(op: str, prefix: str, what: str, sizes: Sizes, device: torch.device, g: dict[str, Any]) -> None:
    """Refuse rows of a call that do not fit its shape, whose arguments begin with ``prefix``."""
    rows = _block_rows(op, prefix, g[f"{prefix}verifier_rows"], g["block_size"], g[f"{prefix}cuts"])
    _check_mask(op, g["mask_token_id"])
    check_operands(op, what, BLOCK_ROWS, g[what], device, sizes | {"R": rows})


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


def check_pack_ordered(*arguments: Any) -> None:
    """Refuse what `pack_ordered` does not accept."""
    op, g = "pack_ordered", named_arguments("pack_ordered", arguments)
    sizes, device = _check_state(op, ORDERED_STATE, g["state"], {})
    _check_ordered_rows(op, "", "rows", sizes, device, g)


def check_advance_ordered(*arguments: Any) -> None:
    """Refuse what `advance_ordered` does not accept."""
    op, g = "advance_ordered", named_arguments("advance_ordered", arguments)
    window, verifies, cuts, probability = g["window"], g["verifies"], g["cuts"], g["probability"]
    sizes, device = _check_state(op, ORDERED_STATE, g["state"], {})
    _check_ordered_shape(op, "", sizes, g["waiting_rows"], window, cuts)
    rows = (verifies + len(cuts)) * window
    _check_ids(op, g["ids"], sizes["N"], device, verifies * window, rows)
    if g["by_confidence"] and verifies and (probability is None or g["ids"].shape[1] != rows):
        raise ValueError(f"{op}: ids must have all {rows} columns, and probability be given, for an order by confidence.")
    if probability is not None:
        check_tensor(op, "probability", probability, _WIDE, ("N", "M"), device, sizes | {"M": g["ids"].shape[1]})
    if g["accepted"] is not None:
        check_tensor(op, "accepted", g["accepted"], torch.int32, ("N", "window"), device, sizes | {"window": window})
    if g["next_rows"]:
        _check_ordered_rows(op, "next_", "next_rows", sizes, device, g)


def check_advance_native(*arguments: Any) -> None:
    """Refuse what `advance_native` does not accept."""
    op, g = "advance_native", named_arguments("advance_native", arguments)
    window = g["window"]
    sizes, device = _check_state(op, ORDERED_STATE, g["state"], {})
    _check_ordered_shape(op, "", sizes, 0, window, (0,))
    if sizes["P"] < window:
        raise ValueError(f"{op}: waiting must have a column for each of the {window} positions, got {sizes['P']}.")
    _check_ids(op, g["ids"], sizes["N"], device, window, window)
    check_tensor(op, "probability", g["probability"], _WIDE, ("N", "window"), device, sizes | {"window": window})
    if not 0 <= g["threshold"] <= 1:
        raise ValueError(f"{op}: threshold must be in [0, 1], got {g['threshold']}.")
    if g["next_rows"]:
        _check_ordered_rows(op, "next_", "next_rows", sizes, device, g)


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


def _check_ordered_rows(op: str, prefix: str, what: str, sizes: Sizes, device: torch.device, g: dict[str, Any]) -> None:
    """Refuse rows of a call that do not fit its shape, whose arguments begin with ``prefix``."""
    waiting_rows, window, drafts, verifies, cuts = (
        g[prefix + name] for name in ("waiting_rows", "window", "drafts", "verifies", "cuts")
    )
    _check_ordered_shape(op, prefix, sizes, waiting_rows, window, cuts)
    _check_mask(op, g["mask_token_id"])
    if not 0 <= g["spare_slot"] <= _INT32_MAX:
        raise ValueError(f"{op}: spare_slot must be in 0 ... 2^31 - 1, got {g['spare_slot']}.")
    count = waiting_rows + (drafts + verifies + len(cuts)) * window
    check_operands(op, what, ORDERED_ROWS, g[what], device, sizes | {"R": count, "words": -(-count // 32)})


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
