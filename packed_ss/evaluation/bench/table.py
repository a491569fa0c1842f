"""A table of raw numbers, and how it looks: Markdown, CSV, text for the terminal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .bootstrap import Interval

Row = dict[str, Any]

#: Every column that a table can have, with how its numbers look.
FORMATS: dict[str, str] = {
    "model": "",
    "task": "",
    "schedule": "",
    "weights": "",
    "verification": "",
    "order": "",
    "baseline": "",
    "decoder": "",
    "note": "",
    "temperature": "g",
    "B": "d",
    "W": "d",
    "rows/call": "d",
    "prompts": "d",
    "responses": "d",
    "accuracy": ".1%",
    "tokens": ".1f",
    "wall (s)": ".4f",
    "NFE": ".2f",
    "tokens/NFE": ".3f",
    "ms/NFE": ".3f",
    "tokens/s": ".1f",
    "model (s)": ".4f",
    "non-model (s)": ".4f",
    "iterations": ".2f",
    "rows selected": "d",
    "rows evaluated": "d",
    "model ms/iteration, base": ".3f",
    "model ms/iteration, LoRA": ".3f",
    "wall difference (s)": ".4f",
    "throughput ratio": ".3f",
    "tokens/NFE ratio": ".3f",
    "time/NFE ratio": ".3f",
    "accuracy difference (points)": ".2f",
    "accuracy of packed": ".1%",
    "accuracy of baseline": ".1%",
    "same text as autoregressive": "",
    "tokens/s, × transformers": ".2f",
    "accepted drafts/call": ".2f",
}


@dataclass(frozen=True)
class Table:
    """Rows of raw numbers, `Interval`s and text, by column.  ``best``: rows whose tokens/s are the highest of their group."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[Row]
    best: frozenset[int] = frozenset()

    def select(self, wanted: Sequence[str]) -> Table:
        """The table with these of its columns; all of them where it has none of these."""
        kept = tuple(column for column in wanted if column in self.columns)
        return replace(self, columns=kept) if kept else self

    def cells(self) -> list[list[str]]:
        """The rows as text."""
        return [[_shown(row.get(c), FORMATS[c]) for c in self.columns] for row in self.rows]

    def markdown(self) -> str:
        """The title and a table; intervals as value [low, high], the fastest in bold, what is not there as a dash."""
        lines = [
            f"**{self.title}**",
            "",
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join("---:" if FORMATS[c] else "---" for c in self.columns) + "|",
        ]
        for i, cells in enumerate(self.cells()):
            bold = [c == "tokens/s" and i in self.best for c in self.columns]
            lines.append("| " + " | ".join(f"**{cell}**" if b else cell for cell, b in zip(cells, bold, strict=True)) + " |")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Plain numbers; an interval is three columns: the value, then low and high."""
        wide = {c for c in self.columns if any(isinstance(row.get(c), Interval) for row in self.rows)}
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([name for c in self.columns for name in ((c, f"{c} low", f"{c} high") if c in wide else (c,))])
        for row in self.rows:
            cells: list[str] = []
            for c in self.columns:
                value = row.get(c)
                parts = (tuple(value) if isinstance(value, Interval) else (value, None, None)) if c in wide else (value,)
                cells += [_plain(part) for part in parts]
            writer.writerow(cells)
        return out.getvalue()


def check_columns(wanted: Sequence[str]) -> None:
    """Raise ValueError for a column that no table has."""
    for column in wanted:
        if column not in FORMATS:
            raise ValueError(f"the column is {column!r}, but it must be one of {'; '.join(FORMATS)}")


def _shown(value: Any, spec: str) -> str:
    if isinstance(value, Interval):
        middle, low, high = (_shown(part, spec) for part in value)
        return f"{middle} [{low}, {high}]"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return format(value, spec).replace("%", " %") if spec and not isinstance(value, str) else str(value)


def _plain(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
