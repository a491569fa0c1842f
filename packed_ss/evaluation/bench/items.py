"""Prompts of a task, with what scores their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...models.loading import resolve_folder
from ..problems import final_answer, read_problems
from .plan import WORD_PROBLEMS


@dataclass(frozen=True)
class Item:
    """One prompt: its name within the task, the user's message, and the score of an answer (None: speed only)."""

    name: str
    prompt: str
    score: Callable[[str], float | None]


def word_problems(folder: Path, limit: int | None = None) -> list[Item]:
    """The checkpoint's held-out word problems, or those of "tiny" where it has none; 1 for the exact final number, else 0."""
    path = folder / "held_out.jsonl"
    if not path.is_file():
        path = resolve_folder("tiny") / "held_out.jsonl"

    def scored(answer: str) -> Callable[[str], float]:
        return lambda text: float(final_answer(text) == answer)

    return [Item(f"{i:03d}", p.question, scored(p.answer)) for i, p in enumerate(read_problems(path, limit))]


def load_items(task: str, folder: Path, limit: int | None = None, file: Path | None = None,
               allow_code_execution: bool = False) -> list[Item]:
    """The first ``limit`` prompts of a task (None: all).  Raises ValueError for an unknown task and one that cannot be read."""
    if task == WORD_PROBLEMS:
        return word_problems(folder, limit)
    raise ValueError(f"the task is {task!r}, but it must be {WORD_PROBLEMS}")
