"""Every example, started as a reader starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """What each example prints, by its name."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    found = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=environment, cwd="/", timeout=300)
        assert done.returncode == 0 and not done.stderr, done.stderr
        found[path.name] = done.stdout
    assert set(found) == {"schedules.py", "batch.py", "stream.py", "observe.py"}  # each has a test below
    return found


def test_schedules_give_one_text_in_fewer_calls(texts: dict[str, str]) -> None:
    lines = re.findall(r"^(\w+) +(\d+) tokens in +(\d+) calls", texts["schedules.py"], re.MULTILINE)
    calls = {name: int(count) for name, _, count in lines}
    assert len(calls) == 5 and len({tokens for _, tokens, _ in lines}) == 1
    assert calls["quadratic"] <= calls["branched"] <= calls["packed"] < calls["autoregressive"]
    assert "one text: True\n" in texts["schedules.py"] and "The answer is 18." in texts["schedules.py"]


def test_a_batch_ends_at_its_stop_sequences(texts: dict[str, str]) -> None:
    assert texts["batch.py"].count("ended by stop]") == texts["batch.py"].count("The answer\n") == 3


def test_a_stream_gives_the_text_of_the_decoder(texts: dict[str, str]) -> None:
    assert texts["stream.py"].strip() == texts["schedules.py"].partition("\n\n")[2].strip()


def test_an_observer_sees_every_call(texts: dict[str, str]) -> None:
    calls = re.findall(r"^call +(\d+): +\d+ rows, advance +(\d+)  ['\"]", texts["observe.py"], re.MULTILINE)
    tokens, count = re.findall(r"^packed +(\d+) tokens in +(\d+) calls", texts["schedules.py"], re.MULTILINE)[0]
    assert [int(number) for number, _ in calls] == list(range(1, int(count) + 1))
    assert sum(int(advance) for _, advance in calls) == int(tokens)
