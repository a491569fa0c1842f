"""Running settings: texts, costs and scores are the decoder's, and a second run makes none of it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from packed_ss import Decoder
from packed_ss.evaluation.bench import engines
from packed_ss.evaluation.bench.engines import ForwardEvents, Ours
from packed_ss.evaluation.bench.latency import measure
from packed_ss.evaluation.bench.plan import Candidate, Plan, Wanted, model_settings
from packed_ss.evaluation.bench.run_records import Recorder, recording
from packed_ss.evaluation.bench.runner import resolved, run_plan
from packed_ss.evaluation.bench.summary import summarise
from packed_ss.evaluation.bench.tables import all_tables
from tests.cuda.stub import FakeEvent, FakeGraph, fake_cuda, host_decoder
from tests.support.checkpoints import random_config, random_model, random_set_config

from .made import Letters, SmallModels, plan, response, run_of, setting, task

BLOCK = random_model(random_config(3), 3)
ORDERED = random_model(random_set_config(3), 3)
PROMPT = [4, 1, 7]


def run(folder: Path, model: Any, wanted: Wanted, watch: Callable[[Recorder], None] = lambda recorder: None) -> tuple[Plan, Any]:
    """A whole plan of a small model, and its records."""
    where = Plan(tuple(model_settings("m", model.config, [task()], wanted)), 5, "cpu", "float32", 1, 0.0)
    with recording(folder, where.as_dict()) as recorder:
        watch(recorder)
        run_plan(where, lambda _: task(), SmallModels(model), recorder)
        return where, recorder.run


def test_records_are_what_the_decoder_says(tmp_path: Path):
    where, records = run(tmp_path, BLOCK, Wanted(block_size=4, baselines=False))
    assert len(records.responses) == sum(c.responses for c in where.settings) == 3 * 4 + 3 * 2 * 6
    for one in records.responses.values():
        verification = "match" if "match" in one.candidate else "auto"
        decoder = Decoder(BLOCK, one.schedule, block_size=one.block_size, max_length=64)
        temperature = 0.0 if "/T0" in one.setting else 1.0
        index = int(one.prompt.removeprefix("t/"))
        assert one.seed == 5 + 1000 * index + one.repeat
        prompt = Letters().apply_chat_template([{"content": task().prompts[index].text}])
        out = decoder.generate(prompt, 12, temperature=temperature, seed=one.seed, verification=verification)
        assert one.text == Letters().decode(out.tokens[0].tolist()) and one.tokens == len(out.tokens[0])
        assert (one.nfe, one.advances, one.finish_reason) == (out.nfe[0], out.advances[0], out.finish_reason[0])
        assert one.score == float(int(one.text.split()[0]) % 2 == 0)
        assert 0 < one.first_model_seconds < one.model_seconds < one.seconds
    assert records.responses[where.settings[0].name, "packed", "t/0", 0, False].rows == 8


def test_nothing_is_decoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = Wanted(modes=("greedy",), schedules=("linear", "packed"), block_size=4, baselines=False)
    _, first = run(tmp_path, BLOCK, wanted)
    before = (tmp_path / "records.jsonl").read_bytes()
    monkeypatch.setattr(engines.Decoder, "generate", None)
    _, again = run(tmp_path, BLOCK, wanted)
    assert again.responses == first.responses and (tmp_path / "records.jsonl").read_bytes() == before


def test_ordered_models_run_by_window_and_order(tmp_path: Path):
    where, records = run(tmp_path, ORDERED, Wanted(windows=(4,), limit=2, cap=6))
    assert len(records.responses) == sum(c.responses for c in where.settings)
    texts = {
        (r.prompt, r.text)
        for r in records.responses.values()
        if "left_to_right" in r.setting and "T0" in r.setting and r.schedule != "native"
    }
    assert len(texts) == 2  # every lossless schedule has one text per prompt
    tables = {table.name: table for table in all_tables(summarise(where, records))}
    assert {row["rows/call"] for row in tables["table-09-ordered-orders"].rows if row["schedule"] == "packed"} == {1 + 3 * 4}
    assert {row["order"] for row in tables["table-09-ordered-orders"].rows} == {"left_to_right", "confidence", None}


def test_block_sizes_follow_the_probe():
    probe = setting(
        "probe", candidates=[Candidate(f"{s}, B={b}", s, b) for s in ("linear", "packed") for b in (2, 4, 8)], prompts=1
    )
    fastest = {"linear": 8, "packed": 4}
    run_ = run_of(
        plan(probe),
        [response(probe, c, "a", 10, 5, 0.5 if fastest[c.schedule] == c.block_size else 1.0) for c in probe.candidates],
    )
    main = setting(
        candidates=[
            Candidate("linear", "linear"),
            Candidate("packed", "packed"),
            Candidate("decoder", "decoder", external=True),
            Candidate("autoregressive", "autoregressive", 2),
        ]
    )
    assert [c.block_size for c in resolved(main, run_).candidates] == [8, 4, None, 2]
    with pytest.raises(ValueError, match="quadratic has no block size and no probe"):
        resolved(setting(candidates=[Candidate("quadratic", "quadratic")]), run_)


@pytest.mark.parametrize(
    ("model", "candidate"),
    [
        (BLOCK, Candidate("packed", "packed", 4)),
        (BLOCK, Candidate("linear", "linear", 4)),
        (ORDERED, Candidate("packed", "packed", window=4, order="confidence")),
    ],
)
def test_model_time_is_the_forwards_alone(monkeypatch: pytest.MonkeyPatch, model: Any, candidate: Candidate):
    """A clock that only forwards advance, by a second each."""
    now = [0.0]
    engine = Ours(model, candidate, 64)

    def tick(*_: Any) -> None:
        now[0] += 1.0

    monkeypatch.setattr(engines.time, "perf_counter", lambda: now[0])
    for cap in (12, 5):  # the second starts from nothing
        with model.register_forward_hook(tick):
            out = engine.generate(PROMPT, cap, 0.0, 0)
        passes = out.model_seconds - (out.nfe - 1)  # of the first call, which may take the prompt in several
        assert out.first_model_seconds == passes >= 1 and out.seconds == out.model_seconds


class _Event(FakeEvent):
    """Counts replays as milliseconds."""

    def __init__(self, enable_timing: bool = False, external: bool = False) -> None:
        super().__init__()
        assert enable_timing and external == (FakeGraph.watch.capturing is not None)

    def record(self) -> None:
        super().record()
        FakeGraph.watch.events.append("inside" if FakeGraph.watch.capturing is not None else "outside")

    def elapsed_time(self, end: _Event) -> float:
        return 1.0


@pytest.mark.parametrize("schedule", ["linear", "packed"])
def test_on_a_gpu_model_time_is_that_of_counted_calls(monkeypatch: pytest.MonkeyPatch, schedule: str):
    with fake_cuda(monkeypatch) as watch:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: watch.capturing is not None)
        monkeypatch.setattr(torch.cuda, "Event", lambda **options: _Event(**options) if options else FakeEvent())
        clock, firsts = ForwardEvents(), []
        decoder = host_decoder(BLOCK, schedule, 4, max_length=64, observer=clock)
        for cap in (12, 7):
            out = decoder.generate(PROMPT, cap, eos_token_id=[])
            plain = Decoder(BLOCK, schedule, 4, max_length=64).generate(PROMPT, cap, eos_token_id=[])
            assert out.tokens[0].tolist() == plain.tokens[0].tolist() and out.nfe == plain.nfe
            firsts.append(clock.first)
            assert clock.seconds(out.nfe[0]) == pytest.approx((1e-3 * (clock.first + out.nfe[0] - 1), 1e-3 * clock.first))
        assert firsts[0] == firsts[1]  # the first generation warmed up and captured, which does not count
        assert watch.events.count("inside") == 2 * len(decoder.schedule.cycle)  # one capture, two events a call


def test_latency_of_both_layouts():
    for model, mask in ((BLOCK, "packed"), (ORDERED, "causal")):
        record = measure(model, "m", rows=(1, 2, 4, 80), prefix=8, seconds=0.0)
        assert record["mask"] == mask and [p["rows"] for p in record["points"]] == [1, 2, 4, 80]
        assert [fit["rows"] for fit in record["fits"]] == [[1, 80], [1, 4]]
