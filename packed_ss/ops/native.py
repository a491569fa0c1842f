"""The native module packed_ss._C: loaded where it was built, explained where it was not.

Loading it registers C++ kernels with operators that have a plain-torch version already, so nothing but speed depends on it.
The environment variable PACKED_SS_NATIVE limits it: 0 for none of its kernels, or the names of operators, separated by
commas, for those alone; the others stay in plain torch.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_RECORD = Path(__file__).resolve().parent.parent / "_build.json"  # written by setup.py

_module: ModuleType | None = None
_reason = "packed_ss.ops has not been imported."


def load(operators: Collection[str]) -> None:
    """Loads packed_ss._C once; what prevents it, such as PACKED_SS_NATIVE=0, is kept for `reason`.

    Raises ValueError where PACKED_SS_NATIVE has a name that is not among ``operators``.
    """
    global _module, _reason
    setting = os.environ.get("PACKED_SS_NATIVE", "")
    if setting not in ("", "0", "1") and (unknown := sorted({*setting.split(",")} - {*operators})):
        raise ValueError(
            f"PACKED_SS_NATIVE names {', '.join(map(repr, unknown))}, but it must be 0, 1 or a list, separated by "
            f"commas, out of {', '.join(operators)}"
        )
    if _module is None:
        _reason = _obstacle()
        if not _reason:
            try:
                _module = importlib.import_module("packed_ss._C")
            except ImportError as error:
                _reason = f"packed_ss._C cannot be loaded: {error}"


def available() -> bool:
    """True when the native kernels are loaded."""
    return _module is not None


def module() -> ModuleType | None:
    """packed_ss._C, for what it has besides operators; None where it is not loaded."""
    return _module


def reason() -> str:
    """Why the native kernels are not loaded, in one sentence; empty when they are."""
    return _reason


def info() -> dict[str, Any]:
    """How the native module was built.

    Always holds `available` and `reason`; with the module loaded also `compiler`, `flags`, `threads`, `torch` (the version it was
    compiled against), `cuda` (targets, or why there are none) and `kernels` (operator names by device).
    """
    return {"available": available(), "reason": reason(), **(_module.info() if _module is not None else {})}


def kernels(device: str) -> list[str]:
    """The operators with a compiled kernel for a device type, "cpu" or "cuda", in use."""
    return [] if _module is None else list(_module.info()["kernels"][device])


def describe() -> str:
    """One line for people: the kernels and their compiler, or the reason why there are none."""
    if not available():
        return f"no native kernels, plain torch is used: {reason()}"
    built = info()
    return f"native kernels by {built['compiler']} against torch {built['torch']}; CUDA {built['cuda']}"


def _obstacle() -> str:
    """Why the module must not be loaded, from the environment and the record of the build; empty where it may be."""
    if os.environ.get("PACKED_SS_NATIVE") == "0":
        return "the environment has PACKED_SS_NATIVE=0."
    try:
        record = json.loads(_RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "packed_ss was not installed by its setup.py, or not to the end, so nothing was compiled."
    if not record["built"]:
        return str(record["reason"])
    if record["torch"] != torch.__version__:
        # The layout of torch's classes may differ, which loading would not notice.
        return (
            f"it was compiled against torch {record['torch']}, but torch {torch.__version__} is running; install packed_ss again."
        )
    return ""
