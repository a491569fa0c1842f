"""Latency: the fit, the call that it times, the models with random weights, and the script itself."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from device.models import SHAPES, random_model, too_large
from torch.utils._python_dispatch import TorchDispatchMode

from packed_ss.evaluation.bench import bandwidth, latency
from packed_ss.evaluation.bench.clock import open_runtime
from packed_ss.evaluation.bench.latency import filled_cache, weight_bytes
from packed_ss.layouts.block import BlockCall
from packed_ss.models.attention import SlotCache
from packed_ss.models.config import parameter_count
from packed_ss.ops.attention import visible_slots
from tests.support.checkpoints import random_config
from tests.support.checkpoints import random_model as checkpoint_model

from .conftest import BENCH

CPU = torch.device("cpu")


def test_the_fit_recovers_a_line_and_says_what_is_left() -> None:
    rows = [1, 8, 32, 64, 256]
    fit = latency.fit_line(rows, [3.0 + 0.01 * n for n in rows])
    assert fit["tau_ms"] == pytest.approx(3.0) and fit["delta_ms"] == pytest.approx(0.01) and fit["rms_ms"] < 1e-9
    assert fit["rows"] == [1, 256] and fit["points"] == 5
    off = latency.fit_line([0, 1, 2], [1.0, 1.3, 1.0])  # least squares: 1.1, residuals -0.1, 0.2, -0.1
    assert off["tau_ms"] == pytest.approx(1.1) and off["rms_ms"] == pytest.approx(math.sqrt(0.02))
    assert off["largest_relative"] == pytest.approx(0.2 / 1.3)


@pytest.mark.parametrize("count", [1, 2, 5, 64, 289])
@pytest.mark.parametrize("mask", latency.MASKS)
def test_the_rows_are_those_of_a_call(mask: str, count: int) -> None:
    rows = latency.call_rows(count, 10, mask, 97, CPU)
    seen = visible_slots(rows.cache_len, rows.tail_mask, 10 + count)[0]
    assert seen[:, :10].all()
    region = count // 2 if mask == "packed" else 0
    shape = BlockCall(count - region, region, (0,)) if region else BlockCall(count, 1, ())
    assert torch.equal(seen[:, 10:], torch.from_numpy(shape.visibility()))
    assert rows.slots.tolist() == [list(range(10, 10 + count))] and rows.ids.shape == (1, count)
    assert rows.positions[0].tolist() == [*range(10, 10 + count - region), *range(10, 10 + region)]


@pytest.mark.parametrize("head", latency.HEADS)
def test_a_call_computes_what_the_model_does(head: str) -> None:
    model = checkpoint_model(random_config(0), 0)
    cache = filled_cache(model, 20)
    causal = latency.model_call(model, cache, 6, 0, "causal", head)()
    ids = latency.call_rows(6, 0, "causal", model.config.vocab_size, CPU).ids[0].tolist()
    from packed_ss.evaluation.verify import causal_logits

    want = causal_logits(model, ids)
    if head == "fused":
        assert causal[0].tolist() == want.argmax(-1).tolist()
    else:
        torch.testing.assert_close(causal[0], want, atol=1e-4, rtol=1e-4)


class Largest(TorchDispatchMode):
    """The largest tensor of each dtype that anything makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type != "meta":
            self.elements[out.dtype] = max(self.elements.get(out.dtype, 0), out.numel())
        return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_random_weights_are_made_in_their_dtype_and_activations_stay_finite(dtype: torch.dtype) -> None:
    with Largest() as watch:
        model = random_model(SHAPES["mini"], CPU, dtype)
    assert {weight.dtype for weight in model.parameters()} == {dtype} and model.frequencies.dtype == torch.float32
    assert watch.elements[dtype] == 257 * 48
    if dtype != torch.float32:
        assert watch.elements.get(torch.float32, 0) <= 48  # the rotary frequencies, but no weight
    logits = latency.model_call(model, filled_cache(model, 64), 16, 40, "packed", "logits")().float()
    assert logits.isfinite().all() and 0.3 < float(logits.std()) < 3
    again = random_model(SHAPES["mini"], CPU, dtype)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_shapes_are_those_of_the_public_checkpoints() -> None:
    assert [round(parameter_count(SHAPES[name]) / 1e9, 1) for name in ("3B", "8B", "14B")] == [3.8, 8.5, 13.5]
    assert too_large(SHAPES["8B"], torch.bfloat16, 22 * 2**30) == ""
    assert too_large(SHAPES["8B"], torch.bfloat16, 2**34) == "it takes 20 GiB, and 16 GiB are free"
    mini = random_model(SHAPES["mini"], CPU, torch.float32)
    assert weight_bytes(mini) == 4 * (parameter_count(SHAPES["mini"]) - 257 * 48)
    assert SlotCache.bytes(SHAPES["8B"], 1, 1024, torch.bfloat16) == 2 * 34 * 1024 * 8 * 128 * 2


def test_bandwidth_counts_both_ways_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"copy": {"median_ms": 2.0}, "read": {"median_ms": 4.0}}
    monkeypatch.setattr(bandwidth, "interleave", lambda samplers, seconds: times)
    found = bandwidth.measure_bandwidth(open_runtime(CPU), 2**20)
    assert found == {"copy_gb_s": pytest.approx(2 * 2**20 / 2e6), "read_gb_s": pytest.approx(2**20 / 4e6), "bytes": 2**20}


def test_the_read_kernel_reads_everything() -> None:
    pytest.importorskip("triton")
    program = (
        "import torch\nfrom packed_ss.evaluation.bench.read_kernel import reader\n"
        "for size in (1, 8191, 8192, 50_003):\n"
        "    data = torch.randint(-2**31, 2**31 - 1, (size,), dtype=torch.int32)\n"
        "    want = 0\n    for word in data.tolist(): want ^= word\n"
        "    for programs in (None, 2):\n"
        "        got = 0\n        for word in reader(data, programs)().tolist(): got ^= word\n"
        "        assert got == want, (size, programs)\n"
        "reader(torch.randn(3, 5).bfloat16())()\nprint('read')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=BENCH,
        capture_output=True,
        text=True,
        env={"TRITON_INTERPRET": "1", "PATH": "", "HOME": "/tmp", "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout == "read\n", done.stderr


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / "latency_vs_rows.py"), "--device", "cpu", "--threads", "1", *arguments],
        capture_output=True,
        text=True,
    )


def test_the_script_on_the_bundled_checkpoint(tmp_path: Path) -> None:
    record, figure = tmp_path / "latency.json", tmp_path / "latency.png"
    done = script(
        "--rows", "8", "1", "2", "4", "80", "--prefix", "30", "--seconds", "0", "--json", str(record), "--plot", str(figure)
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    assert [point["rows"] for point in found["points"]] == [1, 2, 4, 8, 80]
    for point in found["points"]:
        assert 0 < point["p25_ms"] <= point["median_ms"] <= point["p75_ms"] and point["samples"] >= 5
    assert [fit["rows"] for fit in found["fits"]] == [[1, 80], [1, 8]]
    assert found["floor_ms"] == pytest.approx(found["weight_bytes"] / found["copy_gb_s"] / 1e6)
    assert found["model"] == "tiny" and found["mask"] == "packed" and found["threads"] == 1 and "/" not in found["device"]
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert "1 to 80 rows: " in done.stdout and "floor" in done.stdout and str(tmp_path) not in record.read_text()


def test_the_script_refuses_rows_that_are_none() -> None:
    done = script("--rows", "0")
    assert done.returncode == 2 and "--rows must be 1 or more" in done.stderr
