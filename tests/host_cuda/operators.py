"""Operators by their CUDA sources on the CPU; each takes what its operator takes (packed_ss/ops/schema.py).

The operators' checks belong to torch's side of the kernels, which is not in this library: arguments must be right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from packed_ss.ordered_state import ORDERED_STATE
from packed_ss.rows import BLOCK_ROWS, ORDERED_ROWS
from packed_ss.state import BLOCK_STATE

from .backend import kernels, uniform_noise

__all__ = ["advance_block", "advance_native", "advance_ordered", "argmax_rows", "compact_cache", "draw_rows", "pack_block",
           "pack_ordered", "uniform_noise", "verify_rows"]  # fmt: skip

_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_MAX_CUTS = 256
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # by packed_ss::DType


def _fields(names: str, kind: type) -> tuple[tuple[str, type], ...]:
    return tuple((name, kind) for name in names.split())


class _Logits(ctypes.Structure):
    """packed_ss::Logits."""

    _fields_ = (("data", _P), ("dtype", _I32), *_fields("sequence_stride row_stride vocab_size", _I64))


class _RowList(ctypes.Structure):
    """packed_ss::RowList."""

    _fields_ = (("logits", _Logits), *_fields("sequences logit_rows entries", _I64), *_fields("rows positions", _P),
                ("position_stride", _I64), ("draft", _P), *_fields("draft_stride draft_width", _I64),
                *_fields("seed temperature top_k top_p", _P))  # fmt: skip


class _ArgmaxRows(ctypes.Structure):
    """packed_ss::cuda::ArgmaxRows."""

    _fields_ = (("list", _RowList), *_fields("ids probability workspace", _P))


class _DrawRows(ctypes.Structure):
    """packed_ss::cuda::DrawRows."""

    _fields_ = (("list", _RowList), ("stream", ctypes.c_uint32), *_fields("ids log_q next_ids", _P),
                *_fields("next_stride next_column", _I64), ("workspace", _P))  # fmt: skip


class _VerifyRows(ctypes.Structure):
    """packed_ss::cuda::VerifyRows."""

    _fields_ = (("list", _RowList), *_fields("draft_log_q ids accepted workspace", _P))


class _BlockState(ctypes.Structure):
    """packed_ss::BlockState."""

    _fields_ = (*_fields("sequences capacity width calls stop_count stop_length", _I64),
                *((one.name, _P) for one in BLOCK_STATE))  # fmt: skip


class _BlockShape(ctypes.Structure):
    """packed_ss::BlockShape."""

    _fields_ = (*_fields("verifier_rows block_size shift cut_count", _I32), ("cuts", ctypes.c_int16 * _MAX_CUTS))


class _BlockRows(ctypes.Structure):
    """packed_ss::BlockRows."""

    _fields_ = (("shape", _BlockShape), ("mask_token_id", _I32), *((one.name, _P) for one in BLOCK_ROWS))


class _PackBlock(ctypes.Structure):
    """packed_ss::PackBlock."""

    _fields_ = (("state", _BlockState), ("rows", _BlockRows))


class _AdvanceBlock(ctypes.Structure):
    """packed_ss::AdvanceBlock."""

    _fields_ = (("state", _BlockState), ("shape", _BlockShape), ("ids", _P), ("columns", _I64), ("accepted", _P),
                ("next", _BlockRows))  # fmt: skip


class _OrderedState(ctypes.Structure):
    """packed_ss::OrderedState."""

    _fields_ = (*_fields("sequences capacity width waiting_width calls stop_count stop_length", _I64),
                *((one.name, _P) for one in ORDERED_STATE))  # fmt: skip


class _OrderedShape(ctypes.Structure):
    """packed_ss::OrderedShape."""

    _fields_ = (*_fields("waiting_rows window drafts verifies cut_count", _I32), ("cuts", ctypes.c_int16 * _MAX_CUTS))


class _OrderedRows(ctypes.Structure):
    """packed_ss::OrderedRows."""

    _fields_ = (("shape", _OrderedShape), *_fields("mask_token_id spare_slot", _I32), *((one.name, _P) for one in ORDERED_ROWS))


class _PackOrdered(ctypes.Structure):
    """packed_ss::PackOrdered."""

    _fields_ = (("state", _OrderedState), ("rows", _OrderedRows))


class _AdvanceOrdered(ctypes.Structure):
    """packed_ss::AdvanceOrdered."""

    _fields_ = (("state", _OrderedState), ("shape", _OrderedShape), ("ids", _P), ("columns", _I64), ("probability", _P),
                ("wide", ctypes.c_bool), ("accepted", _P), ("by_confidence", ctypes.c_bool), ("threshold", ctypes.c_double),
                ("next", _OrderedRows))  # fmt: skip


class _CompactCache(ctypes.Structure):
    """packed_ss::CompactCache."""

    _fields_ = (*_fields("layers sequences slots columns layer_stride sequence_stride slot_stride slot_bytes", _I64),
                *_fields("keys values cache_len first_moved moved_from", _P))  # fmt: skip


# ---- Row operators --------------------------------------------------------------------------------------------------------
def argmax_rows(
    logits: Tensor, rows: Tensor | None, positions: Tensor | None, draft: Tensor | None, ids: Tensor, probability: Tensor | None
) -> None:
    """argmax_rows by csrc/cuda/argmax_rows.cu."""
    chosen = _row_list(logits, rows, positions, draft, ids)
    _with_workspace("argmax_rows", _ArgmaxRows(chosen, _pointer(ids), _pointer(probability)))


def draw_rows(
    logits: Tensor,
    rows: Tensor | None,
    positions: Tensor,
    draft: Tensor | None,
    seed: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    stream: int,
    ids: Tensor,
    log_q: Tensor | None,
    next_ids: Tensor | None,
    next_column: int,
) -> None:
    """draw_rows by csrc/cuda/draw_rows.cu."""
    chosen = _row_list(logits, rows, positions, draft, ids, seed, temperature, top_k, top_p)
    stride = 0 if next_ids is None else next_ids.shape[1]
    outputs = map(_pointer, (ids, log_q, next_ids))
    _with_workspace("draw_rows", _DrawRows(chosen, stream, *outputs, stride, next_column))


def verify_rows(
    logits: Tensor,
    positions: Tensor,
    seed: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    draft: Tensor,
    draft_log_q: Tensor,
    ids: Tensor,
    accepted: Tensor,
) -> None:
    """verify_rows by csrc/cuda/verify_rows.cu."""
    chosen = _row_list(logits, None, positions, draft, ids, seed, temperature, top_k, top_p)
    _with_workspace("verify_rows", _VerifyRows(chosen, *map(_pointer, (draft_log_q, ids, accepted))))


def _row_list(
    logits: Tensor, rows: Tensor | None, positions: Tensor | None, draft: Tensor | None, ids: Tensor, *sampling: Tensor
) -> _RowList:
    n, count, vocab = logits.shape
    assert logits.stride(2) == 1 or vocab == 1
    view = _Logits(logits.data_ptr(), _DTYPES.index(logits.dtype), logits.stride(0), logits.stride(1), vocab)
    at, by = ((None, 0) if one is None else (one.data_ptr(), one.stride(0)) for one in (positions, draft))
    width = 0 if draft is None else draft.shape[1]
    return _RowList(view, n, count, ids.shape[1], _pointer(rows), *at, *by, width, *map(_pointer, sampling))


def workspace(size: int) -> Tensor:
    """Memory of so many bytes, which holds anything."""
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


def _with_workspace(name: str, arguments: ctypes.Structure) -> None:
    """Runs a launcher with a workspace of the size that it asks for."""
    size = ctypes.c_int64(-1)
    arguments.workspace = ctypes.addressof(size)
    kernels().call(f"{name}_workspace", arguments)
    memory = workspace(size.value)
    arguments.workspace = memory.data_ptr()
    kernels().call(name, arguments)


# ---- The block layout -----------------------------------------------------------------------------------------------------
def pack_block(
    state: Sequence[Tensor], mask_token_id: int, verifier_rows: int, block_size: int, cuts: Sequence[int], rows: Sequence[Tensor]
) -> None:
    """pack_block by csrc/cuda/pack_block.cu."""
    buffers = _block_rows(verifier_rows, block_size, cuts, mask_token_id, rows)
    kernels().call("pack_block", _PackBlock(_block_state(state), buffers))


def advance_block(
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
    """advance_block by csrc/cuda/advance_block.cu."""
    shape = _block_shape(verifier_rows, block_size, cuts, shift)
    following = _block_rows(next_verifier_rows, block_size, next_cuts, mask_token_id, next_rows) if next_rows else _BlockRows()
    tokens = _pointer(ids), ids.shape[1], _pointer(accepted)
    kernels().call("advance_block", _AdvanceBlock(_block_state(state), shape, *tokens, following))


def _block_state(state: Sequence[Tensor]) -> _BlockState:
    of = _by_name(BLOCK_STATE, state)
    sizes = *of["tokens"].shape, of["draft"].shape[1], of["advances"].shape[1], *of["stops"].shape[1:]
    return _BlockState(*sizes, *map(_pointer, state))


def _block_shape(verifier_rows: int, block_size: int, cuts: Sequence[int], shift: int) -> _BlockShape:
    return _BlockShape(verifier_rows, block_size, shift, len(cuts), (ctypes.c_int16 * _MAX_CUTS)(*cuts))


def _block_rows(
    verifier_rows: int, block_size: int, cuts: Sequence[int], mask_token_id: int, rows: Sequence[Tensor]
) -> _BlockRows:
    return _BlockRows(_block_shape(verifier_rows, block_size, cuts, 0), mask_token_id, *map(_pointer, rows))


# ---- The ordered layout ---------------------------------------------------------------------------------------------------
def pack_ordered(
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
    """pack_ordered by csrc/cuda/pack_ordered.cu."""
    buffers = _ordered_rows(mask_token_id, spare_slot, waiting_rows, window, drafts, verifies, cuts, rows)
    kernels().call("pack_ordered", _PackOrdered(_ordered_state(state), buffers))


def advance_ordered(
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
    """advance_ordered by csrc/cuda/advance_ordered.cu."""
    shape = _ordered_shape(waiting_rows, window, False, verifies, cuts)
    results = _pointer(ids), ids.shape[1], _pointer(probability), _is_wide(probability), _pointer(accepted)
    call = _AdvanceOrdered(_ordered_state(state), shape, *results, by_confidence, 0.0, _ordered_rows(*following))
    kernels().call("advance_ordered", call)


def advance_native(ids: Tensor, probability: Tensor, state: Sequence[Tensor], window: int, threshold: float, *following) -> None:
    """advance_native by csrc/cuda/advance_ordered.cu."""
    shape = _ordered_shape(0, window, False, False, ())
    results = _pointer(ids), ids.shape[1], _pointer(probability), _is_wide(probability), None
    call = _AdvanceOrdered(_ordered_state(state), shape, *results, False, threshold, _ordered_rows(*following))
    kernels().call("advance_native", call)


def compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, first_moved: Tensor, moved_from: Tensor) -> None:
    """compact_cache by csrc/cuda/compact_cache.cu."""
    layers, _, slots, heads, size = keys.shape
    item = keys.element_size()
    strides = (item * keys.stride(k) for k in range(3))
    sizes = layers, cache_len.numel(), slots, moved_from.shape[1], *strides, item * heads * size
    pointers = map(_pointer, (cache_len, first_moved, moved_from))
    kernels().call("compact_cache", _CompactCache(*sizes, keys.data_ptr(), values.data_ptr(), *pointers))


def _ordered_state(state: Sequence[Tensor]) -> _OrderedState:
    of = _by_name(ORDERED_STATE, state)
    widths = (of[name].shape[1] for name in ("order", "waiting", "advances"))
    return _OrderedState(*of["tokens"].shape, *widths, *of["stops"].shape[1:], *map(_pointer, state))


def _ordered_shape(waiting_rows: int, window: int, drafts: bool, verifies: bool, cuts: Sequence[int]) -> _OrderedShape:
    return _OrderedShape(waiting_rows, window, drafts, verifies, len(cuts), (ctypes.c_int16 * _MAX_CUTS)(*cuts))


def _ordered_rows(
    mask_token_id: int,
    spare_slot: int,
    waiting_rows: int,
    window: int,
    drafts: bool,
    verifies: bool,
    cuts: Sequence[int],
    rows: Sequence[Tensor],
) -> _OrderedRows:
    if not rows:
        return _OrderedRows()
    shape = _ordered_shape(waiting_rows, window, drafts, verifies, cuts)
    return _OrderedRows(shape, mask_token_id, spare_slot, *map(_pointer, rows))


def _is_wide(probability: Tensor | None) -> bool:
    return probability is not None and probability.dtype == torch.float64


def _by_name(operands: Iterable, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {one.name: tensor for one, tensor in zip(operands, tensors, strict=True)}


def _pointer(tensor: Tensor | None) -> int | None:
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()
