"""Puts bench/, a folder of scripts, on the path, as running one of them does; and what the tests of the device check share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from device import processes  # noqa: E402
from device.stages import SMALL, Bench  # noqa: E402


def stopped_at(monkeypatch: pytest.MonkeyPatch, sign: Path) -> None:
    """Lets the time of one command run out when it, or what it runs, has made this file: however busy the machine is."""
    seen: list[bool] = []

    def wait(process: subprocess.Popen, limit: float) -> None:
        end = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < end:
            if not seen and sign.exists() and sign.stat().st_size:
                seen.append(True)
                return
            time.sleep(0.02)

    monkeypatch.setattr(processes, "_wait", wait)


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes what a stage gets, for a CPU at small sizes; keywords are fields of `Sizes`, or ``script``, ``end``."""

    def make(script: Path = BENCH / "device_check.py", end: float = 0.0, **sizes: Any) -> Bench:
        return Bench(torch.device("cpu"), replace(SMALL, **sizes), end or time.monotonic() + 600, script, sys.executable)

    return make
