"""Tables from records made by hand, with numbers worked out by hand."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from packed_ss.evaluation.bench.bootstrap import Interval
from packed_ss.evaluation.bench.plan import Candidate
from packed_ss.evaluation.bench.report import write_report
from packed_ss.evaluation.bench.run_records import recording
from packed_ss.evaluation.bench.summary import TOKENS_PER_SECOND, model_wall, summarise
from packed_ss.evaluation.bench.table import Table, check_columns
from packed_ss.evaluation.bench.tables import all_tables

from .made import CANDIDATES, plan, response, run_of, setting

AR, LINEAR, PACKED = CANDIDATES
SETTING = setting()
#: (candidate, prompt) -> tokens, NFE, seconds, model seconds, score
NUMBERS = {
    (AR, "a"): (30, 30, 3.0, 2.7, 1.0),
    (AR, "b"): (10, 10, 1.0, 0.9, 0.0),
    (LINEAR, "a"): (30, 12, 1.5, 1.3, 1.0),
    (LINEAR, "b"): (10, 8, 0.5, 0.4, 0.0),
    (PACKED, "a"): (30, 10, 1.2, 1.0, 1.0),
    (PACKED, "b"): (10, 6, 0.8, 0.6, 1.0),
}


def responses(where=SETTING, numbers=NUMBERS):
    return [
        response(
            where,
            c,
            prompt,
            tokens,
            nfe,
            seconds,
            model_seconds=model,
            first_model_seconds=0.1,
            score=score,
            text=f"{prompt}",
            advances=[1, tokens // 2, tokens - tokens // 2 - 1],
        )
        for (c, prompt), (tokens, nfe, seconds, model, score) in numbers.items()
    ]


def tables_of(where, records, unavailable=None) -> dict[str, Table]:
    return {table.name: table for table in all_tables(summarise(where, run_of(where, records)), unavailable)}


def test_absolute_measurements():
    table = tables_of(plan(SETTING), responses())["table-06-absolute-greedy"]
    rows = {row["schedule"]: row for row in table.rows}
    packed = rows["packed"]
    assert (packed["tokens"], packed["NFE"], packed["wall (s)"]) == (20.0, 8.0, 1.0)
    assert (packed["tokens/NFE"], packed["ms/NFE"], packed["tokens/s"]) == (2.5, 125.0, 20.0)
    assert packed["accuracy"] == 1.0 and rows["linear"]["accuracy"] == 0.5
    assert rows["autoregressive"]["B"] is None and packed["B"] == 4 and packed["rows/call"] == 8
    assert packed["tokens/s"] == pytest.approx(packed["tokens/NFE"] / packed["ms/NFE"] * 1e3)
    text = table.markdown()
    assert "| m | t | packed | 4 | 8 | 100.0 % | 20.0 | 1.0000 | 8.00 | 2.500 | 125.000 | 20.0 |" in text
    assert "| 2.000 | 100.000 | **20.0** |" in text and text.count("**") == 4  # linear comes first of two that are equally fast


def test_paired_efficiency_and_accuracy():
    tables = tables_of(plan(SETTING), responses())
    linear = next(row for row in tables["table-12-paired-greedy"].rows if row["baseline"] == "linear")
    assert linear["wall difference (s)"].value == pytest.approx(0.0)
    assert linear["throughput ratio"].value == pytest.approx(1.0)
    assert linear["tokens/NFE ratio"].value == pytest.approx((40 / 16) / (40 / 20))
    assert linear["time/NFE ratio"].value == pytest.approx((2.0 / 16) / (2.0 / 20))
    # Two prompts: a resample is (a, a), (b, b) or both, so that the interval's ends are the ratios of one prompt.
    assert linear["throughput ratio"][1:] == pytest.approx((0.5 / 0.8, 1.5 / 1.2))
    assert linear["wall difference (s)"][1:] == pytest.approx((-0.3, 0.3))
    accuracy = {row["baseline"]: row["accuracy difference (points)"] for row in tables["table-11-accuracy-paired"].rows}
    assert accuracy["linear"] == Interval(50.0, 0.0, 100.0)


def test_repeats_of_a_prompt_stay_together_and_count_each():
    where = setting(temperature=1.0, repeats=2, prompts=1)
    records = [response(where, c, "a", tokens, 5, 1.0, repeat=k) for c in CANDIDATES for k, tokens in enumerate((10, 30))]
    row = tables_of(plan(where), records)["table-07-absolute-sampling"].rows[0]
    assert (row["tokens"], row["responses"], row["prompts"]) == (20.0, 2, 1)
    assert math.isnan(row["accuracy"])  # unscored: speed only
    assert "–" in tables_of(plan(where), records)["table-07-absolute-sampling"].markdown()


def test_incomplete_prompts_are_left_out():
    records = [r for r in responses() if (r.candidate, r.prompt) != ("packed", "b")]
    (summary,) = summarise(plan(SETTING), run_of(plan(SETTING), records))
    assert summary.prompts == ["a"] and summary.incomplete == 1
    assert summary.value(LINEAR, TOKENS_PER_SECOND) == 20.0
    assert not summarise(plan(SETTING), run_of(plan(SETTING), records[:2]))


def test_the_probe_is_grouped_by_schedule():
    sizes = [Candidate(f"packed, B={b}", "packed", block_size=b) for b in (2, 4)]
    where = setting("probe", candidates=sizes, prompts=1)
    records = [
        response(where, c, "a", 12, 6, seconds, rows=2 * c.block_size) for c, seconds in zip(sizes, (0.3, 0.2), strict=True)
    ]
    table = tables_of(plan(where), records)["table-03-block-size-probe"]
    assert [(row["B"], row["rows/call"], row["tokens/s"]) for row in table.rows] == [
        (2, 4, pytest.approx(40)),
        (4, 8, pytest.approx(60)),
    ]
    assert table.best == {1}


def test_lora_accounting():
    both = [*CANDIDATES[1:], *(Candidate(f"{c.name} + LoRA", c.schedule, block_size=4, adapter="x") for c in CANDIDATES[1:])]
    where = setting("lora", candidates=both, prompts=1)
    records = [
        response(where, c, "a", 20, nfe, 1.0, model_seconds=model, first_model_seconds=0.2)
        for c, nfe, model in zip(both, (9, 7, 7, 6), (0.6, 0.8, 0.8, 0.7), strict=True)
    ]
    tables = tables_of(plan(where), records)
    rows = tables["table-04-lora"].rows
    assert [(row["schedule"], row["weights"]) for row in rows] == [
        ("linear", "base"),
        ("packed", "base"),
        ("linear", "LoRA"),
        ("packed", "LoRA"),
    ]
    assert rows[0]["model (s)"] == 0.6 and rows[0]["non-model (s)"] == pytest.approx(0.4)
    linear, packed = tables["table-05-lora-iteration"].rows
    assert (linear["iterations"], packed["iterations"]) == (3.0, 5.0)  # calls after the first, two to an iteration of linear
    assert linear["model ms/iteration, LoRA"] == pytest.approx(200) and linear["model ms/iteration, base"] == pytest.approx(100)
    assert packed["rows selected"] == packed["rows evaluated"] == 4


def test_model_time_from_responses_of_their_own():
    records = [response(SETTING, c, prompt, 10, 5, 1.0) for c in CANDIDATES for prompt in "ab"]
    (summary,) = summarise(plan(SETTING), run_of(plan(SETTING), records))
    assert model_wall(summary, PACKED) is None
    timed = [
        response(SETTING, c, prompt, 10, 5, 9.0, model_seconds=0.7, first_model_seconds=0.1, timed=True)
        for c in CANDIDATES
        for prompt in "ab"
    ]
    (summary,) = summarise(plan(SETTING), run_of(plan(SETTING), records + timed))
    assert model_wall(summary, PACKED) == (pytest.approx(0.7), pytest.approx(0.3))  # their wall time, 9 s, counts for nothing
    assert summary.value(PACKED, TOKENS_PER_SECOND) == 10.0


def test_baselines_and_why_some_are_missing():
    beside = Candidate("transformers", "transformers", external=True)
    where = setting(candidates=[*CANDIDATES, beside])
    slow = {(beside, "a"): (30, 30, 6.0, None, 1.0), (beside, "b"): (10, 10, 2.0, None, 0.0)}
    table = tables_of(plan(where), responses(where, NUMBERS | slow), {"m": {"compiled": "it needs a GPU."}})["baselines"]
    rows = {row["decoder"]: row for row in table.rows}
    assert rows["ours: packed"]["tokens/s, × transformers"].value == pytest.approx(4.0)
    assert rows["transformers"]["same text as autoregressive"] == "2/2"
    assert rows["compiled"]["note"] == "not run: it needs a GPU."


def test_acceptance_by_verification():
    both = [
        Candidate("packed", "packed", 4, verification="rejection"),
        Candidate("packed (match)", "packed", 4, verification="match"),
    ]
    where = setting(temperature=1.0, candidates=both, prompts=1)
    records = [
        response(where, c, "a", 9, 4, 1.0, advances=advances)
        for c, advances in zip(both, ([1, 4, 0, 4], [1, 2, 3, 3]), strict=True)
    ]
    table = tables_of(plan(where), records)["acceptance"]
    assert [(row["verification"], row["accepted drafts/call"]) for row in table.rows] == [
        ("rejection", 3.0),
        ("match", pytest.approx(5 / 3)),
    ]


def test_ordered_models_have_tables_of_their_own():
    kinds = [Candidate(f"{s}, W=8", s, window=8, order="left_to_right") for s in ("native", "linear", "packed")]
    where = setting(candidates=kinds, prompts=1, order="left_to_right")
    tables = tables_of(plan(where), [response(where, c, "a", 20, 5, 1.0, score=1.0) for c in kinds])
    assert {"table-08-ordered-left-to-right", "table-09-ordered-orders", "table-10-ordered-paired"} <= tables.keys()
    assert "table-06-absolute-greedy" not in tables and "table-12-paired-greedy" not in tables
    assert [row["baseline"] for row in tables["table-10-ordered-paired"].rows] == ["linear", "native"]
    assert "| m | t | 8 | left_to_right | linear |" in tables["table-10-ordered-paired"].markdown()


def test_csv_has_plain_numbers_and_ends_of_intervals():
    table = tables_of(plan(SETTING), responses())["table-12-paired-greedy"]
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["baseline"] for row in rows] == ["autoregressive", "linear"]
    assert float(rows[0]["throughput ratio"]) == 2.0
    assert float(rows[0]["throughput ratio low"]) < float(rows[0]["throughput ratio high"])


def test_columns_are_chosen_and_unknown_ones_refused(tmp_path: Path):
    with recording(tmp_path, plan(SETTING).as_dict()) as recorder:
        for one in responses():
            recorder.add(one)
    with pytest.raises(ValueError, match="the column is 'speed', but it must be one of model; task; schedule"):
        write_report(tmp_path, ["schedule", "speed"])
    assert not (tmp_path / "tables").exists()
    check_columns(["tokens/s"])
    tables = {table.name: table for table in write_report(tmp_path, ["tokens/s", "schedule"], figures=False)}
    assert tables["table-06-absolute-greedy"].columns == ("tokens/s", "schedule")
    head = (tmp_path / "tables" / "table-06-absolute-greedy.csv").read_text().splitlines()[0]
    assert head == "tokens/s,schedule"
    assert len(tables["table-12-paired-greedy"].columns) > 2  # it has none of them, and stays whole
    assert "**Table 6" in (tmp_path / "report.md").read_text(encoding="utf-8")
