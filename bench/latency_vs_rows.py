"""Time of one model call against its number of rows, as `packed_ss.evaluation.bench.latency` measures it.

python bench/latency_vs_rows.py --threads 2 --json latency.json --plot latency.png
python bench/latency_vs_rows.py --shape 8B --device cuda --prefix 1024
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from device.models import SHAPES, random_model
from device.record import write_json

import packed_ss
from packed_ss.evaluation.bench.figures import latency_lines
from packed_ss.evaluation.bench.latency import HEADS, MASKS, ROWS, describe, measure
from packed_ss.evaluation.plots import save

DTYPES = ("float32", "bfloat16", "float16")


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
    parser.add_argument("--mask", choices=MASKS, help="default: packed for the block layout")
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
        head=args.head,
        capacity=args.capacity if on_gpu else 0,
        seconds=args.seconds,
    )
    print(describe(record))
    if args.json:
        write_json(args.json, record)
    if args.plot:
        save(latency_lines([record]), args.plot)


if __name__ == "__main__":
    main()
