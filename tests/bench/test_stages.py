"""The stages of the device check on a CPU at small sizes: that they run and find what is wrong, and that figures can be drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device import attention, equality, operators, resolves
from device.few_operators import EVERY
from device.plots import draw
from device.record import Results
from device.stages import NEEDS_GPU, STAGES, Bench, function
from torch import Tensor

import packed_ss
from packed_ss import ops
from packed_ss.evaluation.bench.clock import interleave, summary
from packed_ss.evaluation.verify import causal_logits

MakeBench = Callable[..., Bench]


def run_stage(name: str, bench: Bench) -> Results:
    results = Results()
    with torch.no_grad():
        function(name)(bench, results)
    return results


# ---- That they run -----------------------------------------------------------------------------------------------------------


def test_every_stage_has_a_function_and_fits_its_limit() -> None:
    assert [stage.name for stage in STAGES][:5] == ["build", "operators", "tests", "equality", "latency"]
    for stage in STAGES:
        assert callable(function(stage.name)) and 0 < stage.estimate < stage.limit


def test_every_stage_that_can_runs_on_a_cpu_and_its_figures_can_be_drawn(bench: MakeBench, tmp_path: Path) -> None:
    record: dict[str, Any] = {"stages": []}
    for stage in STAGES:
        if stage.name in (*NEEDS_GPU, "tests"):
            continue
        results = run_stage(stage.name, bench(problems=1, new_tokens=4, random_tokens=3))
        assert results.rows and not results.failures, stage.name
        record["stages"].append({"name": stage.name, "values": json.loads(json.dumps(results.values, default=str))})
    drawn = draw(record, tmp_path / "cpu-2026-01-02.json")
    assert [path.name for path in drawn] == [f"cpu-2026-01-02-{name}.png" for name in ("latency", "iterations", "kernels")]
    assert all(path.read_bytes()[:4] == b"\x89PNG" and path.stat().st_size > 10_000 for path in drawn)


def test_a_record_without_measurements_has_no_figures(tmp_path: Path) -> None:
    stages = [{"name": "latency", "status": "skipped"}, {"name": "tests", "values": {}}]
    assert draw({"stages": stages}, tmp_path / "a.json") == []


def test_candidates_take_turns_and_medians_are_reported() -> None:
    calls: list[str] = []

    def scripted(name: str, times: list[float]) -> Callable[[], float]:
        left = iter([1000.0, *times])
        return lambda: (calls.append(name), next(left))[1]

    found = interleave({"a": scripted("a", [3.0, 9.0, 4.0]), "b": scripted("b", [1.0, 2.0, 30.0])}, 0.0, least=3)
    assert calls == ["a", "b", "a", "b", "b", "a", "a", "b"]  # the first round does not count
    assert found["a"]["median_ms"] == 4.0 and found["b"]["median_ms"] == 2.0 and found["a"]["samples"] == 3
    assert summary([5.0])["p25_ms"] == 5.0


# ---- operators ---------------------------------------------------------------------------------------------------------------


def spoiled(operator: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with a slight fault."""

    def wrong(*arguments: Any) -> Any:
        out = kernel(*arguments)
        if operator == "linear_argmax":
            return (out + 1) % arguments[1].shape[0]
        if operator == "rope_store":
            arguments[-1][:, 0].add_(0.1)
        elif operator in ("pack_block", "pack_ordered"):
            arguments[-1][-1].view(-1)[-1] ^= 1  # the last buffer of the rows
        elif operator == "uniform_noise":
            out[0, 0, 7] += 1e-7
        elif operator == "tail_attention":
            out[-1, -1, -1] *= 1.01
        elif operator in ("argmax_rows", "verify_rows", "draw_rows"):
            arguments[-4 if operator == "draw_rows" else -2][0, 0] += 1  # ids
        elif operator == "compact_cache":
            arguments[0][0, 0, 5] += 1
        else:
            state = next(one for one in arguments if isinstance(one, list))
            state[2][0] += 1  # cache_len
        return out

    return wrong


@pytest.mark.parametrize("operator", sorted(ops._TORCH_KERNELS))
def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch, bench: MakeBench, operator: str) -> None:
    plain = ops._TORCH_KERNELS[operator]
    monkeypatch.setattr(operators, "implementations", lambda name, device: {"plain": plain, "spoiled": spoiled(operator, plain)})
    cases = [case for case in operators.cases(torch.device("cpu")) if case.operator == operator]
    assert cases
    results = Results()
    operators.check(bench(), results, cases)
    found = [entry for entry in results.values["cases"] if not entry["error"] <= entry["accepted"]]
    assert {entry["by"] for entry in found} == {"spoiled"} and len(found) >= (len(cases) + 1) // 2
    assert len(results.failures) == len(found) and results.failures[0].startswith(f"{operator} by spoiled, ")


def test_a_kernel_that_raises_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, bench: MakeBench) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no kernel image is available\nsecond line")

    monkeypatch.setattr(operators, "implementations", lambda name, device: {"broken": broken, "plain": ops._TORCH_KERNELS[name]})
    results = run_stage("few_operators", bench())
    assert {entry["operator"] for entry in results.values["cases"]} == {*ops._TORCH_KERNELS}
    assert {entry["by"] for entry in results.values["cases"] if "error" in entry} == {"plain"}
    assert results.failures[0].endswith("RuntimeError: no kernel image is available")


def test_the_few_cases_are_of_different_shapes() -> None:
    names = [case.name for case in operators.cases(torch.device("cpu")) if case.operator == "tail_attention"]
    assert len(set(names)) == len(names) and len(names) % EVERY  # so that every dtype has another shape


@pytest.mark.parametrize("kernel", [lambda *_: torch.full((1, 1, 1, 1), torch.nan), lambda *_: torch.zeros(2)])
def test_nan_and_other_shapes_are_no_result(kernel: Callable[..., Tensor]) -> None:
    assert math.isinf(operators.relative(kernel(), torch.ones(1, 1, 1, 1)))


# ---- equality ----------------------------------------------------------------------------------------------------------------


#: Ordered models have no fused head.
ORDERED_MODES = len(equality.MODES) - 1


def test_a_text_that_differs_is_reported_with_its_gaps(monkeypatch: pytest.MonkeyPatch, bench: MakeBench) -> None:
    decoded = equality.decoded

    def altered(decoder: Any, prompts: list[list[int]], new: int, sampling: dict[str, Any]) -> list[list[int]]:
        texts = decoded(decoder, prompts, new, sampling)
        if decoder.schedule.name == "packed":
            texts[1] = [*texts[1][:2], (texts[1][2] + 1) % 800, *texts[1][3:]]
        return texts

    monkeypatch.setattr(equality, "decoded", altered)
    results = run_stage("equality", bench(problems=2, new_tokens=4))
    entries = {entry["what"]: entry for entry in results.values["texts"]}
    for mode in equality.MODES:
        assert entries[f"tiny, float32, {mode}, linear, bursts"]["different"] == 0
        [mismatch] = entries[f"tiny, float32, {mode}, packed, bursts"]["mismatches"]
        assert (mismatch["problem"], mismatch["token"]) == (1, 2)
        # The right token is the best one, so the gap to any other is at least that to the second best.
        assert 0 < mismatch["top_two_gap"] <= mismatch["between_gap"] and mismatch["logit_gap"] < math.inf
    assert len(results.failures) == len(equality.MODES) + ORDERED_MODES
    assert "1 of 2 texts differ in float32" in results.failures[0]
    assert [row["measured"] for row in results.rows if "texts" in row["measured"]] == [
        "9 of 10 texts equal",
        "11 of 12 texts equal",
        "11 of 12 texts equal",
        "11 of 12 texts equal",
        "11 of 12 texts equal",
    ]


def test_a_text_that_the_model_would_not_give_is_found(monkeypatch: pytest.MonkeyPatch, bench: MakeBench) -> None:
    decoded = equality.decoded

    def altered(*arguments: Any) -> list[list[int]]:  # of every decoder alike, so that all agree
        [text] = decoded(*arguments)
        return [[*text[:3], (text[3] + 1) % 800]]

    monkeypatch.setattr(equality, "decoded", altered)
    results = run_stage("equality", bench(problems=1, new_tokens=4))
    assert len(results.failures) == 2 + 1  # greedy modes of tiny, and of tiny-set
    told = "autoregressive, bursts: 1 tokens are not those of a plain causal pass, the first (problem 0) at token 3"
    assert all(told in failure for failure in results.failures)


def test_the_gap_is_that_of_the_scores() -> None:
    model = packed_ss.load_model("tiny", dtype=torch.float32)
    prompt = [5, 6, 7]
    [logits] = causal_logits(model, prompt)[-1:]
    best, second = logits.topk(2).indices.tolist()
    found = equality.gap(model, 0, prompt, [best, 9], [second, 8], {})
    assert found["token"] == 0 and found["tokens"] == [best, second]
    assert found["top_two_gap"] == found["between_gap"] == pytest.approx(float(logits[best] - logits[second]))
    shorter = equality.gap(model, 0, prompt, [best], [best, 4], {})
    assert shorter["token"] == 1 and shorter["tokens"] == [[], [4]] and math.isnan(shorter["top_two_gap"])


def test_a_decoder_that_cannot_run_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch, bench: MakeBench) -> None:
    class Failing(packed_ss.Decoder):
        def generate(self, *arguments: Any, **options: Any) -> Any:
            if self.schedule.name == "linear":
                raise RuntimeError("the iteration could not be captured")
            return super().generate(*arguments, **options)

    monkeypatch.setattr(packed_ss, "Decoder", Failing)
    results = run_stage("equality", bench(problems=1, new_tokens=3))
    assert len(results.failures) == len(equality.MODES) + ORDERED_MODES
    assert "linear, bursts: RuntimeError: the iteration could" in results.failures[0]
    assert {entry.get("different") for entry in results.values["texts"] if "linear" not in entry["what"]} == {0}


# ---- attention and resolves --------------------------------------------------------------------------------------------------


def test_an_attention_that_is_wrong_or_missing_is_told(monkeypatch: pytest.MonkeyPatch, bench: MakeBench) -> None:
    right = attention.candidates

    def raising() -> Any:
        raise ImportError("no such library")

    def candidates(operands: Any) -> Any:
        make = dict(right(operands))
        yield attention.OURS, lambda: lambda i: 1.05 * make[attention.OURS]()(i)
        yield "rival", raising
        yield "sdpa", make["sdpa, grouped heads"]

    monkeypatch.setattr(attention, "candidates", candidates)
    results = run_stage("attention", bench(attention_prefixes=(9,)))
    [entry] = results.values["attention"]
    assert entry["unavailable"] == {"rival": "ImportError: no such library"} and set(entry["us"]) == {attention.OURS, "sdpa"}
    assert entry["errors"]["sdpa"] < 1e-5 and entry["errors"][attention.OURS] == pytest.approx(0.05, rel=0.01)
    [failure] = results.failures
    assert failure.startswith("tail_attention, prefix 9: relative error 5.0")
    assert entry["layers"] >= 2 and entry["bytes"] == 2 * (9 + 8) * 2 * 16 * 4


def small(mode: str, top_k: int, top_p: float) -> resolves.Operands:
    cpu = torch.device("cpu")
    return resolves.Operands(cpu, torch.float32, mode, block_size=8, vocab=257, filters=(top_k, top_p))


@pytest.mark.parametrize(("mode", "top_k", "top_p"), resolves.CASES)
def test_resolves_start_from_the_same_state_every_time(mode: str, top_k: int, top_p: float) -> None:
    operands, outcomes = small(mode, top_k, top_p), []
    before = [tensor.clone() for tensor in operands.states[0].operands()]
    for _ in range(2):
        operands.restore()
        operands.resolve(0)
        outcomes.append(operands.outcome())
    assert all(map(torch.equal, *outcomes))
    advance = int(outcomes[0][1]) - len(resolves.PROMPT)
    assert advance == 5 or (mode == "coupled" and advance >= 1)  # half of the draft, and the token after it
    assert not all(map(torch.equal, before, operands.states[0].operands()))
    operands.restore()
    assert all(map(torch.equal, before, operands.states[0].operands()))


def test_a_resolve_that_decides_otherwise_is_found(monkeypatch: pytest.MonkeyPatch, bench: MakeBench) -> None:
    def other(logits: Tensor, *rest: Any) -> None:
        ops._TORCH_KERNELS["argmax_rows"](-logits, *rest)

    served = resolves.variants(torch.device("cpu"))["torch"]
    monkeypatch.setattr(resolves, "variants", lambda device: {"other": served | {"argmax_rows": other}, "torch": served})
    monkeypatch.setattr(resolves, "CASES", (("greedy", 0, 1.0),))
    results = run_stage("resolves", bench())
    assert results.failures == ["resolve greedy by other decides otherwise than plain torch"]
    assert torch.ops.packed_ss.argmax_rows is not other
