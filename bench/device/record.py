"""What a check leaves behind: a stage's results as they come, the record of all stages, and a table of it."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Lines of a failed stage's output that the record keeps.
TAIL = 40


class Results:
    """Results of one stage, on disk after every addition, so that what was measured before a crash is not lost.

    ``values``: figures by name.  ``rows``: lines of the table.  ``failures``: what is wrong, a sentence each.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.values: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def put(self, name: str, value: Any) -> None:
        """Set a figure, or any structure that JSON holds."""
        self.values[name] = value
        self._write()

    def add(self, name: str, value: Any) -> None:
        """Append to a list of figures."""
        self.values.setdefault(name, []).append(value)
        self._write()

    def row(
        self, what: str, measured: str, *, floor: str = "", target: str = "", met: bool | None = None, note: str = ""
    ) -> None:
        """A line of the table: what was measured, the floor beside it, and the target with whether it was met."""
        self.rows.append({"what": what, "measured": measured, "floor": floor, "target": target, "met": met, "note": note})
        rest = (floor and f"floor {floor}", verdict(self.rows[-1]), note)
        print("; ".join(text for text in (f"  {what}: {measured}", *rest) if text), flush=True)
        self._write()

    def fail(self, reason: str) -> None:
        """Say that something is wrong; the stage goes on, and counts as failed."""
        self.failures.append(reason)
        print(f"  FAILED: {reason}", flush=True)
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            write_json(self.path, {"values": self.values, "rows": self.rows, "failures": self.failures})


def read_results(path: Path) -> dict[str, Any]:
    """What a stage's `Results` wrote; empty results where it wrote nothing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"values": {}, "rows": [], "failures": []}


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step.  Numbers that JSON lacks (NaN, infinities) become null."""
    text = json.dumps(_finite(value), indent=1, default=str, allow_nan=False) + "\n"
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value


_PATH = re.compile(r"(?<![\w./:~])(?:/[\w.+@~-]+){2,}")


def scrubbed(text: str) -> str:
    """The text with every absolute path cut to its last two parts: a record says nothing of where it was made."""
    return _PATH.sub(lambda found: "…/" + "/".join(found[0].split("/")[-2:]), text)


def scrub(value: Any) -> Any:
    """`scrubbed` on every string in a structure."""
    if isinstance(value, str):
        return scrubbed(value)
    if isinstance(value, Mapping):
        return {key: scrub(one) for key, one in value.items()}
    return [scrub(one) for one in value] if isinstance(value, (list, tuple)) else value


def tail(output: str, lines: int = TAIL) -> list[str]:
    """The last lines of a stage's output, none of them long."""
    return [line[:400] for line in scrubbed(output).rstrip().splitlines()[-lines:]]


def slug(name: str) -> str:
    """A name for files: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def verdict(row: Mapping[str, Any]) -> str:
    """The target and whether it was met; empty where there is none."""
    if not row["target"]:
        return ""
    return row["target"] + {True: ", met", False: ", MISSED", None: ""}[row["met"]]


def table(stages: Sequence[Mapping[str, Any]]) -> str:
    """Every stage and its rows, as text in columns."""
    lines = []
    for stage in stages:
        seconds = f" in {stage['seconds']:.0f} s" if "seconds" in stage else ""
        note = f": {stage['note']}" if stage.get("note") else ""
        lines.append(f"== {stage['name']}: {stage['status']}{seconds}{note}")
        lines += [f"  FAILED: {reason}" for reason in stage.get("failures", [])]
        lines += columns(
            [
                (row["what"], row["measured"], row["floor"] and f"floor {row['floor']}", verdict(row), row["note"])
                for row in stage.get("rows", [])
            ]
        )
    return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns, the first to the left, the second to the right."""
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(rows[0]) if rows else 0)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if i == 1 else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
