"""The clock of every bench here (`packed_ss.evaluation.bench.clock`), and what decodes where there is no GPU."""

from __future__ import annotations

from typing import Any

import torch

from packed_ss import cuda
from packed_ss.evaluation.bench.clock import EagerRuntime, Sampler, interleave, l2_bytes, open_runtime, summary

__all__ = [
    "EagerDecoder",
    "EagerRuntime",
    "Sampler",
    "copies_beyond_cache",
    "decoder_class",
    "interleave",
    "l2_bytes",
    "open_runtime",
    "summary",
]


class EagerDecoder(cuda.Decoder):
    """`packed_ss.cuda.Decoder`, every line of it but the capture, for a model on the CPU."""

    def _open(self, device: torch.device, dtype: torch.dtype) -> Any:
        return EagerRuntime(device)


def decoder_class(device: torch.device) -> type[cuda.Decoder]:
    """The captured decoder, or its stand-in where nothing can be captured."""
    return cuda.Decoder if device.type == "cuda" else EagerDecoder


def copies_beyond_cache(device: torch.device, size: int, *, least: int = 2, most: int = 64) -> int:
    """How many operands of ``size`` bytes to use in turn, so that none is in the cache when its turn comes again."""
    return max(least, min(most, -(-4 * l2_bytes(device) // max(size, 1))))
