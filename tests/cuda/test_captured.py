"""The captured decoder, on a CPU with recorded graphs: its text is the plain decoder's, and its iteration is fit for capture."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss import Branched, Decoder, GenerateOutput, Observer
from packed_ss.request import Request
from packed_ss.runtime import captured as captured_runtime
from packed_ss.runtime.graphs import CaptureFailed
from tests.cuda.stub import fake_cuda, host_decoder
from tests.decoder.models import schedules, small_model
from tests.support.checkpoints import random_model, random_set_config
from tests.support.device_reads import DeviceRead, no_device_reads

RAGGED = [[0, 2], [4, 1, 0, 2], [3], [2, 2, 4, 0, 1], [1]]
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "rejection": {"temperature": 0.9, "top_k": 4, "top_p": 0.95},
    "coupled": {"temperature": 1.1, "verification": "coupled"},
    "match": {"temperature": 1.1, "verification": "match"},
}
STOPS: dict[str, dict[str, Any]] = {
    "checkpoint's": {},
    "none": {"eos_token_id": []},
    "sequences": {"eos_token_id": [1], "stop_sequences": [[0, 4], [2, 2, 2]]},
}


def decoders(schedule: str | Branched, seed: int = 1, block_size: int = 4, **options: Any) -> tuple[Decoder, Decoder]:
    model = small_model(seed)
    shape = {"block_size": block_size, "max_length": 48, "batch_size": 5, "two_call_start": options.pop("two_call_start", False)}
    return Decoder(model, schedule, **shape), host_decoder(model, schedule, **shape, **options)


def kernels(uses: list[tuple]) -> list[tuple]:
    """First uses of operators but for one that makes a view."""
    return [use for use in uses if use[0] != "aten.detach.default"]


def facts(out: GenerateOutput) -> tuple[Any, ...]:
    return [tokens.tolist() for tokens in out.tokens], out.finish_reason, out.nfe, out.advances


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", schedules(4))
def test_captured_iterations_decode_what_the_plain_loop_decodes(monkeypatch: pytest.MonkeyPatch, name: str, mode: str) -> None:
    with fake_cuda(monkeypatch) as watch:
        settings_of = (({}, STOPS), ({"burst": 3, "head": "logits"}, ["sequences"]), ({"two_call_start": True}, ["none"]))
        for options, kinds in settings_of:
            plain, captured = decoders(schedules(4)[name], **options)
            for seed, stops in enumerate(kinds):
                for prompts, new in ((RAGGED, 11), (RAGGED[3], 17), (RAGGED[2:4], 1), (RAGGED[0], 0)):
                    settings = {"max_new_tokens": new, "seed": seed, **MODES[mode], **STOPS[stops]}
                    assert facts(captured.generate(prompts, **settings)) == facts(plain.generate(prompts, **settings))
    # one graph per batch size, whatever the stops
    assert watch.events.count("begin") == watch.events.count("end") == 3 * 3
    assert not kernels(watch.first_uses)


def test_no_graph_keeps_what_it_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch) as watch:
        for schedule in schedules(4).values():
            _, captured = decoders(schedule)
            for sampling in MODES.values():
                captured.generate(RAGGED[:2], 5, **sampling)
    assert [graph.kept() for graph in watch.graphs] == [[]] * len(MODES) * len(schedules(4))


class Careless(Observer):
    """Keeps a tensor of each iteration, and calls an operator that the warm-ups have not called."""

    runs = 0

    def resolve_ends(self, call: Any, outputs: Tensor, state: Any) -> None:
        if call.shift == 0:  # the iteration's, not the first call
            self.runs += 1
            self.kept = torch.zeros(3, 7)
            if self.runs == 3:
                state.length.abs()


def test_a_kept_tensor_and_a_first_use_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch) as watch:
        careless = Careless()
        host_decoder(small_model(1), "packed", 4, max_length=48, observer=careless).generate(RAGGED[0], 5)
    assert watch.graphs[0].kept() == [(3, 7)]
    assert "aten.abs.default" in [use[0] for use in watch.first_uses]


class Catching(Observer):
    """Keeps the state and the request of the last generation."""

    def generation_begins(self, state: Any, request: Request) -> None:
        self.state, self.request = state, request


def iteration(decoder: Decoder) -> None:
    """Run one more iteration of the last generation of a decoder whose observer is a `Catching`, as it is captured."""
    captured_runtime._iteration(decoder, decoder.observer.state, decoder.observer.request)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schedule", ["autoregressive", "linear", "packed", "quadratic", Branched((0, 2))], ids=str)
def test_the_iteration_reads_nothing(monkeypatch: pytest.MonkeyPatch, mode: str, schedule: str | Branched) -> None:
    for head in ("fused", "logits"):
        with fake_cuda(monkeypatch):
            decoder = host_decoder(small_model(2), schedule, 4, max_length=48, batch_size=2, head=head, observer=Catching())
            decoder.generate(RAGGED[:2], 4, eos_token_id=[], **MODES[mode])
        state = decoder.observer.state
        state.finish_reason.zero_()  # running again, as far as the iteration can tell
        state.limit.add_(20)
        decoder.layout.pack(state, decoder.schedule.cycle[0], decoder.cache.capacity - 1)
        before = state.nfe.tolist()
        with torch.no_grad(), no_device_reads(monkeypatch) as watched:
            iteration(decoder)
        assert [nfe - old for nfe, old in zip(state.nfe.tolist(), before, strict=True)] == [len(decoder.schedule.cycle)] * 2
        fused = mode == "greedy" and head == "fused"
        rows = "linear_argmax" if fused else {"greedy": "argmax_rows", "rejection": "verify_rows"}.get(mode, "draw_rows")
        operators = (rows, "advance_block", "tail_attention", "rope_store")
        assert {f"packed_ss::{operator}" for operator in operators} <= watched.seen
        assert ("packed_ss::linear_argmax" in watched.seen) == fused


#: Operators of one iteration beside the model's, with a fused head, and the launches of each in C++ CUDA.
LAUNCHES = {"argmax_rows": 2, "draw_rows": 2, "verify_rows": 2, "advance_block": 1, "pack_block": 1}


@pytest.mark.parametrize(("mode", "most"), [("greedy", 1), ("coupled", 3), ("rejection", 5), ("match", 5)])
def test_the_launches_of_a_packed_iteration(monkeypatch: pytest.MonkeyPatch, mode: str, most: int) -> None:
    with fake_cuda(monkeypatch) as watch:
        host_decoder(small_model(2), "packed", 4, max_length=48).generate(RAGGED[0], 4, **MODES[mode])
        calls = [call[0]._schema.name.split("::")[1] for call in watch.graphs[0].calls if call[0].namespace == "packed_ss"]
    assert sum(LAUNCHES.get(name, 0) for name in calls) == most


def test_a_read_in_the_iteration_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reading(Catching):
        def resolve_begins(self, call: Any, outputs: Tensor, state: Any) -> None:
            state.length.max().item()

    with fake_cuda(monkeypatch):
        decoder = host_decoder(small_model(2), "packed", 4, max_length=48, observer=Reading())
        decoder.generate(RAGGED[0], 4)
    with pytest.raises(DeviceRead), torch.no_grad(), no_device_reads(monkeypatch):
        iteration(decoder)


@pytest.mark.parametrize("burst", [1, 2, 5])
def test_the_host_looks_only_at_what_was_queued_a_burst_earlier(monkeypatch: pytest.MonkeyPatch, burst: int) -> None:
    with fake_cuda(monkeypatch) as watch:
        plain, captured = decoders("packed", burst=burst)
        calls = plain.generate(RAGGED[3], 17, eos_token_id=[]).nfe[0] - 1
        assert captured.generate(RAGGED[3], 17, eos_token_id=[]).nfe[0] - 1 == calls
    replays, waits = 0, []
    for event in watch.events:
        replays += event == "replay"
        if event.startswith("wait"):
            waits.append((int(event.split()[1]), replays))
    assert waits == [(i * burst, (i + 1) * burst) for i in range(len(waits))]
    assert waits[-1][0] >= calls > waits[-1][0] - burst  # it stops at the first report that says so


def test_a_streamer_gets_every_token_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.parts: list[list[int]] = []

        def put(self, value: Tensor) -> None:
            self.parts.append(value.tolist())

        def end(self) -> None:
            self.parts.append(["end"])

    with fake_cuda(monkeypatch):
        _, captured = decoders("packed")
        for _ in range(2):
            streamer = Streamer()
            out = captured.generate(RAGGED[3], 17, eos_token_id=[], streamer=streamer)
            assert streamer.parts[0] == RAGGED[3] and streamer.parts[-1] == ["end"]
            assert [token for part in streamer.parts[1:-1] for token in part] == out.tokens[0].tolist()
            assert [len(part) for part in streamer.parts[1:-1]] == [a for a in out.advances[0] if a]


def test_a_failed_capture_names_the_operator_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Observer):
        runs = 0

        def resolve_begins(self, call: Any, outputs: Tensor, state: Any) -> None:
            self.runs += call.shift == 0
            if self.runs == 3:
                raise RuntimeError("no such kernel image")

    with fake_cuda(monkeypatch) as watch:
        decoder = host_decoder(small_model(1), "packed", 4, max_length=48, observer=Failing())
        with pytest.raises(CaptureFailed, match=r"could not be captured, at packed_ss\.linear_argmax: no such kernel image"):
            decoder.generate(RAGGED[0], 5)
        assert not decoder.runtime._sessions and watch.capturing is None and watch.graphs[-1].state == "reset"
        out = decoder.generate(RAGGED[0], 5)
    assert facts(out) == facts(Decoder(small_model(1), "packed", 4, max_length=48).generate(RAGGED[0], 5))


def test_the_graph_used_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_runtime, "_SESSIONS", 2)
    with fake_cuda(monkeypatch) as watch:
        _, captured = decoders("packed")
        for prompts in (RAGGED[0], RAGGED[:2], RAGGED[1], RAGGED[:3], RAGGED[2], RAGGED[:2]):
            captured.generate(prompts, 4)
    assert watch.events.count("begin") == 4 and len(captured.runtime._sessions) == 2


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.5 + 0.2 * i, "top_k": (0, 3, 1, 2, 4)[i % 5], "top_p": (1.0, 0.9, 0.5)[i % 3]} for i in range(9)
] + [{"temperature": [0.0, 1.3], "top_k": [0, 2], "top_p": [1.0, 0.7]}]


@pytest.mark.parametrize("mode", ["coupled", "rejection", "match"])
def test_one_capture_serves_every_setting(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    with fake_cuda(monkeypatch) as watch:
        plain, captured = decoders("packed")
        for settings in SETTINGS + SETTINGS[:1]:
            options = {"max_new_tokens": 9, "seed": 5, "verification": mode, **settings}
            assert facts(captured.generate(RAGGED[:2], **options)) == facts(plain.generate(RAGGED[:2], **options))
    assert watch.events.count("begin") == 1


def test_more_stops_than_there_is_room_for_capture_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch) as watch:
        plain, captured = decoders("packed")
        for stops in ([], [[0, 4]], [[1, 2, 3, 4, 0, 1]], [[3, 3]], [[4, i % 5, i % 3] for i in range(20)], [[2, 2, 2]]):
            settings = {"max_new_tokens": 12, "eos_token_id": [], "stop_sequences": stops}
            assert facts(captured.generate(RAGGED[1], **settings)) == facts(plain.generate(RAGGED[1], **settings))
    assert watch.events.count("begin") == 3 and len(captured.runtime._sessions) == 1


def test_the_device_loop_falls_back_with_a_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with fake_cuda(monkeypatch), caplog.at_level(logging.WARNING):
        plain, captured = decoders("packed", loop="device")
        assert captured.runtime.loop_kind == "bursts"
        assert facts(captured.generate(RAGGED, 9)) == facts(plain.generate(RAGGED, 9))
    assert "loop='device' falls back to bursts: " in caplog.text


class WholeLoop:
    """What `packed_ss.runtime.device_loop.DeviceLoop` is to do: nothing where all have finished, else replay until they have."""

    launches = 0

    def __init__(self, graph: Any, finish_reason: Tensor, limit: int) -> None:
        self.graph, self.finish_reason, self.limit = graph, finish_reason, limit

    def launch(self) -> None:
        WholeLoop.launches += 1
        for _ in range(self.limit):
            if self.finish_reason.ne(0).all():
                return
            self.graph.replay()


def test_a_generation_is_one_launch_where_the_device_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_runtime, "DeviceLoop", WholeLoop)
    monkeypatch.setattr(captured_runtime.device_loop, "unavailable", lambda: "")
    with fake_cuda(monkeypatch) as watch:
        plain, captured = decoders("packed", loop="device")
        WholeLoop.launches = 0
        for new in (1, 9, 17):
            assert facts(captured.generate(RAGGED, new)) == facts(plain.generate(RAGGED, new))
        assert WholeLoop.launches == 3 and not any(event.startswith("wait") for event in watch.events)
        parts: list[Any] = []
        streamer = type("Streamer", (), {"put": lambda self, value: parts.extend(value.tolist()), "end": lambda self: None})()
        out = captured.generate(RAGGED[1], 9, streamer=streamer)  # one launch would have nothing to stream from
    assert WholeLoop.launches == 3 and parts == RAGGED[1] + out.tokens[0].tolist()


def test_a_loop_that_cuda_refuses_falls_back(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("cudaGraphInstantiate failed: operation not supported")

    monkeypatch.setattr(captured_runtime, "DeviceLoop", refuse)
    monkeypatch.setattr(captured_runtime.device_loop, "unavailable", lambda: "")
    with fake_cuda(monkeypatch), caplog.at_level(logging.WARNING):
        plain, captured = decoders("linear", loop="device")
        assert facts(captured.generate(RAGGED, 9)) == facts(plain.generate(RAGGED, 9))
    assert "falls back to bursts: cudaGraphInstantiate failed" in caplog.text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schedule", ["autoregressive", "linear", "packed", "quadratic", Branched((0, 2)), "native"], ids=str)
def test_captured_ordered_iterations_decode_what_the_plain_loop_decodes(
    monkeypatch: pytest.MonkeyPatch, schedule: Any, mode: str
) -> None:
    if schedule == "native" and mode != "greedy":
        pytest.skip("native is greedy")
    model = random_model(random_set_config(3), 3, torch.float64)
    for order in ("left_to_right", "confidence") if mode == "greedy" and schedule != "native" else ("left_to_right",):
        shape: dict[str, Any] = {"window": 4, "order": order, "max_length": 48, "batch_size": 5}
        plain = Decoder(model, schedule, **shape)
        with fake_cuda(monkeypatch) as watch:
            captured = host_decoder(model, schedule, **shape, burst=2)
            for prompts, new in ((RAGGED, 9), (RAGGED[3], 14), (RAGGED[2:4], 1), (RAGGED[0], 0)):
                settings = {"max_new_tokens": new, "seed": 7, **MODES[mode], **STOPS["sequences"]}
                assert facts(captured.generate(prompts, **settings)) == facts(plain.generate(prompts, **settings))
            assert watch.events.count("begin") == watch.events.count("end") == 3
            assert not kernels(watch.first_uses)
            assert [graph.kept() for graph in watch.graphs] == [[]] * 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ["left_to_right", "confidence"])
def test_an_ordered_iteration_reads_nothing(monkeypatch: pytest.MonkeyPatch, mode: str, order: str) -> None:
    if order == "confidence" and mode != "greedy":
        pytest.skip("confidence is greedy")
    for schedule in ("linear", "packed", "quadratic", *(("native",) if mode == "greedy" and order == "left_to_right" else ())):
        with fake_cuda(monkeypatch):
            model = random_model(random_set_config(1), 1)
            decoder = host_decoder(model, schedule, window=4, order=order, max_length=48, batch_size=2, observer=Catching())
            decoder.generate(RAGGED[:2], 5, **MODES[mode])
        with torch.no_grad(), no_device_reads(monkeypatch) as watched:
            iteration(decoder)
        assert f"packed_ss::{'advance_native' if schedule == 'native' else 'advance_ordered'}" in watched.seen
        # Where the draft is in one region, the advance has written the next rows.
        packs = schedule == "quadratic" and order == "left_to_right" and mode == "greedy"
        assert ("packed_ss::pack_ordered" in watched.seen) == packs


def test_an_order_that_is_a_function_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch), pytest.raises(ValueError, match="takes left_to_right or confidence"):
        host_decoder(random_model(random_set_config(1)), window=4, max_length=20, order=lambda window: window)
