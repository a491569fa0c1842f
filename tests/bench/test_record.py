"""Results, records and their text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from device.record import Results, read_results, scrub, scrubbed, slug, tail, write_json


def test_results_are_on_disk_after_every_addition(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results = Results(path)
    results.put("speed", 2.5)
    assert read_results(path) == {"values": {"speed": 2.5}, "rows": [], "failures": []}
    results.add("times", 1)
    results.add("times", math.nan)
    assert read_results(path)["values"]["times"] == [1, None]
    results.row("64 rows", "3 ms", target="at most 4 ms", met=True)
    results.fail("it is wrong")
    assert read_results(path)["values"] == {"speed": 2.5, "times": [1, None]}
    assert read_results(path)["rows"][0]["met"] is True and read_results(path)["failures"] == ["it is wrong"]


def test_missing_or_broken_results_are_empty(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("{")
    for name in ("nothing", "broken"):
        assert read_results(tmp_path / name) == {"values": {}, "rows": [], "failures": []}


def test_a_failed_write_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"a": math.inf})
    assert json.loads(path.read_text()) == {"a": None}

    def no_room(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", no_room)
    with pytest.raises(OSError, match="no space left"):
        write_json(path, {"b": 2})
    assert json.loads(path.read_text()) == {"a": None} and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("in /home/somebody/work/packed_ss/cuda.py, line 3", "in …/packed_ss/cuda.py, line 3"),
        ("at 3.2 GB/s and/or 4 ms/call", "at 3.2 GB/s and/or 4 ms/call"),
        ("see https://example.org/a/b/c", "see https://example.org/a/b/c"),
        ('File "/opt/x/.venv/lib/python3.12/site-packages/torch/a.py"', 'File "…/torch/a.py"'),
        ("/usr/lib holds it", "…/usr/lib holds it"),
        ("nvcc=/usr/local/cuda/bin/nvcc;", "nvcc=…/bin/nvcc;"),
        ("tests/kernels/test_resolve.py::test[cuda]", "tests/kernels/test_resolve.py::test[cuda]"),
    ],
)
def test_paths_are_cut(text: str, want: str) -> None:
    assert scrubbed(text) == want
    assert scrub({"a": [text, 1.5]}) == {"a": [want, 1.5]}


def test_a_tail_is_short() -> None:
    assert tail("\n".join(map(str, range(100))), 3) == ["97", "98", "99"] and len(tail("x" * 9999)[0]) == 400


def test_a_card_makes_a_name_for_files() -> None:
    assert slug("NVIDIA H200") == "nvidia-h200" and slug("NVIDIA RTX 6000 (Ada)") == "nvidia-rtx-6000-ada"
