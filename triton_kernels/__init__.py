"""Triton kernels, imported as packed_ss.triton_kernels: operators for GPUs that need no compiler at installation.

Importing this package does not import Triton; `operators` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any

#: The module of each operator; its function there has the operator's name and signature.
MODULES = {
    "uniform_noise": "philox", "rope_store": "rope_store", "tail_attention": "tail_attention", "linear_argmax": "linear_argmax",
    "argmax_rows": "argmax_rows", "draw_rows": "draw_rows", "verify_rows": "verify_rows", "pack_block": "advance_block",
    "pack_ordered": "pack_ordered", "advance_block": "advance_block", "advance_ordered": "advance_ordered",
    "advance_native": "advance_ordered", "compact_cache": "compact_cache",
}


def unavailable() -> str:
    """Why these kernels are not used, in a sentence; empty where they can be."""
    if os.environ.get("PACKED_SS_TRITON") == "0":
        return "the environment has PACKED_SS_TRITON=0."
    return "" if importlib.util.find_spec("triton") else "Triton is not installed."


def operators() -> dict[str, Callable[..., Any]]:
    """The operators by name; none where they are `unavailable`."""
    if unavailable():
        return {}
    return {name: getattr(importlib.import_module(f".{module}", __name__), name) for name, module in MODULES.items()}
