"""The stages' way on a GPU, with recorded graphs in place of torch.cuda's: what is captured, replayed and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device import attention, head, iterations, latency, resolves
from device.record import Results
from device.stages import Bench, function

import packed_ss.decoder
from packed_ss.evaluation.bench import latency as package_latency
from packed_ss.evaluation.bench.clock import Sampler
from packed_ss.runtime.captured import CapturedRuntime
from packed_ss.runtime.graphs import CudaGraphs
from tests.cuda.stub import FakeEvent, FakeGraph, Watch, fake_cuda, host_decoder

MakeBench = Callable[..., Bench]


class TimedEvent(FakeEvent):
    """Counts replays as milliseconds."""

    def __init__(self, enable_timing: bool = False) -> None:
        super().__init__()

    def elapsed_time(self, end: TimedEvent) -> float:
        return float(end.at - self.at)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    with fake_cuda(monkeypatch) as watch, monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "Event", TimedEvent)
        for module in (attention, head, iterations, latency, package_latency, resolves):
            patch.setattr(module, "open_runtime", CudaGraphs)
        eager = packed_ss.decoder.open_runtime

        def captured(runtime: str, device: torch.device, dtype: torch.dtype, *, loop: str, burst: int, order: Any) -> Any:
            if runtime == "eager":
                return eager(runtime, device, dtype, loop=loop, burst=burst, order=order)
            return CapturedRuntime(device, dtype, loop, burst)

        patch.setattr(packed_ss.decoder, "open_runtime", captured)
        patch.setattr(resolves, "CASES", (("greedy", 0, 1.0), ("rejection", 20, 0.9)))
        patch.setattr(iterations, "SCHEDULES", ("linear", "packed"))
        patch.setattr(iterations, "SAMPLING", {"greedy": {}, "coupled": iterations.SAMPLING["coupled"]})
        yield watch


@pytest.mark.parametrize("name", ["equality", "latency", "iterations", "attention", "resolves", "head", "loops"])
def test_a_stage_captures_and_replays(watch: Watch, bench: MakeBench, name: str) -> None:
    results = Results()
    with torch.no_grad():
        function(name)(bench(problems=1, new_tokens=4, random_tokens=3, rows=(1, 4), attention_prefixes=(9,)), results)
    assert results.rows and not results.failures
    assert watch.events.count("begin") == watch.events.count("end") >= 2 and "replay" in watch.events
    assert watch.capturing is None


def test_a_sample_is_the_mean_of_replays_after_what_is_put_back(watch: Watch) -> None:
    x, log = torch.zeros(3), []
    sampler = Sampler(
        CudaGraphs(torch.device("cpu")), lambda: x.add_(1), before=lambda: (log.append(x[0].item()), x.zero_()), inner=4
    )
    x.fill_(9.0)
    log.clear()
    assert sampler() == 1.0  # four replays between the events
    assert x.tolist() == [4.0] * 3 and log == [9.0]
    assert sampler.lasting(7.0).inner == 7 and sampler.lasting(1e9).inner == 50


def test_without_capture_the_run_itself_is_timed(watch: Watch) -> None:
    runs: list[int] = []
    sampler = Sampler(CudaGraphs(torch.device("cpu")), lambda: runs.append(1), inner=3, captured=False)
    runs.clear()
    sampler()
    assert len(runs) == 3 and not watch.events.count("begin")


def test_a_failed_capture_is_ended_and_raises(watch: Watch) -> None:
    calls: list[int] = []

    def run() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        Sampler(CudaGraphs(torch.device("cpu")), run)
    assert watch.capturing is None and watch.events == ["begin", "end"]


def test_a_rival_that_cannot_be_captured_is_timed_without(watch: Watch) -> None:
    calls: list[int] = []

    def layer(i: int) -> torch.Tensor:
        calls.append(i)
        if watch.capturing is not None:
            raise RuntimeError("cannot be captured")
        return torch.zeros(1)

    entry: dict[str, Any] = {}
    sampler = attention.sampler(CudaGraphs(torch.device("cpu")), layer, 2, entry, "rival")
    assert entry == {"uncaptured": {"rival": "cannot be captured"}}
    calls.clear()
    sampler()
    assert calls == [0, 1]
    with pytest.raises(RuntimeError, match="cannot be captured"):
        attention.sampler(CudaGraphs(torch.device("cpu")), layer, 2, entry, attention.OURS)


def test_an_iteration_is_measured_from_one_state(watch: Watch, bench: MakeBench) -> None:
    from device.models import SHAPES, random_model

    model = random_model(SHAPES["mini"], torch.device("cpu"), torch.float32)
    for schedule, calls in (("autoregressive", 1), ("linear", 2), ("packed", 1)):
        with torch.no_grad():
            decoder = host_decoder(model, schedule, 4, 12 + 1024)
            iteration = iterations.Iteration(decoder, list(range(4, 16)), {})
            samplers = iteration.samplers()
            n = int(iteration.state.length[0])
            assert n == 13 and int(iteration.state.finish_reason[0]) == 0  # the first call appended one token
            nfe = int(iteration.state.nfe[0])
            for _ in range(2):
                samplers["iteration"]()
                assert int(iteration.state.nfe[0]) == nfe + calls * iterations.REPLAYS
                assert int(iteration.state.length[0]) >= n + iterations.REPLAYS
            samplers["calls"]()
            assert (int(iteration.state.nfe[0]), int(iteration.state.length[0])) == (nfe, n)
            rows = decoder.layout.buffers(iteration.state, decoder.schedule.cycle[0])
            assert int(rows.positions[0, 0]) == int(rows.slots[0, 0]) == n - 1  # those of the first call after the prompt's
        advances = [str(call[0]) for graph in watch.graphs[-1:] for call in graph.calls if "advance" in str(call[0])]
        assert not advances and isinstance(watch.graphs[-1], FakeGraph)  # the calls alone


def test_the_loop_is_watched_for_waits(monkeypatch: pytest.MonkeyPatch, watch: Watch) -> None:
    from device.equality import Watch as LoopWatch

    from tests.decoder.models import small_model

    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    seen = LoopWatch(raises=True)
    decoder = host_decoder(small_model(1), "packed", 4, 48, observer=seen)
    decoder.generate([0, 2], 3)
    assert modes == ["error", "default"] and seen.loop_of(decoder) == "bursts" and seen.replays >= 2
