"""``packed-ss info``."""

from __future__ import annotations

import importlib.util
import json
import platform
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .. import __version__, cuda
from ..models.config import parameter_count
from ..models.loading import load_model
from ..ops import kernels, native
from ..runtime import device_loop


def run(model: str | None, *, as_json: bool) -> None:
    """Print what runs here, and what a checkpoint is made of."""
    facts = machine() | (checkpoint(model) if model else {})
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(f"[bold]{name}[/bold]", str(value))
    Console().print(table)


def machine() -> dict[str, Any]:
    """Versions, kernels and devices."""
    triton = importlib.util.find_spec("triton")
    return {
        "packed_ss": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "compiled kernels": compiled() if native.available() else f"none: {native.reason()}",
        "triton": "installed" if triton else "not installed",
        "packed_ss.cuda": cuda.unavailable()
        or "ready; " + ", ".join(f"{name}: {kind}" for name, kind in kernels("cuda").items()),
        "device loop": device_loop.unavailable() or "ready",
    }


def compiled() -> str:
    """The operators with a compiled kernel, by device."""
    kernels = native.info()["kernels"]
    return "; ".join(f"{device}: {', '.join(names)}" for device, names in kernels.items() if names)


def checkpoint(model: str) -> dict[str, Any]:
    """Sizes and special ids of a checkpoint."""
    network = load_model(model)
    c = network.config
    return {
        "model": model,
        "folder": str(network.source),
        "model_type": c.model_type,
        "parameters": parameter_count(c),
        "layers": c.num_layers,
        "hidden": c.hidden_size,
        "intermediate": c.intermediate_size,
        "heads": f"{c.num_heads} query, {c.num_kv_heads} key/value, head_dim {c.head_dim}",
        "vocabulary": c.vocab_size,
        "block_size": c.block_size,
        "mask_token_id": c.mask_token_id,
        "eos_token_ids": list(c.eos_token_ids),
        "stored dtype": c.dtype,
        "loaded dtype": str(network.head.weight.dtype).removeprefix("torch."),
    }
