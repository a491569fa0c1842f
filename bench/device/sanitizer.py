"""Stage "sanitizer": compute-sanitizer over a few cases of every operator, where the tool is and works."""

from __future__ import annotations

import re
from typing import Any

from .machine import cuda_tool
from .processes import run as run_process
from .record import Results, tail
from .stages import Bench

TOOLS = ("memcheck", "racecheck")
#: memcheck says "ERROR SUMMARY: 0 errors", racecheck "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)".
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?)|(?:RACECHECK SUMMARY: (\d+) hazards? displayed)")
#: Without its cache, torch asks CUDA for every tensor, and an access past one is seen.
_ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
_FOUND = 77


def run(bench: Bench, results: Results) -> None:
    """Each tool in turn; a card that it refuses is said, and is no failure."""
    tool = cuda_tool("compute-sanitizer")
    if tool is None:
        results.row("compute-sanitizer", "not run", note="it is neither on PATH nor beside nvcc")
        return
    for i, name in enumerate(TOOLS):
        command = [
            tool,
            "--tool",
            name,
            "--report-api-errors",
            "no",
            "--print-limit",
            "20",
            "--error-exitcode",
            str(_FOUND),
            bench.python,
            str(bench.script),
            "--stage",
            "few_operators",
            "--device",
            bench.device.type,
        ]
        ended = run_process(command, cwd=bench.script.parents[1], environment=_ENVIRONMENT, limit=bench.left / (len(TOOLS) - i))
        print(f"-- {name}\n{ended.output}", flush=True)
        _note(name, read_summary(ended.output), ended.reason(), ended.output, ended.seconds, results)


def read_summary(output: str) -> int | None:
    """Errors or hazards that the tool has counted; None where it has not come to its end."""
    found = _SUMMARY.findall(output)
    return int(found[-1][0] or found[-1][1]) if found else None


def _note(name: str, count: int | None, reason: str, output: str, seconds: float, results: Results) -> None:
    entry: dict[str, Any] = {"tool": name, "found": count, "seconds": round(seconds, 1), "ended": reason}
    reports = [line for line in output.splitlines() if line.startswith("=========")]
    if count:
        entry["reports"] = tail("\n".join(reports[:40]))
        results.fail(f"{name}: {count} found, the first: {reports[1][9:].strip() if len(reports) > 1 else '?'}")
    elif count is None:
        entry["reports"] = tail(output)[-6:]
    results.add("runs", entry)
    measured = f"{count} found" if count is not None else "not finished"
    results.row(name, measured, note=f"{seconds:.0f} s" + (f", {reason}" if reason and count is None else ""))
