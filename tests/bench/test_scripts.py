"""Every script of bench/, started as a user starts it, at small sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import BENCH

#: Arguments by script, and what the first record has to have.
SCRIPTS = [
    ("resolve.py", "--threads 1 --seconds 0 --only 896", {"case": "greedy rows=32 V=896 float32"}),
    ("attention.py", "--threads 1 --seconds 0 --only prefix=100", {"rounds": 5}),
    (
        "overhead.py",
        "--problems 1 --new-tokens 6 --block-size 4 --schedules linear packed --modes greedy rejection",
        {"schedule": "linear", "mode": "greedy"},
    ),
    (
        "lossless.py",
        "--problems 2 --new-tokens 8 --schedules packed --block-sizes 4 --batches 2",
        {"schedule": "packed", "block_size": 4, "batch": 2, "lossless": 2, "equal_to_ar": 2},
    ),
    (
        "lossless.py",
        "--model tiny-set --problems 1 --new-tokens 8 --schedules packed --windows 4 --orders confidence --batches 1",
        {"window": 4, "order": "confidence", "lossless": 1},
    ),
    ("latency_vs_rows.py", "--shape mini --device cpu --rows 1 2 4 --prefix 9 --seconds 0", {"rows": 1}),
]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")


@pytest.mark.parametrize(("script", "arguments", "first"), SCRIPTS, ids=[f"{s}-{i}" for i, (s, *_) in enumerate(SCRIPTS)])
def test_the_script_runs_and_writes_its_record(script: str, arguments: str, first: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    done = run(script, *arguments.split(), "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() and not done.stderr
    record = json.loads(path.read_text())
    entry = (record.get("records") or record["points"])[0]
    assert {name: entry[name] for name in first} == first


def test_every_script_says_what_it_does() -> None:
    scripts = sorted(path.name for path in BENCH.glob("*.py") if not path.name.startswith("test_"))
    assert {name for name, *_ in SCRIPTS} | {"device_check.py"} == set(scripts)
    for script in scripts:
        done = run(script, "--help")
        assert done.returncode == 0 and f"usage: {script}" in done.stdout, done.stderr
