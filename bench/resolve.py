"""The resolves: compiled kernels beside their plain-torch versions, and beside a plain read of the logits.

    python bench/resolve.py --threads 2 --json bench/results/resolve.json

The contenders take turns on the same operands, each from a fresh copy of the state; reported are medians.  The floor is a plain
multi-threaded read of all logits in the same run; a kernel may beat it, since rows behind a rejection and proposals for
positions already resolved need not be read.
`test_bench_resolve.py` runs the same cases under pytest-benchmark.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import packed_ss.ops as ops
from packed_ss.layouts.block import BlockCall
from packed_ss.ops import native
from packed_ss.state import DecodeState


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

    @property
    def bytes_moved(self) -> int:
        """The logits, once."""
        return self.rows * self.vocab * self.dtype.itemsize


SHAPES = [Shape(mode, 64, 131_072, torch.bfloat16) for mode in ("greedy", "coupled", "rejection")]
SHAPES += [Shape(mode, 64, 131_072, torch.bfloat16, 20, 0.9) for mode in ("coupled", "rejection")]
SHAPES += [Shape(mode, 32, 896, torch.float32) for mode in ("greedy", "coupled", "rejection")]


def contenders(shape: Shape) -> dict[str, Callable[[], None]]:
    """Native (where built) and torch: each call resolves the same logits from the same state."""
    b, rng = shape.rows // 2, torch.Generator().manual_seed(0)
    call = BlockCall(b, b, (0,))
    logits = (3 * torch.randn(1, shape.rows, shape.vocab, generator=rng)).to(shape.dtype)
    prompt = list(range(1, 9))
    state = DecodeState.start(
        [prompt],
        max_new_tokens=2 * b,
        block_size=b,
        capacity=4 * b,
        stops=[[0]],
        seeds=[1],
        device=torch.device("cpu"),
        log_q=(shape.vocab, torch.float32) if shape.mode == "rejection" else None,
    )
    state.cache_len.copy_(state.length - 1)
    state.draft.copy_(logits[:, : b - 1].argmax(-1))
    state.draft[:, b // 2] += 1  # greedy accepts half of the draft and retains the rest of the proposal
    state.draft_len.fill_(b - 1)
    if shape.mode == "rejection":
        state.draft_log_q.copy_(logits[:, : b - 1].float().log_softmax(-1))
    extra = (state.seed, 0.8, shape.top_k, shape.top_p) if shape.mode != "greedy" else ()

    def run(kernel: Callable[..., None]) -> Callable[[], None]:
        def resolve() -> None:
            fresh = copy.copy(state)
            for name in ("tokens", "length", "cache_len", "draft", "draft_len", "finish_reason", "nfe", "advances"):
                setattr(fresh, name, getattr(state, name).clone())  # a few hundred bytes each
            stored = (state.draft_log_q,) if shape.mode == "rejection" else ()
            kernel(logits, *fresh.operands(), call.verifier_rows, b, call.cuts, 0, 0, 0, (), None, None, None, *extra, *stored)

        return resolve

    name = f"resolve_{shape.mode}"
    runs = {"torch": run(ops._TORCH_KERNELS[name])}
    if name in native.info().get("kernels", {}).get("cpu", ()):
        runs = {"native": run(getattr(torch.ops.packed_ss, name))} | runs
    return runs


def plain_read(count: int) -> Callable[[], Tensor]:
    """A multi-threaded read of ``count`` bytes: the sum of as many of them as int64."""
    data = torch.ones(max(1, count // 8), dtype=torch.int64)
    return data.sum


def measure(shape: Shape, seconds: float) -> dict:
    """Medians in microseconds of the contenders taking turns."""
    runs = contenders(shape) | {"plain read": plain_read(shape.bytes_moved)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["torch"]) < 3:
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            times[name].append(1e6 * (time.perf_counter() - begin))
    return {
        "case": shape.name,
        "bytes_moved": shape.bytes_moved,
        "threads": torch.get_num_threads(),
        "runs": len(times["torch"]),
        "microseconds": {name: statistics.median(t) for name, t in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    parser.add_argument("--json", help="also write the records to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(native.describe())
    records = []
    for shape in SHAPES:
        record = measure(shape, args.seconds)
        records.append(record)
        t = record["microseconds"]
        line = ", ".join(f"{name} {value:.0f} us" for name, value in t.items())
        ratio = (
            f"; torch / native {t['torch'] / t['native']:.1f}, native / read {t['native'] / t['plain read']:.1f}"
            if "native" in t
            else ""
        )
        print(f"{shape.name}: {line}{ratio}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"kernels": native.describe(), "records": records}, file, indent=1)


if __name__ == "__main__":
    main()
