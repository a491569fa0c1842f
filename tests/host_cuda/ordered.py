"""The operators of the ordered layout by their CUDA sources on the CPU; each takes what its operator takes.

As in resolves.py, arguments must be right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .backend import kernels
from .resolves import _DTYPES, _I32, _I64, _P, _Logits, _pointer, _Sampling, with_workspace

_BOOL = ctypes.c_bool
_MOST_WINDOW = 1024
_STATE = 17  # operands from `tokens` to `retained`


class _ArgmaxRows(ctypes.Structure):
    """packed_ss::cuda::ArgmaxRows."""

    _fields_ = (("logits", _Logits), ("sequences", _I64), ("rows", _I64), ("ids", _P), ("probability", _P), ("workspace", _P))


class _ChosenRows(ctypes.Structure):
    """packed_ss::ChosenRows."""

    _fields_ = (("logits", _Logits), ("sequences", _I64), ("rows", _I64), ("width", _I64), ("range", _P), ("positions", _P),
                ("sampling", _Sampling))  # fmt: skip


class _DrawRows(ctypes.Structure):
    """packed_ss::cuda::DrawRows."""

    _fields_ = (("chosen", _ChosenRows), ("stream", ctypes.c_uint32), ("ids", _P), ("log_q", _P), ("workspace", _P))


class _VerifyRows(ctypes.Structure):
    """packed_ss::cuda::VerifyRows."""

    _fields_ = (("chosen", _ChosenRows), *((name, _P) for name in ("draft", "draft_log_q", "ids", "accepted", "workspace")))


class _OrderedState(ctypes.Structure):
    """packed_ss::OrderedState."""

    _fields_ = tuple((name, _I64) for name in ("sequences", "capacity", "width", "waiting_width", "calls", "stop_count",
                                               "stop_length")) + tuple(
        (name, _P) for name in ("tokens", "length", "cache_len", "finish_reason", "nfe", "advances", "end", "stopped",
                                "prompt_length", "stops", "order", "draft", "waiting", "cached", "source", "moved", "retained")
    )  # fmt: skip


class _OrderedShape(ctypes.Structure):
    """packed_ss::OrderedShape."""

    _fields_ = (*((name, _I32) for name in ("waiting_rows", "window", "drafts", "verifies", "cut_count")),
                ("cuts", ctypes.c_int16 * _MOST_WINDOW))  # fmt: skip


class _OrderedCall(ctypes.Structure):
    """packed_ss::OrderedCall."""

    _fields_ = (("state", _OrderedState), ("shape", _OrderedShape), ("ids", _P), ("columns", _I64), ("probability", _P),
                ("wide", _BOOL), ("accepted", _P), ("by_confidence", _BOOL), ("threshold", ctypes.c_double))  # fmt: skip


class _CompactCall(ctypes.Structure):
    """packed_ss::CompactCall."""

    _fields_ = tuple((name, _I64) for name in ("layers", "sequences", "slots", "columns", "layer_stride", "sequence_stride",
                                               "slot_stride", "slot_bytes")) + tuple(
        (name, _P) for name in ("keys", "values", "cache_len", "source", "moved")
    )  # fmt: skip


class _OrderedRows(ctypes.Structure):
    """packed_ss::OrderedRows."""

    _fields_ = (("shape", _OrderedShape), ("mask_token_id", _I32), ("spare_slot", _I32),
                *((name, _P) for name in ("ids", "positions", "slots", "tail_mask", "consulted")))  # fmt: skip


class _PackOrderedCall(ctypes.Structure):
    """packed_ss::PackOrderedCall."""

    _fields_ = (("state", _OrderedState), ("rows", _OrderedRows))


def argmax_rows(logits: Tensor, probability: bool) -> tuple[Tensor, Tensor]:
    """`packed_ss.ops.rows.argmax_rows` by csrc/cuda/argmax_rows.cu."""
    n, rows, _ = logits.shape
    ids = torch.full((n, rows), -7, dtype=torch.int32)
    p = torch.full((n, rows if probability else 0), torch.nan)
    wanted = _pointer(p) if probability else None
    with_workspace("argmax_rows", _ArgmaxRows(_logits(logits), n, rows, _pointer(ids), wanted, None))
    return ids, p


def draw_rows(logits: Tensor, rows: Tensor, positions: Tensor, *sampling_and_outputs) -> None:
    """`packed_ss.ops.rows.draw_rows` by csrc/cuda/draw_rows.cu."""
    *sampling, stream, ids, log_q = sampling_and_outputs
    chosen = _chosen(logits, rows, positions, *sampling)
    with_workspace("draw_rows", _DrawRows(chosen, stream, _pointer(ids), _or_none(log_q), None))


def verify_rows(logits: Tensor, rows: Tensor, positions: Tensor, *sampling_and_draft) -> tuple[Tensor, Tensor]:
    """`packed_ss.ops.rows.verify_rows` by csrc/cuda/verify_rows.cu."""
    *sampling, draft, draft_log_q = sampling_and_draft
    ids, accepted = torch.full_like(draft, -7), torch.full_like(draft, -7)
    pointers = map(_pointer, (draft, draft_log_q, ids, accepted))
    with_workspace("verify_rows", _VerifyRows(_chosen(logits, rows, positions, *sampling), *pointers, None))
    return ids, accepted


def resolve_ordered(ids: Tensor, probability: Tensor | None, accepted: Tensor | None, *arguments) -> None:
    """`packed_ss.ops.ordered.resolve_ordered` by csrc/cuda/resolve_ordered.cu."""
    waiting_rows, window, verifies, cuts, by_confidence = arguments[_STATE:]
    call = _call(_state(*arguments[:_STATE]), _shape(waiting_rows, window, False, verifies, cuts), ids, probability)
    call.accepted, call.by_confidence = _or_none(accepted), by_confidence
    kernels().call("resolve_ordered", call)


def resolve_native(ids: Tensor, probability: Tensor, *arguments) -> None:
    """`packed_ss.ops.ordered.resolve_native` by csrc/cuda/resolve_ordered.cu."""
    window, threshold = arguments[_STATE:]
    call = _call(_state(*arguments[:_STATE]), _shape(0, window, False, False, ()), ids, probability)
    call.threshold = threshold
    kernels().call("resolve_native", call)


def compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, source: Tensor, moved: Tensor) -> None:
    """`packed_ss.ops.ordered.compact_cache` by csrc/cuda/compact_cache.cu."""
    layers, _, slots, heads, size = keys.shape
    item = keys.element_size()
    strides = (item * keys.stride(k) for k in range(3))
    sizes = layers, cache_len.numel(), slots, source.shape[1], *strides, item * heads * size
    pointers = map(_pointer, (cache_len, source, moved))
    kernels().call("compact_cache", _CompactCall(*sizes, keys.data_ptr(), values.data_ptr(), *pointers))


def pack_ordered(
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
    *rows: Tensor,
) -> None:
    """`packed_ss.ops.pack_ordered.pack_ordered` by csrc/cuda/pack_ordered.cu."""
    state = _OrderedState(
        sequences=tokens.shape[0],
        capacity=tokens.shape[1],
        width=order.shape[1],
        waiting_width=waiting.shape[1],
        tokens=_pointer(tokens),
        cache_len=_pointer(cache_len),
        order=_pointer(order),
        draft=_pointer(draft),
        waiting=_pointer(waiting),
    )
    shape = _shape(waiting_rows, window, drafts, verifies, cuts)
    out = _OrderedRows(shape, mask_token_id, spare_slot, *map(_pointer, rows))
    kernels().call("pack_ordered", _PackOrderedCall(state, out))


def _logits(logits: Tensor) -> _Logits:
    assert logits.stride(2) == 1 or logits.shape[2] == 1
    return _Logits(logits.data_ptr(), _DTYPES.index(logits.dtype), logits.stride(0), logits.stride(1), logits.shape[2])


def _chosen(logits: Tensor, rows: Tensor, positions: Tensor, seed: Tensor, *settings: float) -> _ChosenRows:
    sizes = positions.shape[0], logits.shape[1], positions.shape[1]
    return _ChosenRows(_logits(logits), *sizes, _pointer(rows), _pointer(positions), _Sampling(_pointer(seed), *settings))


def _state(
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
    *slots: Tensor,
) -> _OrderedState:
    pointers = (
        tokens,
        length,
        cache_len,
        finish_reason,
        nfe,
        advances,
        end,
        stopped,
        prompt_length,
        stops,
        order,
        draft,
        waiting,
        *slots,
    )
    sizes = *tokens.shape, order.shape[1], waiting.shape[1], advances.shape[1], *stops.shape
    return _OrderedState(*sizes, *map(_pointer, pointers))


def _shape(waiting_rows: int, window: int, drafts: bool, verifies: bool, cuts: Sequence[int]) -> _OrderedShape:
    return _OrderedShape(waiting_rows, window, drafts, verifies, len(cuts), (ctypes.c_int16 * _MOST_WINDOW)(*cuts))


def _call(state: _OrderedState, shape: _OrderedShape, ids: Tensor, probability: Tensor | None) -> _OrderedCall:
    is_wide = probability is not None and probability.dtype == torch.float64
    return _OrderedCall(state, shape, _pointer(ids), ids.shape[1], _or_none(probability), is_wide)


def _or_none(tensor: Tensor | None) -> int | None:
    return None if tensor is None else _pointer(tensor)
