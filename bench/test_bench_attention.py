"""tail_attention and rope_store under pytest-benchmark; `attention.py` compares the former with others in turns."""

from __future__ import annotations

import pytest
import torch
from attention import SHAPES, Shape, candidates, operands_of

from packed_ss.evaluation.bench.bandwidth import plain_read
from packed_ss.ops import attention, native


@pytest.mark.parametrize("name", ["native", "sdpa", "sdpa expanded", "torch", "plain read"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.prefix < 32768], ids=lambda shape: shape.name)
def test_tail_attention(benchmark, shape: Shape, name: str) -> None:
    operands = operands_of(shape)
    runs = candidates(operands)
    if name not in runs:
        pytest.skip(f"no native kernel: {native.reason()}")
    benchmark.group = f"tail_attention {shape.name}"
    benchmark.extra_info.update(bytes_moved=operands.bytes_read, flops=operands.flops, threads=torch.get_num_threads())
    benchmark(runs[name])


@pytest.mark.parametrize("name", ["native", "torch", "plain read"])
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "size", "dtype"),
    [
        (18, 6, 2, 32, torch.float32),
        (64, 32, 8, 128, torch.float32),
        (64, 32, 8, 128, torch.bfloat16),
    ],
)
def test_rope_store(benchmark, rows: int, heads: int, kv_heads: int, size: int, dtype: torch.dtype, name: str) -> None:
    qkv = torch.randn(1, rows, heads + 2 * kv_heads, size).to(dtype)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=2)
    cos, sin = torch.randn(1, rows, size // 2), torch.randn(1, rows, size // 2)
    slots = torch.arange(100, 100 + rows, dtype=torch.int32)[None]
    caches = [torch.zeros(1, 200 + rows, kv_heads, size, dtype=dtype) for _ in range(2)]
    run = {"native": torch.ops.packed_ss.rope_store, "torch": attention.rope_store}.get(name)
    if name == "native" and "rope_store" not in native.kernels("cpu"):
        pytest.skip(f"no native kernel: {native.reason()}")
    moved = 2 * qkv.numel() * dtype.itemsize  # every row of q, k and v is read once and written once
    benchmark.group = f"rope_store {dtype} R={rows} Hq={heads} Hkv={kv_heads} D={size}"
    benchmark.extra_info.update(bytes_moved=moved, threads=torch.get_num_threads())
    if run is None:
        benchmark(plain_read(torch.ones(moved, dtype=torch.uint8)))
    else:
        benchmark(run, q, k, v, cos, sin, None, slots, *caches)
