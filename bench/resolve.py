"""What turns a packed call's logits into the next state: compiled kernels beside plain torch, and beside a plain read, on a CPU.

    python bench/resolve.py --threads 2 --json bench/results/resolve.json

A resolve is what `packed_ss.resolve.Resolver` does after each call: tokens by argmax_rows, draw_rows or verify_rows, the advance,
and the next draft.  The candidates take turns on the same operands, each from a fresh copy of the state; reported are
medians.  The floor is a plain multi-threaded read of all logits in the same run; a kernel may beat it, since rows behind a
rejection and proposals for positions already resolved need not be read.
`test_bench_resolve.py` runs the same cases under pytest-benchmark.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from device.record import write_json
from device.resolves import OPERATORS, Operands, using

from packed_ss import ops
from packed_ss.evaluation.bench.clock import Sampler, interleave, open_runtime
from packed_ss.ops import native

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """A packed call of ``rows`` = 2B rows for one sequence."""

    mode: str
    rows: int
    vocab: int
    dtype: torch.dtype
    top_k: int = 0
    top_p: float = 1.0

    @property
    def name(self) -> str:
        filters = f" top-k {self.top_k} top-p {self.top_p}" if self.top_k else ""
        return f"{self.mode}{filters} rows={self.rows} V={self.vocab} {str(self.dtype).removeprefix('torch.')}"


SHAPES = [Shape(mode, 64, 131_072, torch.bfloat16) for mode in ("greedy", "coupled", "rejection")]
SHAPES += [Shape(mode, 64, 131_072, torch.bfloat16, 20, 0.9) for mode in ("coupled", "rejection")]
SHAPES += [Shape(mode, 32, 896, torch.float32) for mode in ("greedy", "coupled", "rejection")]


def operands_of(shape: Shape) -> Operands:
    """Random operands of the shape, as the eager runtime has them."""
    return Operands(
        CPU,
        shape.dtype,
        shape.mode,
        block_size=shape.rows // 2,
        vocab=shape.vocab,
        filters=(shape.top_k, shape.top_p),
        captured=False,
    )


def candidates(operands: Operands) -> dict[str, Callable[[], Any]]:
    """By name, runs that resolve the same logits; native where it is built."""
    plain = {name: ops._TORCH_KERNELS[name] for name in OPERATORS}

    def in_torch() -> None:
        with using(plain):
            operands.resolve(0)

    runs = {"native": lambda: operands.resolve(0)} if "advance_block" in native.kernels("cpu") else {}
    return runs | {"torch": in_torch, "plain read": operands.read_all()}


def measure(shape: Shape, seconds: float) -> dict[str, Any]:
    """Medians in microseconds of the candidates taking turns."""
    operands, runtime = operands_of(shape), open_runtime(CPU)
    samplers = {name: Sampler(runtime, run, before=operands.restore) for name, run in candidates(operands).items()}
    times = interleave(samplers, seconds, most=10_000)
    return {
        "case": shape.name,
        "bytes_moved": operands.bytes_read,
        "threads": torch.get_num_threads(),
        "runs": times["torch"]["samples"],
        "microseconds": {name: 1e3 * found["median_ms"] for name, found in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", type=Path, help="also write the records to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(native.describe())
    records = []
    for shape in (shape for shape in SHAPES if args.only in shape.name):
        record = measure(shape, args.seconds)
        records.append(record)
        t = record["microseconds"]
        line = ", ".join(f"{name} {value:.0f} us" for name, value in t.items())
        if "native" in t:
            line += f"; torch / native {t['torch'] / t['native']:.1f}, native / read {t['native'] / t['plain read']:.1f}"
        print(f"{shape.name}: {line}", flush=True)
    if args.json:
        write_json(args.json, {"kernels": native.describe(), "records": records})


if __name__ == "__main__":
    main()
