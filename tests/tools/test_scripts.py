"""Every training tool, started as a user starts it, for one step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import packed_ss

ROOT = Path(__file__).parents[2]


def run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / tool), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(("tool", "more"), [("train_tiny.py", ()), ("train_tiny_set.py", ("--tested", "1"))])
def test_a_checkpoint_is_trained_and_can_be_loaded(tool: str, more: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    done = run(tool, "--steps", "1", "--batch", "2", "--work", str(tmp_path / "work"), "--out", str(folder), *more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert more == () or "of 1 answers are right" in done.stdout
    assert packed_ss.load_model(folder, device="cpu").config.vocab_size > 0 and (folder / "held_out.jsonl").is_file()


def test_an_adapter_is_trained_and_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    done = run("train_tiny_adapter.py", "--steps", "1", "--batch", "2", "--out", str(folder))
    assert done.returncode == 0 and '"without"' in done.stdout, done.stdout + done.stderr
    packed_ss.load_model("tiny", device="cpu", adapter=folder)
