"""Puts bench/, a folder of scripts, on the path, as running one of them does; and what the tests of the device check share."""

from __future__ import annotations

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

from device.stages import SMALL, Bench  # noqa: E402


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes what a stage gets, for a CPU at small sizes; keywords are fields of `Sizes`, or ``script``, ``end``."""
    def make(script: Path = BENCH / "device_check.py", end: float = 0.0, **sizes: Any) -> Bench:
        return Bench(torch.device("cpu"), replace(SMALL, **sizes), end or time.monotonic() + 600, script, sys.executable)

    return make
