"""Stage "head": the head with its argmax in one operator, the write of the cache, and what stands between the matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from packed_ss import ops
from packed_ss.evaluation.bench.bandwidth import measure_bandwidth
from packed_ss.evaluation.bench.clock import Sampler, copies_beyond_cache, interleave, open_runtime
from packed_ss.models import glue

from .operators import implementations
from .record import Results
from .resolves import Operands
from .stages import Bench

#: Small kernels are timed so many in a row: operands that the layer before has just written, as in a model.
ROW = 32


def run(bench: Bench, results: Results) -> None:
    """Each group of candidates in turn."""
    runtime = open_runtime(bench.device)
    bandwidth = measure_bandwidth(runtime, bench.sizes.copy_bytes)
    results.put("bandwidth", bandwidth)
    for group in (_heads, _rope, _norm, _swiglu):
        try:
            group(bench, runtime, results, bandwidth)
        except Exception as error:  # one that fails takes its lines with it, not the table
            results.fail(f"{group.__name__.strip('_')}: {type(error).__name__}: {error}")


def _compare(
    bench: Bench,
    runtime: Any,
    results: Results,
    group: str,
    runs: dict[str, Callable[[], Any]],
    count: int,
    bytes_moved: int,
    rate: float,
    before: Callable[[], None] | None = None,
) -> None:
    """Times of ``runs``, each of which does its work ``count`` times and moves ``bytes_moved`` bytes for each of those."""
    samplers: dict[str, Sampler] = {}
    entry: dict[str, Any] = {"group": group, "bytes": bytes_moved, "floor_us": bytes_moved / rate / 1e3, "unavailable": {}}
    for name, run_all in runs.items():
        try:
            samplers[name] = Sampler(runtime, run_all, before=before)
        except Exception as error:  # a kernel that does not compile or start
            entry["unavailable"][name] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            results.fail(f"{group} by {name}: {entry['unavailable'][name]}")
    times = interleave(samplers, bench.sizes.seconds)
    entry |= {"times": times, "us": {name: 1e3 * found["median_ms"] / count for name, found in times.items()}}
    results.add("groups", entry)
    first = next(iter(entry["us"].values()), None)
    for name, time in entry["us"].items():
        results.row(
            f"{group}: {name}",
            f"{time:.1f} µs",
            floor=f"{entry['floor_us']:.1f} µs",
            note=f"{bytes_moved / time / 1e3:.0f} GB/s" + (f", {time / first:.2f} x the first" if time != first else ""),
        )


def _heads(bench: Bench, runtime: Any, results: Results, bandwidth: dict[str, float]) -> None:
    """Hidden rows to the next state: the head fused with its argmax, or by logits."""
    sizes, device, rows = bench.sizes, bench.device, 2 * bench.sizes.block_size
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.empty((sizes.vocab, sizes.hidden), dtype=bench.dtype, device=device).normal_(
        0, sizes.hidden**-0.5, generator=generator
    )
    x = torch.empty((1, rows, sizes.hidden), dtype=bench.dtype, device=device).normal_(generator=generator)
    made = Operands(device, bench.dtype, "greedy", block_size=sizes.block_size, vocab=sizes.vocab)
    fused = torch.ops.packed_ss.linear_argmax
    runs = {
        "linear_argmax": lambda: fused(x, weight),
        "product": lambda: F.linear(x, weight),
        "linear_argmax, resolve": lambda: made.resolve(0, fused(x, weight)),
        "product, resolve": lambda: made.resolve(0, F.linear(x, weight)),
        "product, argmax": lambda: F.linear(x, weight).argmax(-1),
    }
    results.put("kernels", ops.kernels(device.type))
    _compare(
        bench,
        runtime,
        results,
        f"head, {rows} rows",
        runs,
        1,
        weight.numel() * weight.itemsize,
        bandwidth["read_gb_s"],
        made.restore,
    )


def _rope(bench: Bench, runtime: Any, results: Results, bandwidth: dict[str, float]) -> None:
    rows, device = 2 * bench.sizes.block_size, bench.device
    heads, kv_heads, size = bench.sizes.attention
    layers = copies_beyond_cache(device, 2 * (rows + 1) * kv_heads * size * bench.dtype.itemsize, least=4, most=ROW)
    qkv = torch.randn((1, rows, heads + 2 * kv_heads, size), device=device).to(bench.dtype)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=2)
    cos, sin, scale = (torch.randn(shape, device=device) for shape in ((1, rows, size // 2), (1, rows, size // 2), (1, rows)))
    slots = torch.arange(rows, dtype=torch.int32, device=device)[None]
    caches = [torch.zeros((2, 1, rows + 1, kv_heads, size), dtype=bench.dtype, device=device) for _ in range(layers)]
    kernels = implementations("rope_store", device) | {"torch": ops._TORCH_KERNELS["rope_store"]}

    def each(kernel: Callable[..., Any]) -> Callable[[], None]:
        def run_all() -> None:
            for cache in caches:
                kernel(q, k, v, cos, sin, scale, slots, *cache)

        return run_all

    runs = {name: each(kernel) for name, kernel in kernels.items()}
    _compare(
        bench, runtime, results, f"rope_store, {rows} rows", runs, layers, 2 * qkv.numel() * qkv.itemsize, bandwidth["copy_gb_s"]
    )


def _norm(bench: Bench, runtime: Any, results: Results, bandwidth: dict[str, float]) -> None:
    shape = (1, 2 * bench.sizes.block_size, bench.sizes.hidden)
    x, update = (torch.randn(shape, device=bench.device).to(bench.dtype) for _ in range(2))
    weight = torch.ones(bench.sizes.hidden, dtype=bench.dtype, device=bench.device)

    def plain(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + update
        return total, F.rms_norm(total, weight.shape, weight, eps)

    runs = {
        name: _repeat(lambda kernel=kernel: kernel(x, update, weight, 1e-5))
        for name, kernel in ((_used(bench), glue.add_rms_norm), ("torch", plain))
    }
    _compare(
        bench, runtime, results, f"add_rms_norm {list(shape[1:])}", runs, ROW, 4 * x.numel() * x.itemsize, bandwidth["copy_gb_s"]
    )


def _swiglu(bench: Bench, runtime: Any, results: Results, bandwidth: dict[str, float]) -> None:
    shape = (1, 2 * bench.sizes.block_size, 2 * bench.sizes.intermediate)
    x = torch.randn(shape, device=bench.device).to(bench.dtype)

    def plain() -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    runs = {_used(bench): _repeat(lambda: glue.silu_mul(x)), "torch": _repeat(plain)}
    _compare(
        bench, runtime, results, f"silu_mul {list(shape[1:])}", runs, ROW, 3 * x.numel() * x.itemsize // 2, bandwidth["copy_gb_s"]
    )


def _used(bench: Bench) -> str:
    """What the glue uses here."""
    return "the glue (torch)" if glue.unavailable() or not bench.on_gpu else "the glue (FlashInfer)"


def _repeat(once: Callable[[], Any]) -> Callable[[], None]:
    def run_all() -> None:
        for _ in range(ROW):
            once()

    return run_all
