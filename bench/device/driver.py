"""Run stages in order within a budget of time and keep the record up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import Ended, run
from .record import read_results, scrub, scrubbed, tail, write_json

#: Seconds that are kept back for ending a stage, writing the record and drawing.
RESERVE = 12.0


@dataclass(frozen=True)
class Stage:
    """One part of the check.

    ``estimate``: seconds that it takes on an H200; with less left it is not begun.  ``limit``: seconds after which it is stopped
    where others are to follow.
    """

    name: str
    title: str
    estimate: float
    limit: float


@dataclass
class Check:
    """The stages of one check, its record at ``path``, and its clock, of which ``spent`` seconds have gone already.

    ``command(stage, results, seconds)`` is the command line of a stage that is to write its results to a file and is stopped
    after so many seconds.  ``record`` is everything that the record says besides the stages.  ``log``: where the output goes.
    """

    stages: Sequence[Stage]
    budget: float
    path: Path
    command: Callable[[Stage, Path, float], Sequence[str]]
    record: dict[str, Any]
    cwd: Path | None = None
    log: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    spent: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.begin = self.clock() - self.spent
        self.record["stages"] = []

    @property
    def left(self) -> float:
        """Seconds that a stage may still take."""
        return self.budget - RESERVE - (self.clock() - self.begin)

    def run(self) -> dict[str, Any]:
        """Every stage in turn; the record, which is on disk after each."""
        self._write()
        for stage in self.stages:
            self.record["stages"].append(self._stage(stage))
            self._write()
        return self.record

    def _stage(self, stage: Stage) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": stage.name, "title": stage.title}
        if self.left < stage.estimate:
            note = f"it needs about {stage.estimate:.0f} s, and {max(self.left, 0):.0f} s of the budget are left"
            print(f"== {stage.name}: skipped: {note}", flush=True)
            return entry | {"status": "skipped", "note": note}
        limit = self.left if stage is self.stages[-1] else min(stage.limit, self.left)
        print(f"== {stage.name}: {stage.title}, at most {limit:.0f} s", flush=True)
        results = self.path.with_suffix(f".{stage.name}.tmp")
        ended = run(self.command(stage, results, limit), limit=limit, cwd=self.cwd, environment=self.environment)
        entry |= self._outcome(ended, read_results(results))
        results.unlink(missing_ok=True)
        self._report(stage, entry, ended)
        return entry

    def _outcome(self, ended: Ended, results: Mapping[str, Any]) -> dict[str, Any]:
        """A stage's part of the record.  What it asks for in ``environment`` holds for the stages after it."""
        self.environment.update(results["values"].pop("environment", {}))
        bad = bool(ended.reason() or results["failures"])
        status = "timeout" if ended.timed_out else "failed" if bad else "ok"
        entry = {"status": status, "seconds": round(ended.seconds, 1), **scrub(results)}
        if ended.reason():
            entry["note"] = ended.reason()
        if bad:
            entry["tail"] = tail(ended.output)
        return entry

    def _report(self, stage: Stage, entry: Mapping[str, Any], ended: Ended) -> None:
        if self.log is not None:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(f"== {stage.name}: {entry['status']} in {ended.seconds:.1f} s\n{scrubbed(ended.output).rstrip()}\n")
        note = f" ({entry['note']})" if "note" in entry else ""
        print(f"   {entry['status']} in {ended.seconds:.0f} s{note}", flush=True)
        for line in entry.get("tail", [])[-15:]:
            print(f"   | {line}", flush=True)

    def _write(self) -> None:
        self.record["seconds"] = round(self.clock() - self.begin, 1)
        write_json(self.path, self.record)
