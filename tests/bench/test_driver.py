"""The driver of the device check on stages that are a line of Python each: budget, crashes, hangs, and the record."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from device import processes
from device.driver import RESERVE, Check, Stage
from device.processes import run
from device.record import table

from .conftest import stopped_at

#: What every stage of these tests begins with: ``put`` writes results, ``record`` is the record so far.
PRELUDE = """
import json, os, signal, subprocess, sys, time
results, record = sys.argv[1], json.load(open(sys.argv[2]))
def put(rows=(), failures=(), **values):
    with open(results, "w") as file:
        json.dump({"values": values, "rows": list(rows), "failures": list(failures)}, file)
"""


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.3)


def check(
    folder: Path,
    stages: dict[str, str],
    *,
    budget: float = 100.0,
    estimates: Sequence[float] = (),
    limit: float = 60.0,
    **options: Any,
) -> Check:
    """A check whose stages run these lines."""
    made = [Stage(name, f"the stage {name}", estimates[i] if estimates else 0.0, limit) for i, name in enumerate(stages)]
    path = folder / "card-2026-01-02.json"

    def command(stage: Stage, results: Path, seconds: float) -> list[str]:
        return [sys.executable, "-c", PRELUDE + stages[stage.name], str(results), str(path), f"{seconds:.1f}"]

    return Check(made, budget, path, command, {"date": "2026-01-02"}, **options)


def statuses(record: dict[str, Any]) -> list[str]:
    return [stage["status"] for stage in record["stages"]]


def test_a_crash_ends_its_own_stage_and_keeps_what_was_measured(tmp_path: Path) -> None:
    record = check(
        tmp_path,
        {
            "first": "put(speed=3.5)",
            "crash": "put(speed=1.5); print('about to fall'); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGSEGV)",
            "raise": "put(); raise ValueError('no such kernel')",
            "last": "put(speed=4.5)",
        },
    ).run()
    assert statuses(record) == ["ok", "failed", "failed", "ok"]
    crash, raised = record["stages"][1:3]
    assert crash["values"] == {"speed": 1.5} and crash["note"] == "ended by SIGSEGV" and crash["tail"] == ["about to fall"]
    assert raised["note"] == "exit status 1" and raised["tail"][-1] == "ValueError: no such kernel"
    assert "tail" not in record["stages"][0] and record["stages"][3]["values"] == {"speed": 4.5}


def test_a_stage_that_says_that_something_is_wrong_has_failed(tmp_path: Path) -> None:
    record = check(tmp_path, {"a": "put(failures=['3 texts differ'], n=1)"}).run()
    assert statuses(record) == ["failed"] and record["stages"][0]["failures"] == ["3 texts differ"]


def test_a_hang_is_stopped_with_all_that_it_has_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    stopped_at(monkeypatch, beat)
    child = f"import time\nwhile True:\n    open({str(beat)!r}, 'w').write(str(time.time()))\n    time.sleep(0.02)"
    record = check(
        tmp_path,
        {
            "before": "put(n=0)",
            "hang": "put(n=1); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
            "while True: time.sleep(1)",
            "next": "put(n=2)",
        },
    ).run()
    assert statuses(record) == ["ok", "timeout", "ok"]
    assert record["stages"][1]["values"] == {"n": 1} and record["stages"][1]["note"].startswith("stopped after")
    assert still(beat)


def test_the_limit_is_a_limit() -> None:
    ended = run([sys.executable, "-c", "import time; time.sleep(600)"], limit=0.2)
    assert ended.timed_out and ended.seconds < 100


def still(beat: Path) -> bool:
    """Whether nobody writes to the file any more."""
    last = beat.read_text()
    time.sleep(0.5)
    return beat.read_text() == last


def test_a_process_ends_what_it_runs_in_groups_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    stopped_at(monkeypatch, beat)
    monkeypatch.setattr(processes, "GRACE", 60.0)  # the outer process needs a moment for the inner one
    inner = f"import time\nwhile True:\n    open({str(beat)!r}, 'w').write(str(time.time()))\n    time.sleep(0.02)"
    outer = (
        "import signal, sys\n"
        f"sys.path.insert(0, {str(Path(processes.__file__).parents[1])!r})\n"
        "from device.processes import run\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"run([sys.executable, '-c', {inner!r}], limit=60)"
    )
    assert run([sys.executable, "-c", outer], limit=60).timed_out
    assert still(beat)


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    ended = run([str(tmp_path / "nothing")], limit=5)
    assert ended.status == 127 and "No such file" in ended.output and ended.reason() == "exit status 127"


class Clock:
    """A clock that stands still unless a stage moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_without_enough_budget_is_skipped_and_a_shorter_one_is_not(tmp_path: Path) -> None:
    clock = Clock()
    made = check(
        tmp_path,
        {"long": "put()", "too long": "put()", "short": "put(limit=float(sys.argv[3]))"},
        budget=100.0,
        estimates=(50, 40, 20),
        clock=clock,
    )
    inner = made.command

    def command(stage: Stage, results: Path, seconds: float) -> Sequence[str]:
        clock.now += {"long": 60.0, "short": 5.0}[stage.name]
        return inner(stage, results, seconds)

    made.command = command
    record = made.run()
    assert statuses(record) == ["ok", "skipped", "ok"]
    left = 100 - RESERVE - 60
    assert record["stages"][1]["note"] == f"it needs about 40 s, and {left:.0f} s of the budget are left"
    assert record["stages"][2]["values"]["limit"] == pytest.approx(left)  # less than its limit of 60 s
    assert record["seconds"] == 65.0


def test_the_last_stage_may_take_all_that_is_left(tmp_path: Path) -> None:
    line = "put(limit=float(sys.argv[3]))"
    record = check(tmp_path, {"a": line, "b": line}, budget=500.0, limit=60.0, clock=Clock()).run()
    assert [stage["values"]["limit"] for stage in record["stages"]] == [60.0, 500.0 - RESERVE]


def test_the_record_is_on_disk_before_the_next_stage_begins(tmp_path: Path) -> None:
    stages = dict.fromkeys(("a", "b", "c"), "put(seen=[stage['name'] for stage in record['stages']])")
    record = check(tmp_path, stages).run()
    assert [stage["values"]["seen"] for stage in record["stages"]] == [[], ["a"], ["a", "b"]]
    assert json.loads((tmp_path / "card-2026-01-02.json").read_text()) == record
    assert [path.name for path in tmp_path.iterdir()] == ["card-2026-01-02.json"]


def test_what_a_stage_asks_for_in_the_environment_holds_afterwards(tmp_path: Path) -> None:
    record = check(
        tmp_path,
        {
            "a": "put(environment={'PACKED_SS_TRITON': '0'}, had=os.environ.get('PACKED_SS_TRITON'))",
            "b": "put(had=os.environ.get('PACKED_SS_TRITON'))",
        },
    ).run()
    assert [stage["values"] for stage in record["stages"]] == [{"had": None}, {"had": "0"}]


def test_neither_record_nor_log_says_where_it_was_made(tmp_path: Path) -> None:
    log = tmp_path / "log"
    made = check(tmp_path, {"a": "put(failures=[f'{results} is broken'], where=results); print(results); sys.exit(1)"}, log=log)
    made.run()
    text = made.path.read_text() + log.read_text()
    assert str(tmp_path) not in text and "is broken" in text and "== a: failed" in text


def test_the_table_shows_every_stage_target_and_verdict(tmp_path: Path) -> None:
    row = {"what": "64 rows", "measured": "3.9 ms", "floor": "3.7 ms", "target": "at most 4", "met": True, "note": "fast"}
    rows = [
        row,
        row | {"what": "tail", "measured": "14 µs", "met": False, "note": ""},
        row | {"target": "", "met": None, "floor": ""},
    ]
    record = check(
        tmp_path,
        {"a": f"put(rows={rows!r})", "b": "put(failures=['it is wrong'])", "c": "put()"},
        budget=60,
        estimates=(0, 0, 999),
    ).run()
    lines = table(record["stages"]).splitlines()
    headings = {0: "== a: ok in ", 4: "== b: failed in ", 6: "== c: skipped: "}
    assert all(lines[i].startswith(text) for i, text in headings.items()) and len(lines) == 7
    assert lines[1] == "  64 rows  3.9 ms  floor 3.7 ms  at most 4, met     fast"
    assert lines[2] == "  tail      14 µs  floor 3.7 ms  at most 4, MISSED"
    assert lines[3].split() == ["64", "rows", "3.9", "ms", "fast"] and lines[5] == "  FAILED: it is wrong"
