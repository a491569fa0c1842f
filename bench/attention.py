"""tail_attention beside scaled_dot_product_attention with a dense mask, and beside its own plain-torch version, on a CPU.

    python bench/attention.py --threads 2 --json bench/results/attention.json

The candidates take turns on the same operands; reported are medians.  Beside them stand the bytes that a call must move (keys
and values of the visible slots, once) and the time of a plain multi-threaded read of as many bytes in the same run.
`test_bench_attention.py` runs the same cases under pytest-benchmark.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from device.attention import Operands, ours, sdpa
from device.record import write_json
from torch import Tensor

import packed_ss.ops  # noqa: F401 - defines torch.ops.packed_ss
from packed_ss.evaluation.bench.bandwidth import plain_read
from packed_ss.evaluation.bench.clock import Sampler, interleave, open_runtime
from packed_ss.ops import attention, native

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """R rows of a packed call over a prefix."""

    rows: int
    heads: int
    kv_heads: int
    size: int
    prefix: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype} R={self.rows} Hq={self.heads} Hkv={self.kv_heads} D={self.size} prefix={self.prefix}"


#: The shape of an 8B model over short and long prefixes, one row of it, and the bundled checkpoint's.
SHAPES = [
    Shape(rows, 32, 8, 128, prefix, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for rows in (64, 1)
    for prefix in (1024, 8192, 32768)
]
SHAPES += [Shape(rows, 6, 2, 32, prefix, torch.float32) for rows in (1, 18, 32) for prefix in (100, 200)]


def operands_of(shape: Shape) -> Operands:
    """Random operands of one layer."""
    return Operands(
        CPU,
        shape.dtype,
        rows=shape.rows,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        size=shape.size,
        prefix=shape.prefix,
    )


def candidates(operands: Operands) -> dict[str, Callable[[], Tensor]]:
    """The implementations by name, on one set of operands; native where it is built.

    "sdpa" is scaled_dot_product_attention(enable_gqa=True); "sdpa expanded" gets keys and values that were repeated for every
    query head beforehand, which takes their time and memory elsewhere.
    """
    layers = {"native": ours(operands)} if "tail_attention" in native.kernels("cpu") else {}
    layers |= {
        "sdpa": sdpa(operands, expanded=False),
        "sdpa expanded": sdpa(operands, expanded=True),
        "torch": ours(operands, attention.tail_attention),
    }
    runs = {name: functools.partial(layer, 0) for name, layer in layers.items()}
    return runs | {"plain read": plain_read(torch.ones(operands.bytes_read, dtype=torch.uint8))}


def measure(shape: Shape, seconds: float) -> dict[str, Any]:
    """Medians in milliseconds, by candidate; they take turns for about ``seconds``."""
    operands, runtime = operands_of(shape), open_runtime(CPU)
    times = interleave({name: Sampler(runtime, run) for name, run in candidates(operands).items()}, seconds, most=10_000)
    return {
        "shape": shape.name,
        "rounds": times["plain read"]["samples"],
        "bytes_moved": operands.bytes_read,
        "flops": operands.flops,
        "median_ms": {name: found["median_ms"] for name, found in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="per shape")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--json", type=Path, help="also write the records to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{args.threads} threads, {capability}, {native.describe()}")
    records = []
    for shape in (shape for shape in SHAPES if args.only in shape.name):
        record = measure(shape, args.seconds)
        records.append(record)
        moved, median = record["bytes_moved"], record["median_ms"]
        read = moved / median["plain read"] / 1e6
        print(f"{shape.name}: {moved / 1e6:.2f} MB, plain read {read:.1f} GB/s, {record['rounds']} rounds")
        for name, ms in median.items():
            flops = "" if name == "plain read" else f"  {record['flops'] / ms / 1e6:7.1f} GFLOP/s"
            print(f"    {name:14} {ms:10.3f} ms  {moved / ms / 1e6:7.2f} GB/s{flops}")
    if args.json:
        about = {"threads": args.threads, "capability": capability, "torch": torch.__version__, "kernels": native.info()}
        write_json(args.json, about | {"records": records})


if __name__ == "__main__":
    main()
