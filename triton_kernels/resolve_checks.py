"""What the resolves and pack_block accept, checked before anything is launched: ValueErrors of one sentence.

The same as csrc/resolve_checks.cpp asks, for the dtypes that these kernels have.  Values on the device are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from .checks import DTYPES

#: Most cuts of one call, ids of a vocabulary, and programs of a launch.
MOST_CUTS = 256
MOST_IDS = 1 << 30
MOST_PROGRAMS = (1 << 31) - 1

_INT32_MAX = 2**31 - 1


class Call(NamedTuple):
    """What every resolve takes besides its results: the state and the shapes of this call and the next (ops/schema.py)."""

    tokens: Tensor
    length: Tensor
    cache_len: Tensor
    draft: Tensor
    draft_len: Tensor
    finish_reason: Tensor
    nfe: Tensor
    advances: Tensor
    limit: Tensor
    prompt_length: Tensor
    stops: Tensor
    verifier_rows: int
    block_size: int
    cuts: Sequence[int]
    shift: int
    mask_token_id: int
    next_verifier_rows: int
    next_cuts: Sequence[int]
    next_ids: Tensor | None
    next_positions: Tensor | None
    next_slots: Tensor | None

    @property
    def rows(self) -> int:
        return rows_of(self.verifier_rows, self.block_size, self.cuts)

    @property
    def next_rows(self) -> int:
        return rows_of(self.next_verifier_rows, self.block_size, self.next_cuts)


def rows_of(verifier_rows: int, block_size: int, cuts: Sequence[int]) -> int:
    return verifier_rows + len(cuts) * block_size


class _Checker:
    """Checks the arguments of one operator, whose tensors are all on one device."""

    def __init__(self, op: str, device: torch.device) -> None:
        self.op, self.device = op, device
        self.require(device.type == "cuda" or (triton.knobs.runtime.interpret and device.type == "cpu"),
                     f"tensors must be on a CUDA device, got {device}")

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            raise ValueError(f"{self.op}: {message}.")

    def tensor(self, name: str, t: Tensor, dtype: torch.dtype, shape: Sequence[int], meaning: str) -> None:
        fits = t.dtype == dtype and list(t.shape) == list(shape) and t.is_contiguous() and t.device == self.device
        self.require(fits, f"{name} must be contiguous {_name(dtype)} {meaning} = {list(shape)} on {self.device}, {_got(t)}")

    def matrix(self, name: str, t: Tensor, rows: int | None, meaning: str) -> None:
        """The same of an int32 matrix with any number of columns but 0."""
        fits = t.dim() == 2 and (rows is None or t.shape[0] == rows) and t.shape[1] >= 1
        self.require(fits and t.dtype == torch.int32 and t.is_contiguous() and t.device == self.device,
                     f"{name} must be contiguous int32 {meaning} on {self.device}, {_got(t)}")

    def vectors(self, n: int, **vectors: Tensor) -> None:
        for name, t in vectors.items():
            self.tensor(name, t, torch.int32, [n], "[N]")

    def shape(self, prefix: str, verifier_rows: int, block_size: int, cuts: Sequence[int]) -> None:
        self.require(1 <= block_size <= 32767, f"block_size must be in 1 ... 32767, got {block_size}")
        self.require(0 <= verifier_rows <= block_size,
                     f"{prefix}verifier_rows must be in 0 ... block_size = {block_size}, got {verifier_rows}")
        ascending = all(low < high for low, high in zip(cuts, cuts[1:], strict=False)) and len(cuts) <= MOST_CUTS
        inside = cuts[0] == 0 and cuts[-1] < block_size if cuts else verifier_rows > 0
        self.require(ascending and inside, f"{prefix}cuts must ascend from 0, below block_size = {block_size}, {MOST_CUTS} at most, "
                                           f"and none only with verifier rows, got {list(cuts)}")

    def rows(self, prefix: str, n: int, rows: int, mask_token_id: int, ids: Tensor, positions: Tensor, slots: Tensor) -> None:
        self.require(0 <= mask_token_id <= _INT32_MAX, f"mask_token_id must be in 0 ... 2^31 - 1, got {mask_token_id}")
        for name, t in (("ids", ids), ("positions", positions), ("slots", slots)):
            self.tensor(prefix + name, t, torch.int32, [n, rows], "[N, rows]")


def check_logits(op: str, logits: Tensor, call: Call) -> None:
    """Refuses logits that a resolve does not take, then a call that does not fit them."""
    check = _Checker(op, logits.device)
    check.require(logits.dtype in DTYPES, f"logits must be float32, bfloat16 or float16, got {_name(logits.dtype)}")
    check.require(logits.dim() == 3 and 1 <= logits.shape[2] <= MOST_IDS,
                  f"logits must be [N, rows, V] with V in 1 ... 2^30, got {list(logits.shape)}")
    check.require(logits.stride(2) == 1 or logits.shape[2] == 1,
                  f"logits must be contiguous along the vocabulary, got strides {list(logits.stride())}")
    _check_call(check, "logits", logits, call)


def check_results(best: Tensor, ids: Tensor, call: Call) -> None:
    """Refuses what `resolve_argmax` does not take."""
    check = _Checker("resolve_argmax", best.device)
    check.require(best.dtype == torch.float32 and best.dim() == 2 and best.is_contiguous(),
                  f"best must be contiguous float32 [N, rows], {_got(best)}")
    check.tensor("ids", ids, torch.int32, best.shape, "[N, rows] as in best")
    _check_call(check, "best", best, call)


def _check_call(check: _Checker, of: str, results: Tensor, call: Call) -> None:
    n = results.shape[0]
    check.shape("", call.verifier_rows, call.block_size, call.cuts)
    check.require(call.shift in (0, 1), f"shift must be 0 or 1, got {call.shift}")
    check.require(results.shape[1] == call.rows, f"{of} must have verifier_rows + len(cuts) * block_size = {call.rows} rows, "
                                                 f"got {list(results.shape)}")
    check.matrix("tokens", call.tokens, n, f"[N, T] with N = {n} as in {of}")
    check.tensor("draft", call.draft, torch.int32, [n, call.block_size - 1], "[N, W]")
    check.vectors(n, length=call.length, cache_len=call.cache_len, draft_len=call.draft_len, finish_reason=call.finish_reason,
                  nfe=call.nfe, limit=call.limit, prompt_length=call.prompt_length)
    check.matrix("advances", call.advances, n, f"[N, calls] with N = {n} as in {of}")
    check.matrix("stops", call.stops, None, "[S, M] with M >= 1")
    buffers = call.next_ids, call.next_positions, call.next_slots
    if any(buffer is not None for buffer in buffers):
        check.require(all(buffer is not None for buffer in buffers),
                      "next_ids, next_positions and next_slots must be given together or not at all")
        check.shape("next_", call.next_verifier_rows, call.block_size, call.next_cuts)
        check.rows("next_", n, call.next_rows, call.mask_token_id, *buffers)


def check_sampling(op: str, logits: Tensor, seed: Tensor, temperature: float, top_k: int, top_p: float) -> None:
    """Refuses settings that no distribution has."""
    check = _Checker(op, logits.device)
    check.tensor("seed", seed, torch.int64, logits.shape[:1], "[N]")
    single = torch.tensor(temperature, dtype=torch.float32).item()
    check.require(single > 0 and math.isfinite(single),
                  f"temperature must be a float32 number above 0 and finite, got {temperature}")
    check.require(top_k >= 0, f"top_k must be 0 (every token) or more, got {top_k}")
    check.require(0 < top_p <= 1, f"top_p must be in (0, 1], got {top_p}")


def check_draft_log_q(op: str, logits: Tensor, block_size: int, draft_log_q: Tensor) -> None:
    """Refuses a buffer that log Q of a draft does not fit."""
    shape = [logits.shape[0], block_size - 1, logits.shape[2]]
    _Checker(op, logits.device).tensor("draft_log_q", draft_log_q, torch.float32, shape, "[N, W, V]")


def check_pack(tokens: Tensor, length: Tensor, cache_len: Tensor, draft: Tensor, draft_len: Tensor, mask_token_id: int,
               verifier_rows: int, block_size: int, cuts: Sequence[int], ids: Tensor, positions: Tensor, slots: Tensor) -> None:
    """Refuses what `pack_block` does not take."""
    check = _Checker("pack_block", tokens.device)
    check.matrix("tokens", tokens, None, "[N, T]")
    n = tokens.shape[0]
    check.shape("", verifier_rows, block_size, cuts)
    check.tensor("draft", draft, torch.int32, [n, block_size - 1], "[N, W]")
    check.vectors(n, length=length, cache_len=cache_len, draft_len=draft_len)
    check.rows("", n, rows_of(verifier_rows, block_size, cuts), mask_token_id, ids, positions, slots)


def check_programs(op: str, programs: int) -> None:
    """Refuses a launch of more programs than a grid can have."""
    if programs > MOST_PROGRAMS:
        raise ValueError(f"{op}: logits must be few enough for 2^31 - 1 programs, got {programs} of them.")


def _name(of: torch.dtype) -> str:
    return str(of).removeprefix("torch.")


def _got(t: Tensor) -> str:
    return f"got {'' if t.is_contiguous() else 'non-contiguous '}{_name(t.dtype)} {list(t.shape)} on {t.device}"
