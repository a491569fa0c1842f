"""Records on disk: what is written is read, torn ends are redone, and nothing else is written over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packed_ss.evaluation.bench.report import read_folder, write_report
from packed_ss.evaluation.bench.run_records import FILE, Recorder, read_run, recording

from .made import CANDIDATES, plan, response, setting

SETTING = setting()
PLAN = plan(SETTING).as_dict()
RESPONSES = [response(SETTING, c, prompt, 10, 5, 0.5, advances=[1, 2], text="é\n") for prompt in "ab" for c in CANDIDATES]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with recording(tmp_path / "run", PLAN) as recorder:
        for one in RESPONSES:
            recorder.add(one)
        recorder.note("latency", {"model": "m", "points": []})
        recorder.note("note", {"what": "start"})
    return tmp_path / "run"


def test_what_is_written_is_read(folder: Path):
    run = read_run(folder / FILE)
    assert run.plan == json.loads(json.dumps(PLAN)) and list(run.responses.values()) == RESPONSES
    assert run.latency["m"]["points"] == [] and run.notes[0]["what"] == "start"
    with recording(folder, PLAN) as recorder:
        assert recorder.resumed and recorder.run.responses.keys() == {r.key for r in RESPONSES}


@pytest.mark.parametrize("cut", [1, 20, 3000])
def test_a_torn_end_is_dropped_and_written_again(folder: Path, cut: int):
    path = folder / FILE
    whole = path.read_bytes()
    lines = whole[: max(len(whole) - cut, 10)].count(b"\n")
    path.write_bytes(whole[:-cut] if cut < len(whole) else whole[:10])
    torn = path.read_bytes()
    if lines:
        assert len(read_run(path).responses) == min(lines - 1, len(RESPONSES))
    else:
        assert read_run(path) is None
    assert path.read_bytes() == torn  # reading writes nothing
    with recording(folder, PLAN) as recorder:
        for one in RESPONSES:
            if one.key not in recorder.run.responses:
                recorder.add(one)
    assert sorted(read_run(path).responses.values(), key=repr) == sorted(RESPONSES, key=repr)


def test_nothing_of_a_long_torn_line_stays_behind_a_short_record(folder: Path):
    path = folder / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:-5])
    with recording(folder, PLAN) as recorder:
        recorder.note("note", {})
    run = read_run(path)
    assert len(run.responses) == 2 and len(run.notes) == 1 and path.stat().st_size == run.size


@pytest.mark.parametrize(
    "wrong",
    ["{", "[]", "3", '{"kind": "response"}', '{"kind": "strange"}', "", '{"kind": "response", "setting": 1, "tokens": "many"}'],
)
@pytest.mark.parametrize("number", [1, 3, 9])
def test_a_malformed_line_is_refused_with_its_number(folder: Path, number: int, wrong: str):
    path = folder / FILE
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[number - 1] = wrong
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    before = path.read_bytes()
    for use in (lambda: Recorder(folder, PLAN), lambda: write_report(folder)):
        with pytest.raises(ValueError, match=rf"{FILE} line {number} is not .*nothing was written"):
            use()
    assert path.read_bytes() == before and not (folder / "tables").exists()


def test_another_runs_folder_is_refused_unless_it_may_go(folder: Path):
    other = plan(setting(cap=32)).as_dict() | {"seed": 7}
    before = (folder / FILE).read_bytes()
    with pytest.raises(
        ValueError, match=r"holds the records of another run, which differs in settings, seed \(0 there, 7 here\)"
    ):
        Recorder(folder, other)
    assert (folder / FILE).read_bytes() == before
    with recording(folder, other, overwrite=True) as recorder:
        assert not recorder.resumed and not recorder.run.responses
    assert read_run(folder / FILE).plan["seed"] == 7


def test_a_folder_without_records_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="holds no records: run packed-ss bench"):
        read_folder(tmp_path)
    (tmp_path / FILE).write_bytes(b'{"kind":"pl')
    with pytest.raises(ValueError, match="holds no records"):
        read_folder(tmp_path)
