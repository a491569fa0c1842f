"""What the machine is and in which state: read only, and nothing that would tell one machine from another of its kind."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib import metadata, util
from pathlib import Path
from typing import Any

#: What nvidia-smi is asked for; the shorter list where it does not know all of them.
_STATE = ("clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw", "pstate", "clocks_event_reasons.active")
_QUERIES = (_STATE, _STATE[:-1])


def probe() -> dict[str, Any]:
    """Versions and the card; ``reason`` says, in a sentence, why there is no GPU to use, and is empty where there is one.

    Makes a CUDA context, so it belongs into a process of its own.
    """
    import torch

    facts: dict[str, Any] = {
        "reason": _unavailable(torch),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cpus": os.cpu_count(),
    }
    facts |= {name: _version(package) for name, package in (("triton", "triton"), ("flashinfer", "flashinfer-python"))}
    if facts["reason"]:
        return facts
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts |= {
        "device": card.name,
        "capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "memory_gib": round(card.total_memory / 2**30, 1),
        "l2_mib": round(getattr(card, "L2_cache_size", 0) / 2**20, 1),
        **driver(),
    }
    return facts


def _unavailable(torch: Any) -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if torch.cuda.is_available():
        return ""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"torch cannot use a GPU: {str(error).strip().splitlines()[0].rstrip('.')}"
    return "torch finds no GPU"


def driver() -> dict[str, str]:
    """The driver's version, as nvidia-smi has it."""
    answer = _nvidia_smi(("driver_version",))
    return {"driver": answer[0]} if answer else {}


def state() -> dict[str, str]:
    """Clocks, temperature, power and throttling of the card at this moment; empty where nvidia-smi does not say."""
    for fields in _QUERIES:
        if answer := _nvidia_smi(fields):
            return dict(zip(fields, answer, strict=False))
    return {}


def _nvidia_smi(fields: tuple[str, ...]) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", _card()],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.strip().splitlines()
    return [part.strip() for part in lines[0].split(",")] if done.returncode == 0 and lines else []


def _card() -> str:
    """The card that torch calls number 0."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


def cuda_tool(name: str) -> str | None:
    """Path of a tool of the CUDA toolkit: on PATH, beside nvcc, or in the usual folders."""
    nvcc = shutil.which("nvcc")
    homes = [
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        str(Path(nvcc).resolve().parents[1]) if nvcc else None,
        "/usr/local/cuda",
    ]
    folders = [str(Path(home) / part) for home in homes if home for part in ("bin", name)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def compiler() -> str | None:
    """nvcc's release, such as "13.0"; None where there is no nvcc."""
    tool = cuda_tool("nvcc")
    if tool is None:
        return None
    try:
        shown = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"release (\d+\.\d+)", shown)
    return found[1] if found else None


def lacking(*modules: str) -> list[str]:
    """Those of these Python modules that are not installed."""
    return [name for name in modules if util.find_spec(name) is None]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
