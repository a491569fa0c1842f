"""Stage "latency": time of a call against its rows for random weights in the shapes of the public checkpoints."""

from __future__ import annotations

import gc

import torch

from packed_ss.evaluation.bench.clock import open_runtime
from packed_ss.evaluation.bench.latency import describe, measure

from .models import SHAPES, random_model, too_large
from .record import Results
from .stages import Bench

#: Rows of a packed call and of a linear one at B = 32, and how much slower the former may be.
PACKED, LINEAR, SLOWER = 64, 32, 1.05


def run(bench: Bench, results: Results) -> None:
    """Make a record per shape, as `bench/latency_vs_rows.py` does."""
    sizes = bench.sizes
    for shape in sizes.shapes:
        if reason := too_large(SHAPES[shape], bench.dtype, open_runtime(bench.device).free_memory()):
            results.row(f"{shape} shape", "not measured", note=reason)
            continue
        model = random_model(SHAPES[shape], bench.device, bench.dtype)
        record = measure(
            model,
            f"{shape} shape",
            rows=sizes.rows,
            prefix=sizes.prefix,
            head="fused",
            seconds=4 * sizes.seconds,
            capacity=sizes.prefix + 3072 if bench.on_gpu else 0,
            copy_bytes=sizes.copy_bytes,
        )
        results.add("records", record)
        print(describe(record), flush=True)
        del model
        gc.collect()
        if bench.on_gpu:
            torch.cuda.empty_cache()
        floor = f"{record['floor_ms']:.3f} ms"
        times = {point["rows"]: point["median_ms"] for point in record["points"]}
        for fit in record["fits"]:
            low, high = fit["rows"]
            line = f"{fit['tau_ms']:.3f} ms + {1e3 * fit['delta_ms']:.2f} µs n"
            results.row(
                f"{shape}, {low} to {high} rows",
                line,
                floor=floor,
                note=f"rms residual {fit['rms_ms']:.3f} ms, at most {100 * fit['largest_relative']:.1f} % off",
            )
        for rows, time in times.items():
            results.row(
                f"{shape}, {rows} rows", f"{time:.3f} ms", floor=floor, note=f"{time / record['floor_ms']:.2f} times the floor"
            )
        if PACKED in times and LINEAR in times:
            ratio = times[PACKED] / times[LINEAR]
            results.row(f"{shape}, {PACKED} rows over {LINEAR}", f"{ratio:.3f}", target=f"at most {SLOWER}", met=ratio <= SLOWER)
