"""What stands between the matrix products: residual sum with RMSNorm, and SwiGLU.

On CUDA in half precision FlashInfer's kernels compute both, where it is installed and works; torch everywhere else.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

_log = logging.getLogger(__name__)
_unavailable = "" if importlib.util.find_spec("flashinfer") else "FlashInfer is not installed"


def unavailable() -> str:
    """Why FlashInfer is not used on CUDA, in a sentence; empty where it is."""
    return _unavailable


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """s = x + update, and s / rms(s) * weight over the last dimension; both [N, R, H].  ``x`` and ``update`` are used up."""
    if _serves(x):

        def fused(norm: Callable[..., None]) -> tuple[Tensor, Tensor]:
            norm(update.flatten(0, -2), x.flatten(0, -2), weight, eps)  # in place: x becomes s, update the norm
            return x, update

        if (result := _try("fused_add_rmsnorm", fused)) is not None:
            return result
    total = x + update
    return total, F.rms_norm(total, weight.shape, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for [gate | up] of [N, R, 2 I]."""
    if _serves(gate_up):
        result = _try("silu_and_mul", lambda kernel: kernel(gate_up.flatten(0, -2)).view(*gate_up.shape[:-1], -1))
        if result is not None:
            return result
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _serves(x: Tensor) -> bool:
    return x.is_cuda and not _unavailable and x.dtype in (torch.float16, torch.bfloat16) and x.is_contiguous()


def _try(name: str, use: Callable):
    """What ``use`` makes of the kernel; None where it fails to build or start, after which FlashInfer is left alone.

    It compiles on first use, which may go wrong on a machine without a compiler.  A kernel that cannot start has changed
    nothing, so torch can take over.
    """
    global _unavailable
    import flashinfer

    try:
        return use(getattr(flashinfer, name))
    except Exception as error:  # whatever a compiler, loader or older version raises
        if torch.cuda.is_current_stream_capturing():
            raise
        _unavailable = f"FlashInfer's {name} does not work here: {str(error).strip().splitlines()[0] if str(error) else error!r}"
        _log.warning("%s; torch takes its place", _unavailable)
        return None
