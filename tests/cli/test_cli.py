"""The command line, run as users run it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from packed_ss.cli import main
from packed_ss.evaluation import extras

QUESTION = "Maya has 14 shells. She finds 9 more at the beach. Then she loses 5 of them. How many shells are left?"


@dataclass(frozen=True)
class Run:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def packed_ss(*arguments: str, stdin: str = "") -> Run:
    """Runs the entry point in this process, which saves the seconds that importing torch takes."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["packed-ss", *arguments])
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("COLUMNS", "160")
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code or 0
    return Run(code, out.getvalue(), err.getvalue())


def test_the_process_prints_one_sentence_and_no_traceback():
    run = subprocess.run(
        [sys.executable, "-m", "packed_ss", "generate", "hi", "--top-p", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr == "packed-ss: top_p is 2.0, but it must be in (0, 1]\n"
    assert run.stdout == ""


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Path:
    run = packed_ss("generate", QUESTION, "--json")
    assert run.returncode == 0, run.stderr
    path = tmp_path_factory.mktemp("record") / "out.json"
    path.write_text(run.stdout)
    return path


def test_generate_streams_the_text_that_json_holds(record):
    out = json.loads(record.read_text())
    run = packed_ss("generate", QUESTION)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == out["text"].strip()
    assert "The answer is" in out["text"]
    assert sum(out["advances"]) == len(out["tokens"])
    assert len(out["advances"]) == out["nfe"] < len(out["tokens"])
    assert f"{len(out['tokens'])} tokens in {out['nfe']} calls" in run.stderr


def test_generate_reads_files_and_standard_input(record, tmp_path):
    text = json.loads(record.read_text())["text"].strip()
    path = tmp_path / "prompt.txt"
    path.write_text(QUESTION + "\n")
    assert packed_ss("generate", "--file", str(path)).stdout.strip() == text
    assert packed_ss("generate", "-", stdin=QUESTION).stdout.strip() == text
    assert packed_ss("generate", stdin=QUESTION).stdout.strip() == text


@pytest.mark.parametrize("schedule", ["autoregressive", "linear", "quadratic", "branched:0,2,4"])
def test_generate_gives_the_same_text_under_every_schedule(record, schedule):
    run = packed_ss("generate", QUESTION, "--json", "--schedule", schedule, "--block-size", "8")
    assert json.loads(run.stdout)["tokens"] == json.loads(record.read_text())["tokens"]


def test_generate_stops_after_a_stop_text(record):
    text = json.loads(record.read_text())["text"]
    word = text.split()[3]
    run = packed_ss("generate", QUESTION, "--json", "--stop", " " + word)
    out = json.loads(run.stdout)
    assert out["finish_reason"] == "stop"
    assert out["text"] == text[: text.index(" " + word) + len(word) + 1]


def test_verify_accepts_an_output_and_names_a_changed_token(record, tmp_path):
    assert packed_ss("verify", str(record)).returncode == 0
    assert "are what plain AR emits" in packed_ss("verify", "--float64", "-", stdin=record.read_text()).stdout
    out = json.loads(record.read_text())
    out["tokens"][5] += 1
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(out))
    run = packed_ss("verify", str(changed), "--json")
    assert run.returncode == 1
    first = json.loads(run.stdout)["mismatches"][0]
    assert (first["index"], first["token"]) == (5, out["tokens"][5])
    assert first["gap"] > 0
    assert "not what plain AR emits" in packed_ss("verify", str(changed)).stdout


def test_verify_checks_coupled_samples_with_the_specification_noise(tmp_path):
    run = packed_ss("generate", QUESTION, "--json", "--temperature", "1.5", "--verification", "coupled", "--seed", "3")
    path = tmp_path / "coupled.json"
    path.write_text(run.stdout)
    assert packed_ss("verify", str(path)).returncode == 0
    out = json.loads(run.stdout)
    path.write_text(json.dumps(out | {"seed": 4}))
    assert packed_ss("verify", str(path)).returncode == 1


def test_compare_prints_a_table_or_json_and_draws(tmp_path):
    plot = tmp_path / "out.png"
    run = packed_ss("compare", "--limit", "2", "--json", "--plot", str(plot), "--block-size", "8")
    assert run.returncode == 0, run.stderr
    rows = {r["schedule"]: r for r in json.loads(run.stdout)["schedules"]}
    assert list(rows) == ["autoregressive", "linear", "packed", "quadratic"]
    assert all(r["equal"] == r["prompts"] == 2 for r in rows.values())
    assert rows["autoregressive"]["tokens_per_nfe"] == 1.0 < rows["packed"]["tokens_per_nfe"]
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    table = packed_ss("compare", "--limit", "1", "--schedules", "linear packed")
    assert "tokens/NFE" in table.stdout
    assert "packed" in table.stdout


def test_an_ordered_model_is_generated_verified_and_compared():
    out = packed_ss("generate", QUESTION, "--model", "tiny-set", "--window", "8", "--json")
    record = json.loads(out.stdout)
    assert (record["window"], record["order"]) == (8, "left_to_right") and "The answer is" in record["text"]
    run = packed_ss("verify", "-", stdin=out.stdout)
    assert run.returncode == 0 and "are what plain AR emits" in run.stdout
    by_confidence = packed_ss("generate", QUESTION, "--model", "tiny-set", "--order", "confidence", "--json").stdout
    assert (json.loads(by_confidence)["window"], json.loads(by_confidence)["order"]) == (16, "confidence")
    run = packed_ss("verify", "-", stdin=by_confidence)
    assert run.returncode == 2 and "order 'confidence', but only left_to_right" in run.stderr
    run = packed_ss(
        "compare", "--model", "tiny-set", "--limit", "1", "--window", "4", "--order", "left_to_right confidence", "--json"
    )
    compared = {entry["schedule"]: entry for entry in json.loads(run.stdout)["schedules"]}
    assert list(compared) == [
        "autoregressive",
        "native",
        "linear",
        "linear, confidence",
        "packed",
        "packed, confidence",
        "quadratic",
        "quadratic, confidence",
    ]
    assert all(compared[name]["equal"] == 1 for name in ("linear", "packed", "quadratic"))


def test_bench_measures_and_reports_again_from_its_records(tmp_path):
    common = ("--limit", "1", "--modes", "greedy", "--schedules", "linear packed", "--max-new-tokens", "4", "--device", "cpu")
    small = ("--block-size", "4", "--windows", "4 8", "--latency-seconds", "0.01", "--no-baselines", "--no-lora")
    run = packed_ss("bench", "--out", str(tmp_path), "--model", "tiny", "--model", "tiny-set", *common, *small)
    assert run.returncode == 0, run.stderr
    assert "Table 6" in run.stdout and "Table 9" in run.stdout
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Table 12: packed against each baseline" in report and "figures/latency.png" in report
    (tmp_path / "report.md").unlink()
    again = packed_ss("bench", "--out", str(tmp_path), "--report-only")
    assert again.returncode == 0 and (tmp_path / "report.md").read_text(encoding="utf-8") == report
    refused = packed_ss("bench", "--out", str(tmp_path), "--model", "tiny", *common, *small)
    assert refused.returncode == 2 and "the records of another run" in refused.stderr


def test_commands_that_need_an_extra_say_which(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    for arguments in (("bench", "--out", str(tmp_path)), ("compare", "--plot", "out.png")):
        run = packed_ss(*arguments)
        assert run.returncode == 2 and run.stderr.endswith("not installed: pip install packed-ss[bench]\n")
        assert run.stderr.count("\n") == 1 and not run.stdout


def test_info_describes_machine_and_checkpoint():
    out = json.loads(packed_ss("info", "tiny", "--json").stdout)
    assert out["model_type"] == "nemotron_labs_diffusion"
    assert 2e6 <= out["parameters"] <= 5e6
    assert "torch" in out
    assert "argmax_rows" in out["compiled kernels"] or "none: " in out["compiled kernels"]
    assert "tiny" in packed_ss("info", "tiny").stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["generate", ""], "prompt is empty"),
        (["generate", "hi", "--max-new-tokens", "-1"], "max_new_tokens is -1"),
        (["generate", "hi", "--block-size", "1"], "block_size is 1"),
        (["generate", "hi", "--top-p", "0"], "top_p is 0"),
        (["generate", "hi", "--top-p", "1.5"], "top_p is 1.5"),
        (["generate", "hi", "--top-k", "-3"], "top_k is -3"),
        (["generate", "hi", "--temperature", "-0.5"], "temperature is -0.5"),
        (["generate", "hi", "--temperature", "nan"], "temperature is nan"),
        (["generate", "hi", "--stop", ""], "stop sequence 0 is empty"),
        (["generate", "hi", "--schedule", "fast"], "'fast'"),
        (["generate", "hi", "--verification", "maybe"], "'maybe'"),
        (["generate", "hi", "--file", "x"], "both a prompt and --file"),
        (["generate", "--file", "no/such/file"], "no/such/file"),
        (["generate", "hi", "--model", "no/such/folder/at all"], "no/such/folder"),
        (["generate", "hi", "--schedule", "branched:1,2"], "with 0 among them"),
        (["generate", "hi", "--schedule", "branched:0,99"], "99"),
        (["compare", "--problems", "no-such.jsonl"], "no-such.jsonl"),
        (["compare", "--limit", "1", "--plot", "x.bmp"], "x.bmp"),
        (["compare", "--schedules", " "], "no schedule"),
        (["verify", "no-such.json"], "no-such.json"),
        (["info", "./nowhere"], "nowhere"),
        (["generate", "hi", "--window", "8"], "window is 8, but the model is of the block layout"),
        (["generate", "hi", "--model", "tiny-set", "--block-size", "8"], "block_size is 8, but the model is an ordered one"),
        (["generate", "hi", "--model", "tiny-set", "--order", "best"], "order is 'best'"),
        (["compare", "--model", "tiny-set", "--order", "confidence", "--temperature", "1", "--schedules", "packed"], "the draws"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, named):
    run = packed_ss(*arguments)
    assert run.returncode == 2, (run.stdout, run.stderr)
    assert named in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"model": "tiny", "prompt_tokens": [], "tokens": []}',
        '{"model": "tiny", "prompt_tokens": [1], "tokens": [99999]}',
        '{"model": "tiny", "prompt_tokens": [1], "tokens": [2], "temperature": 1.0}',
    ],
)
def test_verify_refuses_records_that_are_none(text):
    run = packed_ss("verify", "-", stdin=text)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
