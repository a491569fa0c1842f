"""Problems with a known final answer, and whether a text gives it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """A question and its final answer, both plain text."""

    question: str
    answer: str


def read_problems(path: Path, limit: int | None = None) -> list[Problem]:
    """The first ``limit`` (None: all) records ``{"question": ..., "answer": ...}`` of a JSONL file.

    Raises ValueError naming the file and line for anything else.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not a file, but a JSONL file of problems is needed")
    found: list[Problem] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if limit is not None and len(found) >= limit:
            break
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            found.append(Problem(str(record["question"]), str(record["answer"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} line {number} is not a JSON object with 'question' and 'answer'") from error
    if not found:
        raise ValueError(f"{path} holds no problems")
    return found


def final_answer(text: str) -> str | None:
    """The number after the last "The answer is", or None where there is none."""
    found = re.findall(r"The answer is (-?\d+)", text)
    return found[-1] if found else None
