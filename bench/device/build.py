"""Stage "build": packed_ss._C for the card alone, in the copy of the sources, from what is installed."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from . import machine
from .processes import run as run_process
from .record import Results, scrubbed
from .stages import Bench

#: Asks the package what it has.
_ASK = """
import json
from packed_ss import cuda
from packed_ss.ops import native
print(json.dumps({"native": native.info(), **cuda.info()}, default=str))
"""
#: What to go without where the package cannot be imported as it is.
_WITHOUT: tuple[dict[str, str], ...] = (
    {},
    {"PACKED_SS_TRITON": "0"},
    {"PACKED_SS_NATIVE": "0"},
    {"PACKED_SS_TRITON": "0", "PACKED_SS_NATIVE": "0"},
)
#: Seconds that are kept for asking.
_ASKING = 25.0


def run(bench: Bench, results: Results) -> None:
    """Build, then import the package; what has to be switched off for that holds for every later stage."""
    major, minor = torch.cuda.get_device_capability(bench.device)
    jobs = os.cpu_count() or 1
    settings = {
        "PACKED_SS_CUDA": "on",
        "PACKED_SS_CUDA_ARCHITECTURES": f"{major}{minor}-real",
        "PACKED_SS_REQUIRE_NATIVE": "1",
        "MAX_JOBS": str(jobs),
    }
    results.put("settings", settings)
    results.put("nvcc", machine.compiler())
    root = bench.script.parents[1]
    ended = run_process(
        [bench.python, "setup.py", "build_ext", "--inplace"], cwd=root, environment=settings, limit=bench.left - _ASKING
    )
    print(ended.output, flush=True)
    results.put("seconds", round(ended.seconds, 1))
    if ended.reason():
        results.fail(f"the native module was not built: {ended.reason()}: {last_line(ended.output)}")
    else:
        results.row("native module", f"{ended.seconds:.0f} s", note=f"sm_{major}{minor}, nvcc {machine.compiler()}, {jobs} jobs")
    ask(bench, results)


def ask(bench: Bench, results: Results) -> None:
    """Import the package in a process of its own, without what keeps it from being imported, and notes what it has."""
    for without in _WITHOUT:
        ended = run_process([bench.python, "-c", _ASK], cwd=bench.script.parents[1], environment=without, limit=60)
        facts = _answer(ended.output)
        if not ended.reason() and facts is not None:
            break
        results.fail(f"import packed_ss.cuda{_with(without)}: {last_line(ended.output) or ended.reason()}")
        print(ended.output, flush=True)
    else:
        return
    results.put("package", facts)
    results.put("environment", without)
    kernels = facts["kernels"]
    results.row(
        "operators",
        ", ".join(f"{sum(kind == one for one in kernels.values())} {kind}" for kind in ("native", "triton", "torch")),
        note=", ".join(f"{name} by {kind}" for name, kind in kernels.items() if kind != "native"),
    )
    results.row("device loop", "yes" if not facts["device_loop"] else "no", note=facts["device_loop"])
    results.row("glue", facts["glue"])


def _answer(output: str) -> dict[str, Any] | None:
    try:
        return json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None


def _with(environment: dict[str, str]) -> str:
    return f" with {' '.join(f'{name}={value}' for name, value in environment.items())}" if environment else ""


def last_line(output: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return scrubbed(lines[-1]) if lines else ""
