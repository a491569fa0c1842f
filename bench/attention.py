"""tail_attention beside scaled_dot_product_attention with a dense mask, and beside its own plain-torch version.

    python bench/attention.py --threads 2 --json bench/results/attention.json

The contenders take turns on the same operands; reported are medians.  Beside them stand the bytes that a call must move (keys
and values of the visible slots, once) and the time of a plain multi-threaded read of as many bytes in the same run.
`test_bench_attention.py` runs the same cases under pytest-benchmark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import packed_ss.ops  # noqa: F401 - defines torch.ops.packed_ss
from packed_ss.layouts.block import tables
from packed_ss.ops import attention, native


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

    @property
    def bytes_moved(self) -> int:
        """Keys and values of the visible slots, once."""
        return 2 * (self.prefix + self.rows) * self.kv_heads * self.size * self.dtype.itemsize

    @property
    def flops(self) -> int:
        return 4 * self.rows * self.heads * self.size * (self.prefix + self.rows)


#: The shape of an 8B model over short and long prefixes, one row of it, and the bundled checkpoint's.
SHAPES = [
    Shape(rows, 32, 8, 128, prefix, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for rows in (64, 1)
    for prefix in (1024, 8192, 32768)
]
SHAPES += [Shape(rows, 6, 2, 32, prefix, torch.float32) for rows in (1, 18, 32) for prefix in (100, 200)]


def contenders(shape: Shape) -> dict[str, Callable[[], Tensor]]:
    """The implementations by name, on one set of operands.

    "sdpa" is scaled_dot_product_attention(enable_gqa=True); "sdpa expanded" gets keys and values that were repeated for every
    query head beforehand, which takes their time and memory elsewhere.
    """
    rng = torch.Generator().manual_seed(0)
    slots = shape.prefix + shape.rows

    def random(rows: int, heads: int) -> Tensor:
        return torch.randn(1, rows, heads, shape.size, generator=rng).to(shape.dtype)

    q, k_cache, v_cache = random(shape.rows, shape.heads), random(slots + 1, shape.kv_heads), random(slots + 1, shape.kv_heads)
    half = shape.rows // 2
    tail_mask = tables(shape.rows - half, max(half, 1), (0,) if half else (), torch.device("cpu")).tail_mask
    cache_len = torch.tensor([shape.prefix], dtype=torch.int32)
    scale = shape.size**-0.5
    visible = attention.visible_slots(cache_len, tail_mask, slots)[0]
    bias = torch.zeros(visible.shape, dtype=shape.dtype).masked_fill(~visible, -torch.inf)
    rows, keys, values = (x.transpose(1, 2) for x in (q, k_cache[:, :slots], v_cache[:, :slots]))
    group = shape.heads // shape.kv_heads
    all_keys, all_values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    found = (
        {"native": lambda: torch.ops.packed_ss.tail_attention(q, k_cache, v_cache, cache_len, tail_mask, scale)}
        if "tail_attention" in native.info().get("kernels", {}).get("cpu", ())
        else {}
    )
    return found | {
        "sdpa": lambda: F.scaled_dot_product_attention(rows, keys, values, bias, enable_gqa=True),
        "sdpa expanded": lambda: F.scaled_dot_product_attention(rows, all_keys, all_values, bias),
        "torch": lambda: attention.tail_attention(q, k_cache, v_cache, cache_len, tail_mask, scale),
    }


def plain_read(count: int) -> Callable[[], Tensor]:
    """Reads about ``count`` bytes with all threads and does as little with them as torch can."""
    data = torch.ones(max(count // 4, 1), dtype=torch.int32)
    return data.max


def measure(shape: Shape, seconds: float) -> dict:
    """Medians in milliseconds, by contender; they take turns, at least five each, for about ``seconds``."""
    runs = contenders(shape) | {"plain read": plain_read(shape.bytes_moved)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times["plain read"]) < 5:
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {
        "shape": shape.name,
        "rounds": len(times["plain read"]),
        "bytes_moved": shape.bytes_moved,
        "flops": shape.flops,
        "median_ms": {name: statistics.median(values) for name, values in times.items()},
        "min_ms": {name: min(values) for name, values in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="per shape")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--json", help="also write the records to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.threads} threads, {torch.backends.cpu.get_cpu_capability()}, {native.describe()}")
    records = []
    for shape in SHAPES:
        if args.only not in shape.name:
            continue
        record = measure(shape, args.seconds)
        records.append(record)
        median = record["median_ms"]
        read = record["bytes_moved"] / median["plain read"] / 1e6
        print(f"{shape.name}: {record['bytes_moved'] / 1e6:.2f} MB, plain read {read:.1f} GB/s, {record['rounds']} rounds")
        for name, ms in median.items():
            print(
                f"    {name:14} {ms:10.3f} ms  {record['bytes_moved'] / ms / 1e6:7.2f} GB/s"
                + ("" if name == "plain read" else f"  {shape.flops / ms / 1e6:7.1f} GFLOP/s")
            )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "threads": args.threads,
                    "capability": torch.backends.cpu.get_cpu_capability(),
                    "torch": torch.__version__,
                    "kernels": native.info(),
                    "records": records,
                },
                file,
                indent=1,
                default=str,
            )


if __name__ == "__main__":
    main()
