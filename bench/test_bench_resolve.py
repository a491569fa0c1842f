"""The resolves under pytest-benchmark; `resolve.py` compares them in turns."""

from __future__ import annotations

import pytest
import torch
from resolve import SHAPES, Shape, contenders, plain_read

from packed_ss.ops import native


@pytest.mark.parametrize("name", ["native", "torch", "plain read"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_resolve(benchmark, shape: Shape, name: str) -> None:
    runs = contenders(shape) | {"plain read": plain_read(shape.bytes_moved)}
    if name not in runs:
        pytest.skip(f"no native kernel: {native.reason()}")
    benchmark.group = f"resolve {shape.name}"
    benchmark.extra_info.update(bytes_moved=shape.bytes_moved, threads=torch.get_num_threads())
    benchmark(runs[name])
