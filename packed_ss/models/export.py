"""Writes a model as a checkpoint folder in the public Nemotron-Labs-Diffusion format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from . import nemotron
from .config import ModelConfig, RopeConfig
from .transformer import Transformer


def write_nemotron(model: Transformer, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``, the latter in ``model.config.dtype``, into ``folder``.

    Files appear under their names only when complete.  Raises ValueError for a model that the format cannot hold.
    """
    config = model.config
    if config.qk_norm:
        raise ValueError(f"the model has q/k norms, but {nemotron.MODEL_TYPE} has no place for them")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, config.dtype)
    tensors = {}
    for parameter, parts in nemotron.tensor_map(config).items():
        whole = model.get_parameter(parameter).detach()
        for (name, _), part in zip(parts, whole.split([shape[0] for _, shape in parts]), strict=True):
            # A fresh tensor each: safetensors refuses views that share storage.
            tensors[name] = part.to("cpu", dtype, copy=True).contiguous()
    _replace(folder / "model.safetensors", lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    text = json.dumps(nemotron_json(config), indent=2) + "\n"
    _replace(folder / "config.json", lambda path: path.write_text(text, encoding="utf-8"))


def nemotron_json(config: ModelConfig) -> dict[str, Any]:
    """The ``config.json`` of a model, as a dictionary with the format's public keys."""
    c = config
    return {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": nemotron.MODEL_TYPE,
        "attention_bias": False,
        "block_size": c.block_size,
        "dtype": c.dtype,
        "eos_token_id": c.eos_token_ids[0] if len(c.eos_token_ids) == 1 else list(c.eos_token_ids),
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "mask_token_id": c.mask_token_id,
        "max_position_embeddings": c.max_position,
        "mlp_bias": False,
        "num_attention_heads": c.num_heads,
        "num_hidden_layers": c.num_layers,
        "num_key_value_heads": c.num_kv_heads,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": rope_json(c.rope),
        "sliding_window": None,
        "tie_word_embeddings": c.tie_word_embeddings,
        "vocab_size": c.vocab_size,
    }


def rope_json(rope: RopeConfig) -> dict[str, Any]:
    """The ``rope_parameters`` of a model, without the keys that are not set."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    if rope.yarn_factor is not None:
        parameters |= {"rope_type": "yarn", "factor": rope.yarn_factor, "beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow,
                       "mscale": rope.mscale, "mscale_all_dim": rope.mscale_all_dim, "attention_factor": rope.attention_factor,
                       "truncate": None if rope.truncate else False}
    parameters |= {"original_max_position_embeddings": rope.original_max_position,
                   "llama_4_scaling_beta": rope.llama_4_scaling_beta}
    return {key: value for key, value in parameters.items() if value is not None}


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes beside ``path`` and renames, so that nobody reads half a file."""
    part = path.with_name(path.name + ".part")
    try:
        part.touch()
        mode = part.stat().st_mode
        write(part)
        part.chmod(mode)  # safetensors makes files that only their owner can read
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
