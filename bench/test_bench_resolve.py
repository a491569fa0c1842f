"""The resolves under pytest-benchmark; `resolve.py` compares them in turns."""

from __future__ import annotations

import pytest
import torch
from resolve import SHAPES, Shape, candidates, operands_of

from packed_ss.ops import native


@pytest.mark.parametrize("name", ["native", "torch", "plain read"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_resolve(benchmark, shape: Shape, name: str) -> None:
    operands = operands_of(shape)
    runs = candidates(operands)
    if name not in runs:
        pytest.skip(f"no native kernel: {native.reason()}")
    benchmark.group = f"resolve {shape.name}"
    benchmark.extra_info.update(bytes_moved=operands.bytes_read, threads=torch.get_num_threads())
    benchmark.pedantic(runs[name], setup=operands.restore, rounds=20, warmup_rounds=1)
