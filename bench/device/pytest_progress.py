"""A pytest plugin that notes every test as it begins and ends: what a run that is stopped would otherwise not tell.

The file that DEVICE_CHECK_PROGRESS names gets one JSON object a line: {"begun": id}, or {"id", "outcome", "seconds", "why"}.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

_path = os.environ.get("DEVICE_CHECK_PROGRESS", "")
_is_worker = False


def pytest_configure(config: pytest.Config) -> None:
    global _is_worker
    _is_worker = hasattr(config, "workerinput")  # of pytest-xdist, whose first process reports for all


def pytest_runtest_logstart(nodeid: str) -> None:
    _note({"begun": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _note({"id": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3), "why": _why(report)})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note({"id": report.nodeid, "outcome": "failed", "seconds": 0.0, "why": _why(report)})


def _why(report: Any) -> str:
    """The last line of a failure, or a skip's reason."""
    if report.outcome == "passed":
        return ""
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])[:300]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash is not None else str(report.longrepr)).strip().splitlines()
    return " ".join(lines[-3:] if crash is None else lines[:2])[:300]


def _note(entry: dict[str, Any]) -> None:
    if _path and not _is_worker:
        with open(_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
