"""pack_block and the resolves by their CUDA sources on the CPU; each takes what its operator takes (packed_ss/ops/schema.py).

The operators' checks belong to torch's side of the kernels, which is not in this library: arguments must be right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from packed_ss.layouts.block import BlockCall

from .backend import kernels

_P, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_MAX_CUTS = 256
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # by packed_ss::DType


class _Logits(ctypes.Structure):
    """packed_ss::Logits."""

    _fields_ = (("data", _P), ("dtype", _I32), ("sequence_stride", _I64), ("row_stride", _I64), ("vocab_size", _I64))


class _DecodeState(ctypes.Structure):
    """packed_ss::DecodeState."""

    _fields_ = tuple((name, _I64) for name in ("sequences", "capacity", "width", "calls", "stop_count", "stop_length")) + tuple(
        (name, _P) for name in ("tokens", "length", "cache_len", "draft", "draft_len", "finish_reason", "nfe", "advances",
                                "limit", "prompt_length", "stops")
    )  # fmt: skip


class _CallShape(ctypes.Structure):
    """packed_ss::CallShape."""

    _fields_ = (("verifier_rows", _I32), ("block_size", _I32), ("shift", _I32), ("cut_count", _I32),
                ("cuts", ctypes.c_int16 * _MAX_CUTS))  # fmt: skip


class _NextRows(ctypes.Structure):
    """packed_ss::NextRows."""

    _fields_ = (("shape", _CallShape), ("mask_token_id", _I32), ("ids", _P), ("positions", _P), ("slots", _P))


class _ResolveCall(ctypes.Structure):
    """packed_ss::ResolveCall."""

    _fields_ = (("logits", _Logits), ("state", _DecodeState), ("shape", _CallShape), ("next", _NextRows))


class _Sampling(ctypes.Structure):
    """packed_ss::Sampling."""

    _fields_ = (("seed", _P), ("temperature", ctypes.c_double), ("top_k", _I64), ("top_p", ctypes.c_double))


class _Resolve(ctypes.Structure):
    """packed_ss::cuda::Resolve."""

    _fields_ = (("call", _ResolveCall), ("sampling", _Sampling), ("draft_log_q", _P), ("workspace", _P))


class _PackBlock(ctypes.Structure):
    """packed_ss::cuda::PackBlock."""

    _fields_ = (("state", _DecodeState), ("next", _NextRows))


class _TailMask(ctypes.Structure):
    """TailMask of csrc/testing/exports.cpp."""

    _fields_ = (("shape", _CallShape), ("words", _P), ("visible", _P))


def resolve_greedy(*operands: Any) -> None:
    """`torch.ops.packed_ss.resolve_greedy` by csrc/cuda/resolve_greedy.cu."""
    with_workspace("resolve_greedy", _Resolve(_call(*operands), _Sampling(None, 1.0, 0, 1.0), None, None))


def resolve_coupled(*operands: Any) -> None:
    """`torch.ops.packed_ss.resolve_coupled` by csrc/cuda/resolve_coupled.cu."""
    *state, seed, temperature, top_k, top_p = operands
    with_workspace("resolve_coupled", _Resolve(_call(*state), _Sampling(_pointer(seed), temperature, top_k, top_p), None, None))


def resolve_rejection(*operands: Any) -> None:
    """`torch.ops.packed_ss.resolve_rejection` by csrc/cuda/resolve_rejection.cu."""
    *state, seed, temperature, top_k, top_p, draft_log_q = operands
    sampling = _Sampling(_pointer(seed), temperature, top_k, top_p)
    with_workspace("resolve_rejection", _Resolve(_call(*state), sampling, _pointer(draft_log_q), None))


def pack_block(
    tokens: Tensor,
    length: Tensor,
    cache_len: Tensor,
    draft: Tensor,
    draft_len: Tensor,
    mask_token_id: int,
    verifier_rows: int,
    block_size: int,
    cuts: Sequence[int],
    *rows: Tensor,
) -> None:
    """`torch.ops.packed_ss.pack_block` by csrc/cuda/pack_block.cu."""
    state = _DecodeState(
        sequences=tokens.shape[0],
        capacity=tokens.shape[1],
        width=block_size - 1,
        tokens=_pointer(tokens),
        length=_pointer(length),
        cache_len=_pointer(cache_len),
        draft=_pointer(draft),
        draft_len=_pointer(draft_len),
    )
    shape = _shape(verifier_rows, block_size, 0, cuts)
    kernels().call("pack_block", _PackBlock(state, _NextRows(shape, mask_token_id, *map(_pointer, rows))))


def tail_mask(call: BlockCall) -> tuple[Tensor, Tensor]:
    """The bitmask [R, ceil(R/32)] of a call's rows by packed_ss/tail_mask.h, and who that says sees whom, [R, R]; both int32."""
    words = torch.full((call.rows, (call.rows + 31) // 32), -1, dtype=torch.int32)
    visible = torch.full((call.rows, call.rows), -1, dtype=torch.int32)
    shape = _shape(call.verifier_rows, call.block_size, call.shift, call.cuts)
    kernels().call("tail_mask", _TailMask(shape, _pointer(words), _pointer(visible)))
    return words, visible


def with_workspace(name: str, arguments: ctypes.Structure) -> None:
    """Runs a launcher whose arguments have a workspace, with one of the size that it asks for."""
    size = ctypes.c_int64(-1)
    arguments.workspace = ctypes.addressof(size)
    kernels().call(f"{name}_workspace", arguments)
    workspace = torch.randint(0, 256, (size.value,), dtype=torch.uint8)  # whatever it holds must not matter
    arguments.workspace = workspace.data_ptr()
    kernels().call(name, arguments)


def _call(
    logits: Tensor,
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
    *next_rows: Tensor | None,
) -> _ResolveCall:
    n, _, vocab = logits.shape
    assert logits.stride(2) == 1 or vocab == 1
    view = _Logits(logits.data_ptr(), _DTYPES.index(logits.dtype), logits.stride(0), logits.stride(1), vocab)
    pointers = (tokens, length, cache_len, draft, draft_len, finish_reason, nfe, advances, limit, prompt_length, stops)
    state = _DecodeState(n, tokens.shape[1], block_size - 1, advances.shape[1], *stops.shape, *map(_pointer, pointers))
    following = _NextRows()
    if next_rows[0] is not None:
        shape = _shape(next_verifier_rows, block_size, 0, next_cuts)
        following = _NextRows(shape, mask_token_id, *map(_pointer, next_rows))
    return _ResolveCall(view, state, _shape(verifier_rows, block_size, shift, cuts), following)


def _shape(verifier_rows: int, block_size: int, shift: int, cuts: Sequence[int]) -> _CallShape:
    return _CallShape(verifier_rows, block_size, shift, len(cuts), (ctypes.c_int16 * _MAX_CUTS)(*cuts))


def _pointer(tensor: Tensor) -> int:
    assert tensor.is_contiguous()
    return tensor.data_ptr()
