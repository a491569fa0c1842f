"""Time of one model call against its number of rows, and the line tau + delta * n through it.

    python bench/latency_vs_rows.py --threads 2 --json latency.json --plot latency.png
    python bench/latency_vs_rows.py --shape 8B --device cuda --prefix 1024

A call is the whole forward of one sequence (embedding, layers, attention over a filled cache, head), with the rows' mask as in a
packed call (half of them verifier rows, half a proposal region) or causal.  The row counts take turns; reported are medians.  On
a GPU each call is captured as a CUDA graph and replayed between events.  The floor beside it is the time in which the memory, at
the bandwidth of a large copy in the same run, moves the weights that a call reads.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from device.bandwidth import measure_bandwidth
from device.models import SHAPES, cache_bytes, filled_cache, random_model, weight_bytes
from device.plots import latency_title, plot_latency
from device.record import columns, write_json
from device.runtime import Sampler, interleave, l2_bytes, open_runtime

import packed_ss
from packed_ss import ops
from packed_ss.layouts.block import tables
from packed_ss.models.attention import CachedAttention, SlotCache
from packed_ss.models.transformer import Transformer
from packed_ss.rows import Rows

ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 289)
#: A line is fitted through all points, and through those of at most so many rows: packed calls of B = 32.
SHORT = 64
MASKS = ("packed", "causal")
HEADS = ("logits", "fused")
DTYPES = ("float32", "bfloat16", "float16")


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
    return {"rows": [int(n.min()), int(n.max())], "points": len(n), "tau_ms": float(tau), "delta_ms": float(delta),
            "rms_ms": float(np.sqrt(np.mean(residual**2))), "largest_relative": float(np.max(np.abs(residual) / t))}


@torch.no_grad()
def measure(model: Transformer, name: str, *, rows: Sequence[int] = ROWS, prefix: int = 1024, mask: str = "packed",
            head: str = "logits", capacity: int = 0, seconds: float = 20.0, copy_bytes: int = 2**30) -> dict[str, Any]:
    """One record: a point per row count, the fits, the floor, and what they were measured on."""
    weight = model.head.weight
    runtime = open_runtime(weight.device)
    bandwidth = measure_bandwidth(runtime, copy_bytes)
    cache = filled_cache(model, max(capacity, prefix + max(rows) + 1))
    samplers = {count: Sampler(runtime, model_call(model, cache, count, prefix, mask, head)) for count in rows}
    if weight.device.type == "cuda":
        samplers = {count: one.lasting(10.0) for count, one in samplers.items()}
    times = interleave(samplers, seconds)
    points = [{"rows": count, **times[count]} for count in rows]
    medians = [point["median_ms"] for point in points]
    fits = [fit_line(rows, medians)] if len(rows) > 1 else []
    short = [(n, t) for n, t in zip(rows, medians, strict=True) if n <= SHORT]
    if 2 < len(short) < len(rows):
        fits.append(fit_line(*zip(*short, strict=True)))
    read, c = weight_bytes(model), model.config
    notes = []
    if read <= 2 * l2_bytes(weight.device):
        notes.append("the weights are no larger than twice the last cache: in turns with others they may still be served from it")
    if weight.device.type == "cpu" and (load := os.getloadavg()[0]) > torch.get_num_threads() + 0.5:
        notes.append(f"the machine was busy with other work too: load average {load:.1f}")
    return {
        "model": name, "device": device_name(weight.device), "dtype": str(weight.dtype).removeprefix("torch."), "prefix": prefix,
        "mask": mask, "head": head, "capacity": cache.capacity, "torch": torch.__version__, "threads": torch.get_num_threads(),
        "kernels": ops.kernels(weight.device.type), "weight_bytes": read, "cache_bytes": cache_bytes(c, prefix, weight.dtype),
        "l2_bytes": l2_bytes(weight.device) if weight.device.type == "cuda" else None, **bandwidth,
        "floor_ms": read / bandwidth["copy_gb_s"] / 1e6, "points": points, "fits": fits, "notes": notes}


def device_name(device: torch.device) -> str:
    """The card, or the CPU by its instruction set."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.backends.cpu.get_cpu_capability()})"


def table(record: dict[str, Any]) -> str:
    """The record as text."""
    floor = record["floor_ms"]
    lines = [latency_title(record), f"  weights {record['weight_bytes'] / 1e9:.3f} GB, copy {record['copy_gb_s']:.1f} GB/s, read "
                            f"{record['read_gb_s']:.1f} GB/s: floor {floor:.3f} ms"]
    lines += columns([("rows", "median", "quartiles", "over floor")] + [
        (str(point["rows"]), f"{point['median_ms']:.3f} ms", f"{point['p25_ms']:.3f} to {point['p75_ms']:.3f}",
         f"{point['median_ms'] / floor:.2f}") for point in record["points"]])
    for fit in record["fits"]:
        low, high = fit["rows"]
        lines.append(f"  {low} to {high} rows: {fit['tau_ms']:.3f} ms + {fit['delta_ms']:.5f} ms * n, rms residual "
                     f"{fit['rms_ms']:.4f} ms, at most {100 * fit['largest_relative']:.1f} % off")
    return "\n".join(lines + [f"  note: {note}" for note in record["notes"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", default="tiny", help="a checkpoint, as load_model takes it")
    what.add_argument("--shape", choices=SHAPES, help="random weights in this shape instead")
    parser.add_argument("--device", default=None, help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--prefix", type=int, default=256, help="slots in the cache")
    parser.add_argument("--capacity", type=int, default=4096, help="slots that the cache of a GPU has, at least")
    parser.add_argument("--mask", choices=MASKS, default="packed")
    parser.add_argument("--head", choices=HEADS, help="default: logits on a CPU, fused on a GPU, as the decoders have it")
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring, about")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--json", type=Path, help="also write the record to this file")
    parser.add_argument("--plot", type=Path, help="also draw it into this file (.png, .svg or .pdf)")
    args = parser.parse_args()
    if min(args.rows) < 1 or args.prefix < 0:
        parser.error("--rows must be 1 or more, and --prefix 0 or more")
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    on_gpu = device.type == "cuda"
    dtype = getattr(torch, args.dtype or ("bfloat16" if on_gpu else "float32"))
    if args.shape:
        model, name = random_model(SHAPES[args.shape], device, dtype), f"{args.shape} shape, random weights"
    else:
        model, name = packed_ss.load_model(args.model, device=device, dtype=dtype), args.model
    record = measure(model, name, rows=sorted(set(args.rows)), prefix=args.prefix, mask=args.mask,
                     head=args.head or ("fused" if on_gpu else "logits"), capacity=args.capacity if on_gpu else 0,
                     seconds=args.seconds, copy_bytes=2**31 if on_gpu else 2**28)
    print(table(record))
    if args.json:
        write_json(args.json, record)
    if args.plot:
        plot_latency([record], args.plot)


if __name__ == "__main__":
    main()
