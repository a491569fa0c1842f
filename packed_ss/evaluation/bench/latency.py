"""Time of one model call against its number of rows, and the line tau + delta * n through it.

A call is the whole forward of one sequence (embedding, layers, attention over a filled cache, head), with the rows' mask as in a
packed call (half of them verifier rows, half a proposal region) or causal.  The row counts take turns; reported are medians.  On
a GPU each call is captured as a CUDA graph and replayed between events.  The floor beside it is the time in which the memory, at
the bandwidth of a large copy in the same run, moves the weights that a call reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ... import ops
from ...layouts.block import tables
from ...models.attention import CachedAttention, SlotCache
from ...models.transformer import Transformer
from ...rows import Rows
from .bandwidth import measure_bandwidth
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
    asked = torch.full_like(ids, -1)  # nothing is made of the logits
    return Rows(ids, prefix + table.offset[None], prefix + table.row[None], asked, table.tail_mask, cache_len)


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
    copy_bytes: int | None = None,
) -> dict[str, Any]:
    """Return a record: a point per row count, the fits, the floor, and what they were measured on.

    ``mask`` None is packed for the block layout, else causal; ``head`` None is fused on a GPU, else logits, as the decoders have
    it.  ``copy_bytes``: what the copy moves that the floor follows from, None for 2 GiB on a GPU and 256 MiB else.
    """
    weight, c = model.head.weight, model.config
    on_gpu = weight.device.type == "cuda"
    mask = mask or ("packed" if c.layout == "block" else "causal")
    head = head or ("fused" if on_gpu and c.layout == "block" else "logits")
    runtime = open_runtime(weight.device)
    bandwidth = measure_bandwidth(runtime, copy_bytes or (2**31 if on_gpu else 2**28))
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
        **bandwidth,
        "floor_ms": read / bandwidth["copy_gb_s"] / 1e6,
        "cache_bytes": SlotCache.bytes(c, 1, prefix, weight.dtype),
        "l2_bytes": l2_bytes(weight.device) if on_gpu else None,
        "points": points,
        "fits": fits,
        "notes": notes,
    }


def title_of(record: Mapping[str, Any]) -> str:
    """Say on one line what was measured."""
    threads = f", {record['threads']} threads" if record["device"].startswith("CPU") else ""
    return f"{record['model']}, {record['dtype']}, prefix {record['prefix']}, {record['mask']}, {record['device']}{threads}"


def describe(record: Mapping[str, Any]) -> str:
    """Return a record as text."""
    floor = record["floor_ms"]
    lines = [
        title_of(record),
        f"  weights {record['weight_bytes'] / 1e9:.3f} GB, copy {record['copy_gb_s']:.1f} GB/s, read "
        f"{record['read_gb_s']:.1f} GB/s: floor {floor:.3f} ms",
    ]
    for point in record["points"]:
        median, low, high = (point[name] for name in ("median_ms", "p25_ms", "p75_ms"))
        lines.append(f"  {point['rows']:4} rows {median:9.3f} ms  ({low:.3f} to {high:.3f}), {median / floor:.2f} x floor")
    for fit in record["fits"]:
        low, high = fit["rows"]
        lines.append(
            f"  {low} to {high} rows: {fit['tau_ms']:.3f} ms + {fit['delta_ms']:.5f} ms * n, rms residual "
            f"{fit['rms_ms']:.4f} ms, at most {100 * fit['largest_relative']:.1f} % off"
        )
    return "\n".join(lines + [f"  note: {note}" for note in record["notes"]])


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
