"""packed_ss on NVIDIA GPUs: the names of `packed_ss`, with the captured runtime required.

    import packed_ss.cuda as packed_ss

Importing it needs no GPU; `is_available` tells, and `load_model` and `Decoder` say in one sentence what is missing.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

import torch

from . import __version__, decoder
from .decoder import GenerateOutput
from .models import glue, loading
from .models.tokenizer import load_tokenizer
from .models.transformer import Transformer
from .observer import Observer
from .ops import kernels
from .runtime import device_loop
from .runtime.captured import need_gpu, unavailable
from .schedules import Branched

__all__ = [
    "Branched",
    "Decoder",
    "GenerateOutput",
    "Observer",
    "__version__",
    "generate",
    "info",
    "is_available",
    "load_model",
    "load_tokenizer",
    "unavailable",
]


def is_available() -> bool:
    """Whether this process has a GPU that torch can use."""
    return not unavailable()


def info() -> dict[str, Any]:
    """What decoding on the GPU would use here, and what is missing for it.

    available, reason; torch, cuda, triton, flashinfer: versions or None; kernels: by operator "native", "triton" or
    "torch"; device_loop: empty, or why ``loop="device"`` would fall back.  With a GPU also device, capability, memory_gib.
    """
    reason = unavailable()
    facts: dict[str, Any] = {
        "available": not reason,
        "reason": reason,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "flashinfer": _version("flashinfer"),
        "glue": glue.unavailable() or "FlashInfer",
        "kernels": kernels("cuda"),
        "device_loop": device_loop.unavailable(),
    }
    if not reason:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / 2**30, 1),
        }
    return facts


def load_model(
    path_or_id: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> Transformer:
    """`packed_ss.load_model` onto a GPU.  Raises RuntimeError where there is none, ValueError for another device."""
    need_gpu()
    if device is not None and torch.device(device).type != "cuda":
        raise ValueError(f"device is {str(device)!r}, but packed_ss.cuda loads onto a GPU; packed_ss.load_model takes any device")
    return loading.load_model(path_or_id, device=device or "cuda", dtype=dtype, revision=revision, adapter=adapter)


class Decoder(decoder.Decoder):
    """`packed_ss.Decoder` with the captured runtime: refuses in one sentence where there is no GPU to capture on."""

    runtimes = ("captured",)


def generate(model: Transformer, input_ids: Any, max_new_tokens: int = 512, **options: Any) -> GenerateOutput:
    """`packed_ss.generate` on the GPU.  It warms up and captures anew each time: keep a `Decoder` to decode more than once."""
    return decoder.generate(model, input_ids, max_new_tokens, decoder=Decoder, **options)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
