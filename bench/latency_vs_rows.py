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
from pathlib import Path
from typing import Any

import torch
from device.bandwidth import measure_bandwidth
from device.models import SHAPES, random_model
from device.plots import latency_title, plot_latency
from device.record import columns, write_json
from device.runtime import open_runtime

import packed_ss
from packed_ss.evaluation.bench import latency
from packed_ss.evaluation.bench.latency import HEADS, MASKS, ROWS, call_rows, fit_line, model_call
from packed_ss.models.transformer import Transformer

__all__ = ["HEADS", "MASKS", "ROWS", "call_rows", "fit_line", "measure", "model_call", "table"]

DTYPES = ("float32", "bfloat16", "float16")


def measure(
    model: Transformer,
    name: str,
    *,
    copy_bytes: int = 2**30,
    prefix: int = 1024,
    mask: str = "packed",
    head: str = "logits",
    **options: Any,
) -> dict[str, Any]:
    """A record of `packed_ss.evaluation.bench.latency.measure`, with the floor and the bandwidth that it comes from."""
    runtime = open_runtime(model.head.weight.device)
    bandwidth = measure_bandwidth(runtime, copy_bytes)
    record = latency.measure(model, name, prefix=prefix, mask=mask, head=head, runtime=runtime, **options)
    return record | bandwidth | {"floor_ms": record["weight_bytes"] / bandwidth["copy_gb_s"] / 1e6}


def table(record: dict[str, Any]) -> str:
    """The record as text."""
    floor = record["floor_ms"]
    lines = [
        latency_title(record),
        f"  weights {record['weight_bytes'] / 1e9:.3f} GB, copy {record['copy_gb_s']:.1f} GB/s, read "
        f"{record['read_gb_s']:.1f} GB/s: floor {floor:.3f} ms",
    ]
    lines += columns(
        [("rows", "median", "quartiles", "over floor")]
        + [
            (
                str(point["rows"]),
                f"{point['median_ms']:.3f} ms",
                f"{point['p25_ms']:.3f} to {point['p75_ms']:.3f}",
                f"{point['median_ms'] / floor:.2f}",
            )
            for point in record["points"]
        ]
    )
    for fit in record["fits"]:
        low, high = fit["rows"]
        lines.append(
            f"  {low} to {high} rows: {fit['tau_ms']:.3f} ms + {fit['delta_ms']:.5f} ms * n, rms residual "
            f"{fit['rms_ms']:.4f} ms, at most {100 * fit['largest_relative']:.1f} % off"
        )
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
    record = measure(
        model,
        name,
        rows=sorted(set(args.rows)),
        prefix=args.prefix,
        mask=args.mask,
        head=args.head or ("fused" if on_gpu else "logits"),
        capacity=args.capacity if on_gpu else 0,
        seconds=args.seconds,
        copy_bytes=2**31 if on_gpu else 2**28,
    )
    print(table(record))
    if args.json:
        write_json(args.json, record)
    if args.plot:
        plot_latency([record], args.plot)


if __name__ == "__main__":
    main()
