"""Stage "tests": the kernel tests for the backends that need the card, and those of packed_ss.cuda, by pytest where it is."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .machine import lacking
from .processes import Ended
from .processes import run as run_process
from .record import Results
from .stages import Bench

#: Test processes that share the card where pytest-xdist is installed: compiling kernels is what takes the time.
_MOST_PROCESSES = 6
#: Failures that are kept with their reasons.
_SHOWN = 20


@dataclass(frozen=True)
class Suite:
    """Tests to run in one go, and the share of the stage's time that they may take."""

    name: str
    arguments: tuple[str, ...]
    share: float


#: Backends apart from each other, so that an illegal access by one cannot fail the tests of another.
ON_GPU = (
    Suite("cuda backend", ("tests/kernels", "-k", "cuda and not host and not triton"), 0.35),
    Suite("packed_ss.cuda", ("tests/cuda",), 0.45),
    Suite("triton backend", ("tests/kernels", "-k", "triton"), 1.0),
)
ON_CPU = (Suite("torch backend", ("tests/kernels/test_uniform_noise.py", "-k", "torch"), 1.0),)


def run(bench: Bench, results: Results) -> None:
    """Every suite; what is missing for them is said, and is no failure: the stage "operators" does not need it."""
    if missing := lacking("pytest", "hypothesis"):
        results.put("missing", missing)
        results.row("tests", "not run", note=f"{' and '.join(missing)} not installed")
        return
    for suite in ON_GPU if bench.on_gpu else ON_CPU:
        with tempfile.TemporaryDirectory() as folder:
            progress = Path(folder) / "progress"
            ended = _pytest(bench, suite, progress, bench.left * suite.share)
            _note(suite, read_progress(progress), ended, results)


def _pytest(bench: Bench, suite: Suite, progress: Path, limit: float) -> Ended:
    parallel = bench.on_gpu and not lacking("xdist")
    processes = ["-n", str(max(1, min(_MOST_PROCESSES, (os.cpu_count() or 1) // 2)))] if parallel else []
    command = [
        bench.python,
        "-m",
        "pytest",
        *suite.arguments,
        *processes,
        "-q",
        "--no-header",
        "--tb=short",
        "-p",
        "device.pytest_progress",
        "-p",
        "no:cacheprovider",
    ]
    root = bench.script.parents[1]
    environment = {"DEVICE_CHECK_PROGRESS": str(progress), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root}:{bench.script.parent}"}
    ended = run_process(command, cwd=root, environment=environment, limit=limit)
    print(f"-- {suite.name}: pytest {' '.join(suite.arguments)}\n{ended.output}", flush=True)
    return ended


def read_progress(path: Path) -> dict[str, Any]:
    """Outcomes by kind, failures and skips with their reasons, and what had begun but not ended."""
    begun: set[str] = set()
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    skips: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        entry = json.loads(line)
        if "begun" in entry:
            begun.add(entry["begun"])
            continue
        begun.discard(entry["id"])
        counts[entry["outcome"]] += 1
        if entry["outcome"] == "failed":
            failures.append(entry)
        elif entry["outcome"] == "skipped":
            skips[entry["why"]] += 1
    return {"counts": dict(counts), "failures": failures, "skips": dict(skips), "unfinished": sorted(begun)}


def _note(suite: Suite, found: dict[str, Any], ended: Ended, results: Results) -> None:
    counts = found["counts"]
    passed, failed, skipped = (counts.get(kind, 0) for kind in ("passed", "failed", "skipped"))
    shown = found | {"failures": found["failures"][:_SHOWN], "unfinished": found["unfinished"][:_SHOWN]}
    results.add(
        "suites",
        {"name": suite.name, "arguments": suite.arguments, "seconds": round(ended.seconds, 1), "status": ended.status, **shown},
    )
    results.row(suite.name, f"{passed} passed, {failed} failed, {skipped} skipped", note=f"{ended.seconds:.0f} s")
    for entry in found["failures"][:5]:
        print(f"     {entry['id']}: {entry['why']}", flush=True)
    if failed:
        first = found["failures"][0]
        results.fail(f"{suite.name}: {failed} tests failed, the first {first['id']}: {first['why']}")
    elif ended.timed_out:
        where = f" in {found['unfinished'][0]}" if found["unfinished"] else ""
        results.fail(f"{suite.name}: stopped after {ended.seconds:.0f} s{where}")
    elif ended.status not in (0, 5) or not passed:  # 5: nothing was collected
        results.fail(f"{suite.name}: pytest {ended.reason() or 'ran no test that passed'}")
