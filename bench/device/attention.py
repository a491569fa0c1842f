"""Stage "attention": tail_attention of a packed call beside what else could compute it, in microseconds and bytes a second.

Every candidate goes through as many layers of cache as do not fit into the L2 cache, in one graph; what is reported is the time
of one layer.  Its result on the first layer is compared with float32 beforehand.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from packed_ss.evaluation.bench.bandwidth import measure_bandwidth
from packed_ss.evaluation.bench.clock import Sampler, copies_beyond_cache, interleave, open_runtime
from packed_ss.layouts.block import tables
from packed_ss.ops import attention

from .operators import relative
from .record import Results
from .stages import Bench

#: Microseconds that tail_attention may take at a prefix, for 64 rows, 32 / 8 heads, D 128.
TARGETS = {1024: 12.0, 8192: 35.0, 32768: 110.0}
OURS = "tail_attention"
#: A result may be so far from float32, relative, in bfloat16.
ACCEPTED = 1.5e-2
#: Prefixes at which FlexAttention is compiled, which takes it long, in this order and after everything else.
FLEX_FIRST = (8192, 1024, 32768)
FLEX_SECONDS = 40.0

Layer = Callable[[int], Tensor]


class Operands:
    """One packed call over ``prefix`` slots in ``layers`` layers, random: q [1, R, Hq, D], caches [layers, 1, C, Hkv, D]."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        rows: int,
        heads: int,
        kv_heads: int,
        size: int,
        prefix: int,
        least_layers: int = 1,
    ) -> None:
        self.rows, self.heads, self.kv_heads, self.size = rows, heads, kv_heads, size
        self.prefix, self.slots = prefix, prefix + rows
        self.bytes_read = 2 * self.slots * kv_heads * size * dtype.itemsize
        self.layers = 1 if least_layers == 1 else copies_beyond_cache(device, self.bytes_read, least=least_layers)
        generator = torch.Generator(device).manual_seed(prefix)

        def random(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)

        self.q = random(1, rows, heads, size)
        self.keys, self.values = (random(self.layers, 1, self.slots + 1, kv_heads, size) for _ in range(2))
        self.cache_len = torch.tensor([prefix], dtype=torch.int32, device=device)
        region = rows // 2
        self.tail_mask = tables(rows - region, max(region, 1), (0,) if region else (), device).tail_mask
        self.visible = attention.visible_slots(self.cache_len, self.tail_mask, self.slots)[0]
        self.scale = size**-0.5

    @property
    def flops(self) -> int:
        return 4 * self.rows * self.heads * self.size * self.slots

    def used(self, buffer: Tensor, layer: int) -> Tensor:
        """Slots in use of a layer, [S, Hkv, D]."""
        return buffer[layer, 0, : self.slots]

    def want(self) -> Tensor:
        """Layer 0 in float32, [R, Hq, D]."""
        operands = (self.q.float(), self.keys[0].float(), self.values[0].float())
        return attention.tail_attention(*operands, self.cache_len, self.tail_mask, self.scale)[0]


def ours(operands: Operands, kernel: Callable[..., Tensor] | None = None) -> Layer:
    """The operator, or another kernel of it."""
    o, run = operands, kernel or torch.ops.packed_ss.tail_attention
    return lambda i: run(o.q, o.keys[i], o.values[i], o.cache_len, o.tail_mask, o.scale)[0]


def sdpa(operands: Operands, *, expanded: bool) -> Layer:
    """With a dense mask of the values' dtype; ``expanded``: keys and values repeated for every query head beforehand."""
    o = operands
    bias = torch.zeros(o.visible.shape, dtype=o.q.dtype, device=o.q.device).masked_fill(~o.visible, -torch.inf)
    q, group = o.q.transpose(1, 2), o.heads // o.kv_heads

    def view(buffer: Tensor, layer: int) -> Tensor:
        x = o.used(buffer, layer).transpose(0, 1)[None]
        return x.repeat_interleave(group, 1) if expanded else x

    pairs = [(view(o.keys, i), view(o.values, i)) for i in range(o.layers)]
    grouped = {} if expanded else {"enable_gqa": True}
    return lambda i: F.scaled_dot_product_attention(q, *pairs[i], bias, scale=o.scale, **grouped)[0].transpose(0, 1)


def candidates(operands: Operands) -> Iterator[tuple[str, Callable[[], Layer]]]:
    """By name, what makes a function that computes a layer, [R, Hq, D]; making or calling it may raise."""
    yield OURS, lambda: ours(operands)
    yield "sdpa, expanded keys", lambda: sdpa(operands, expanded=True)
    yield "sdpa, grouped heads", lambda: sdpa(operands, expanded=False)
    yield "flashinfer, custom mask", lambda: _flashinfer(operands)


def _flashinfer(o: Operands) -> Layer:
    import flashinfer

    q = o.q[0].contiguous()
    return lambda i: flashinfer.single_prefill_with_kv_cache(
        q, o.used(o.keys, i), o.used(o.values, i), custom_mask=o.visible, kv_layout="NHD", sm_scale=o.scale
    )


def _flex(o: Operands) -> Layer:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    visible = o.visible

    def sees(batch: Tensor, head: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        return visible[row, slot]

    mask = create_block_mask(sees, None, None, o.rows, o.slots, device=str(o.q.device))
    compiled, q = torch.compile(flex_attention, dynamic=False), o.q.transpose(1, 2).contiguous()
    layers = [tuple(o.used(buffer, i).transpose(0, 1)[None] for buffer in (o.keys, o.values)) for i in range(o.layers)]
    return lambda i: compiled(q, *layers[i], block_mask=mask, scale=o.scale, enable_gqa=True)[0].transpose(0, 1)


def run(bench: Bench, results: Results) -> None:
    """Every prefix; a candidate that cannot run says why, and the others go on."""
    runtime = open_runtime(bench.device)
    bandwidth = measure_bandwidth(runtime, bench.sizes.copy_bytes)
    results.put("bandwidth", bandwidth)
    for prefix in bench.sizes.attention_prefixes:
        _prefix(bench, runtime, results, prefix, bandwidth, lambda operands: candidates(operands))
    for prefix in FLEX_FIRST if bench.on_gpu else ():
        if bench.left < FLEX_SECONDS:
            results.row(f"flex_attention, prefix {prefix}", "not measured", note="too little of the stage's time is left")
        elif prefix in bench.sizes.attention_prefixes:
            _prefix(
                bench,
                runtime,
                results,
                prefix,
                bandwidth,
                lambda operands: iter([next(candidates(operands)), ("flex_attention", lambda: _flex(operands))]),
            )


def _prefix(
    bench: Bench,
    runtime: Any,
    results: Results,
    prefix: int,
    bandwidth: dict[str, float],
    which: Callable[[Operands], Iterator[tuple[str, Callable[[], Layer]]]],
) -> None:
    heads, kv_heads, size = bench.sizes.attention
    operands = Operands(
        bench.device,
        bench.dtype,
        rows=2 * bench.sizes.block_size,
        heads=heads,
        kv_heads=kv_heads,
        size=size,
        prefix=prefix,
        least_layers=bench.sizes.least_copies,
    )
    want, samplers = operands.want(), {}
    entry: dict[str, Any] = {
        "prefix": prefix,
        "rows": operands.rows,
        "layers": operands.layers,
        "bytes": operands.bytes_read,
        "floor_us": operands.bytes_read / bandwidth["read_gb_s"] / 1e3,
        "flops": operands.flops,
        "errors": {},
        "unavailable": {},
        "us": {},
    }
    for name, make in which(operands):
        try:
            layer = make()
            with runtime.active():
                entry["errors"][name] = relative(layer(0), want)
            samplers[name] = sampler(runtime, layer, operands.layers, entry, name)
        except Exception as error:  # not installed, not built, refused by the card, out of memory
            entry["unavailable"][name] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            if name == OURS:
                results.fail(f"{name}, prefix {prefix}: {entry['unavailable'][name]}")
    times = interleave(samplers, bench.sizes.seconds) if samplers else {}
    entry["times"] = times
    entry["us"] = {name: 1e3 * found["median_ms"] / operands.layers for name, found in times.items()}
    results.add("attention", entry)
    _rows(results, entry)
    del samplers, operands
    gc.collect()
    if bench.on_gpu:
        torch.cuda.empty_cache()


def sampler(runtime: Any, layer: Layer, layers: int, entry: dict[str, Any], name: str) -> Sampler:
    """All layers in one graph, or called one by one where they cannot be captured, which the entry then says."""

    def run_all() -> None:
        for i in range(layers):
            layer(i)

    try:
        return Sampler(runtime, run_all)
    except Exception as error:  # a library that synchronises or copies from the host
        if name == OURS:
            raise
        entry.setdefault("uncaptured", {})[name] = str(error).strip().splitlines()[0][:200]
        return Sampler(runtime, run_all, captured=False)


def _rows(results: Results, entry: dict[str, Any]) -> None:
    ours = entry["us"].get(OURS)
    for name, time in entry["us"].items():
        target = TARGETS.get(entry["prefix"]) if name == OURS and entry["rows"] == 64 else None
        error = entry["errors"][name]
        beside = f"; {time / ours:.2f} x ours" if ours and name != OURS else ""
        uncaptured = "; not captured" if name in entry.get("uncaptured", {}) else ""
        results.row(
            f"{name}, prefix {entry['prefix']}",
            f"{time:.1f} µs",
            floor=f"{entry['floor_us']:.1f} µs",
            target=f"at most {target:.0f} µs" if target else "",
            met=time <= target if target else None,
            note=f"{entry['bytes'] / time / 1e3:.0f} GB/s, {entry['flops'] / time / 1e6:.1f} TFLOP/s, error {error:.1e}"
            f"{beside}{uncaptured}",
        )
        if name == OURS and not error <= ACCEPTED:
            results.fail(f"{name}, prefix {entry['prefix']}: relative error {error:.2e}")
    for name, why in entry["unavailable"].items():
        if name != OURS:
            results.row(f"{name}, prefix {entry['prefix']}", "not measured", note=why)
