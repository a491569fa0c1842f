"""Time of one model call against its number of rows, and the line tau + delta * n through it.

A call is the whole forward of one sequence (embedding, layers, attention over a filled cache, head), with the rows' mask as in a
packed call (half of them verifier rows, half a proposal region) or causal.  The row counts take turns; reported are medians.  On
a GPU each call is captured as a CUDA graph and replayed between events.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ... import ops
from ...layouts.block import tables
from ...models.attention import CachedAttention, SlotCache
from ...models.config import ModelConfig
from ...models.transformer import Transformer
from ...rows import Rows
from .clock import Sampler, interleave, l2_bytes, open_runtime

ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 289)
#: A line is fitted through all points, and through those of at most so many rows: packed calls of B = 32.
SHORT = 64
MASKS = ("packed", "causal")
HEADS = ("logits", "fused")


def call_rows(count: int, prefix: int, mask: str, vocab_size: int, device: torch.device) -> Rows:
    """The rows of a call on top of ``prefix`` cached slots: causal, or a packed call's verifier rows and proposal region."""
    region = count // 2 if mask == "packed" else 0
    table = tables(count - region, max(region, 1), (0,) if region else (), device)
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(0, vocab_size, (1, count), generator=generator).to(device, torch.int32)
    cache_len = torch.tensor([prefix], dtype=torch.int32, device=device)
    return Rows(ids, prefix + table.offset[None], prefix + table.row[None], cache_len, table.tail_mask)


def model_call(model: Transformer, cache: SlotCache, count: int, prefix: int, mask: str, head: str) -> Callable[[], Any]:
    """A run of one call of ``count`` rows.

    ``head``: "logits" writes them, "fused" takes head and argmax in one operator.  Shown are all slots of the cache on a GPU and
    those in use on a CPU, as the decoders do.
    """
    device = model.head.weight.device
    rows = call_rows(count, prefix, mask, model.config.vocab_size, device)
    layers = cache.layers(1, cache.capacity if device.type == "cuda" else prefix + count + 1)

    def run() -> Any:
        attend = CachedAttention(rows, layers, model.config, model.frequencies)
        if head == "fused":
            return torch.ops.packed_ss.linear_argmax(model.hidden(rows.ids, attend), model.head.weight)
        return model(rows.ids, attend)

    return run


def fit_line(rows: Sequence[int], times: Sequence[float]) -> dict[str, Any]:
    """Least squares of tau + delta * n: tau_ms, delta_ms, with rms_ms and the largest relative residual, and over which rows."""
    n, t = np.asarray(rows, dtype=float), np.asarray(times, dtype=float)
    delta, tau = np.polyfit(n, t, 1)
    residual = t - (tau + delta * n)
    return {
        "rows": [int(n.min()), int(n.max())],
        "points": len(n),
        "tau_ms": float(tau),
        "delta_ms": float(delta),
        "rms_ms": float(np.sqrt(np.mean(residual**2))),
        "largest_relative": float(np.max(np.abs(residual) / t)),
    }


@torch.no_grad()
def measure(
    model: Transformer,
    name: str,
    *,
    rows: Sequence[int] = ROWS,
    prefix: int = 256,
    mask: str | None = None,
    head: str | None = None,
    capacity: int = 0,
    seconds: float = 20.0,
    runtime: Any = None,
) -> dict[str, Any]:
    """One record: a point per row count, the fits, and what they were measured on.

    ``mask`` None is packed for the block layout, else causal; ``head`` None is fused on a GPU, else logits, as the decoders have
    it; ``runtime`` None is that of the model's device.
    """
    weight, c = model.head.weight, model.config
    on_gpu = weight.device.type == "cuda"
    mask = mask or ("packed" if c.layout == "block" else "causal")
    head = head or ("fused" if on_gpu and c.layout == "block" else "logits")
    runtime = runtime or open_runtime(weight.device)
    cache = filled_cache(model, max(capacity, prefix + max(rows) + 1))
    samplers = {count: Sampler(runtime, model_call(model, cache, count, prefix, mask, head)) for count in rows}
    if on_gpu:
        samplers = {count: one.lasting(10.0) for count, one in samplers.items()}
    times = interleave(samplers, seconds)
    points = [{"rows": count, **times[count]} for count in rows]
    medians = [point["median_ms"] for point in points]
    fits = [fit_line(rows, medians)] if len(rows) > 1 else []
    short = [(n, t) for n, t in zip(rows, medians, strict=True) if n <= SHORT]
    if 2 < len(short) < len(rows):
        fits.append(fit_line(*zip(*short, strict=True)))
    read = weight_bytes(model)
    notes = []
    if read <= 2 * l2_bytes(weight.device):
        notes.append("the weights are no larger than twice the last cache: in turns with others they may still be served from it")
    if not on_gpu and (load := os.getloadavg()[0]) > torch.get_num_threads() + 0.5:
        notes.append(f"the machine was busy with other work too: load average {load:.1f}")
    return {
        "model": name,
        "device": device_name(weight.device),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "prefix": prefix,
        "mask": mask,
        "head": head,
        "capacity": cache.capacity,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "kernels": ops.kernels(weight.device.type),
        "weight_bytes": read,
        "cache_bytes": cache_bytes(c, prefix, weight.dtype),
        "l2_bytes": l2_bytes(weight.device) if on_gpu else None,
        "points": points,
        "fits": fits,
        "notes": notes,
    }


def device_name(device: torch.device) -> str:
    """The card, or the CPU by its instruction set."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.backends.cpu.get_cpu_capability()})"


@torch.no_grad()
def filled_cache(model: Transformer, capacity: int, seed: int = 1) -> SlotCache:
    """A cache of one sequence with ``capacity`` slots of random keys and values."""
    weight = model.head.weight
    cache = SlotCache(model.config, 1, capacity, weight.dtype, weight.device)
    generator = torch.Generator(weight.device).manual_seed(seed)
    for buffer in (cache.keys, cache.values):
        for layer in buffer:
            layer.normal_(generator=generator)
    return cache


def weight_bytes(model: Transformer) -> int:
    """Bytes of weights that every call reads: all of them but the embedding, of which it reads a row per token."""
    tied = model.config.tie_word_embeddings
    return sum(weight.numel() * weight.itemsize for name, weight in model.named_parameters() if tied or name != "embed.weight")


def cache_bytes(config: ModelConfig, slots: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one sequence that a call reads where it sees ``slots`` slots."""
    return 2 * config.num_layers * slots * config.num_kv_heads * config.head_dim * dtype.itemsize
