"""The records of a run: one JSON object a line, on disk before the next response starts.

The first line is the plan; what follows are responses, latencies and notes, each with its ``kind``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

FILE = "records.jsonl"
#: Grows when a record's meaning changes: records of another format are another run's.
FORMAT = 2


@dataclass(frozen=True)
class Response:
    """One measured response.

    setting, candidate, prompt, repeat: what was run (`packed_ss.evaluation.bench.plan`).  rows: the most input rows of a call
    after the first, None for baselines.  tokens: new ones, a stop included.  nfe: model calls, the first included.
    advances: tokens that each call appended; None where a baseline does not tell.  seconds: decoder wall time, prefill
    included, device synchronised.  model_seconds: inside the model's forward, and first_model_seconds: the first call's share
    of it; None where not measured.  timed: whether this response was decoded only for model_seconds, with waits that make its
    ``seconds`` too long.  score: 1 right, 0 wrong, None unscored.
    """

    setting: str
    candidate: str
    prompt: str
    repeat: int
    seed: int
    schedule: str
    block_size: int | None
    window: int | None
    rows: int | None
    tokens: int
    nfe: int
    advances: list[int] | None
    seconds: float
    model_seconds: float | None
    first_model_seconds: float | None
    finish_reason: str
    text: str
    score: float | None = None
    timed: bool = False

    @property
    def key(self) -> tuple[str, str, str, int, bool]:
        """What names a response within a run."""
        return self.setting, self.candidate, self.prompt, self.repeat, self.timed

    @property
    def non_model_seconds(self) -> float | None:
        """The rest of the wall time: making drafts, selection, state updates, the loop."""
        return None if self.model_seconds is None else self.seconds - self.model_seconds


_FIELDS = tuple(f.name for f in fields(Response))


@dataclass
class Run:
    """What a file of records holds: the plan, responses by key, latency records by model, and the other notes in order."""

    plan: dict[str, Any]
    responses: dict[tuple, Response] = field(default_factory=dict)
    latency: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)
    #: Bytes of whole lines; what lies behind them is a torn line.
    size: int = 0

    def take(self, record: dict[str, Any]) -> None:
        """Sort in one line.  Raises KeyError, TypeError or ValueError where it is none."""
        kind = record["kind"]
        if kind == "response":
            response = Response(**{name: record[name] for name in _FIELDS})
            if not isinstance(response.tokens, int) or not isinstance(response.seconds, float):
                raise TypeError("tokens and seconds must be numbers")
            self.responses[response.key] = response
        elif kind == "latency":
            self.latency[record["model"]] = record
        elif kind == "note":
            self.notes.append(record)
        else:
            raise ValueError(f"kind {kind!r}")


def read_run(path: Path) -> Run | None:
    """The records of a file; None where not even the plan is whole.  Nothing is written.

    A last line without its line feed was torn by the end of the process that wrote it, and does not count.  Raises
    ValueError, with the number of the line, for any other line that is not a record.
    """
    run, size = None, 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            size += len(line)
            try:
                record = json.loads(line)
                if run is None:
                    if record["kind"] != "plan" or record["format"] != FORMAT:
                        raise ValueError("no plan of this format")
                    run = Run(record["plan"])
                else:
                    run.take(record)
            except (ValueError, KeyError, TypeError) as error:
                what = "the plan of a run" if number == 1 else "a record"
                raise ValueError(
                    f"{path} line {number} is not {what}: repair or remove the line, or give another output "
                    "folder; nothing was written"
                ) from error
    if run is not None:
        run.size = size
    return run


class Recorder:
    """A file of records being written; `run` is what it holds so far."""

    def __init__(self, folder: Path, plan: Mapping[str, Any], overwrite: bool = False) -> None:
        """Open, or go on with, the records in ``folder``.

        Raise ValueError, before anything is written, for malformed records, and for those of another plan unless
        ``overwrite`` says that they may go.
        """
        self.path = folder / FILE
        plan = json.loads(json.dumps(plan))
        run = None
        if self.path.exists() and not overwrite:
            run = read_run(self.path)
            if run is not None and run.plan != plan:
                raise ValueError(
                    f"{self.path} holds the records of another run, which differs in {_difference(run.plan, plan)}: "
                    "give another output folder, or --overwrite to replace them"
                )
        folder.mkdir(parents=True, exist_ok=True)
        self.resumed = run is not None
        self.run = run or Run(dict(plan))
        self._file: BinaryIO = open(self.path, "r+b" if self.resumed else "wb")  # noqa: SIM115 - closed by `close`
        self._file.truncate(self.run.size)
        self._file.seek(self.run.size)
        if not self.resumed:
            self._write({"kind": "plan", "format": FORMAT, "plan": plan})

    def add(self, response: Response) -> None:
        """Write a response through to the disk."""
        self._write({"kind": "response", **asdict(response), "non_model_seconds": response.non_model_seconds})
        self.run.responses[response.key] = response

    def note(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write a latency record or a note."""
        record = {"kind": kind, **values}
        self._write(record)
        self.run.take(json.loads(json.dumps(record)))

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def recording(folder: Path, plan: Mapping[str, Any], overwrite: bool = False) -> Iterator[Recorder]:
    """A `Recorder`, closed at the end."""
    recorder = Recorder(folder, plan, overwrite)
    try:
        yield recorder
    finally:
        recorder.close()


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Which entries of two plans differ, with their values where these are short."""

    def shown(plan: Mapping[str, Any], name: str) -> str:
        text = json.dumps(plan.get(name))
        return text if len(text) <= 60 else "..."

    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(
        f"{name} ({shown(old, name)} there, {shown(new, name)} here)" if shown(old, name) != shown(new, name) else name
        for name in names
    )
