"""Problems with a known final answer, and whether a text gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .datasets import read_records


@dataclass(frozen=True)
class Problem:
    """A question and its final answer, both plain text."""

    question: str
    answer: str


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """Read the first ``limit`` (None: all) records with a question and an answer.  Raise ValueError as `read_records` does."""
    records = read_records(path, {"question": str, "answer": (str, int)})
    return [Problem(record["question"], str(record["answer"])) for record in records[:limit]]


def final_answer(text: str) -> str | None:
    """Return the number after the last "The answer is", or None where there is none."""
    found = re.findall(r"The answer is (-?\d+)", text)
    return found[-1] if found else None
