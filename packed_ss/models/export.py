"""Writes a model as a checkpoint folder in one of the public formats."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from . import adapter, nemotron, setdlm
from .config import ModelConfig, RopeConfig
from .tensors import TensorMap
from .transformer import Transformer


def write_nemotron(model: Transformer, folder: Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``, the latter in ``model.config.dtype``, into ``folder``.

    Files appear under their names only when complete.  Raises ValueError for a model that the format cannot hold.
    """
    if model.config.qk_norm:
        raise ValueError(f"the model has q/k norms, but {nemotron.MODEL_TYPE} has no place for them")
    if model.config.layout != "block":
        raise ValueError(f"the model has the {model.config.layout} layout, but {nemotron.MODEL_TYPE} is for block models")
    _write(model, Path(folder), nemotron.tensor_map(model.config), {"config.json": nemotron_json(model.config)})


def write_setdlm(model: Transformer, folder: Path, *, pad_token_id: int | None = None) -> None:
    """Writes the wrapper's ``config.json``, ``base_config.json`` and ``model.safetensors`` into ``folder``.

    Like `write_nemotron`.  ``pad_token_id`` is noted in the config and used by nothing here.
    """
    c = model.config
    if c.layout != "ordered" or not c.qk_norm or c.rope.llama_4_scaling_beta is not None:
        raise ValueError(
            f"{setdlm.MODEL_TYPE} is for models with the ordered layout, q/k norms and no query scale, which a "
            f"{c.layout}-layout model{' with' if c.qk_norm else ' without'} q/k norms is not"
            f"{'' if c.rope.llama_4_scaling_beta is None else ', for it has a query scale'}"
        )
    if c.horizon is not None and c.horizon % 2:
        raise ValueError(f"the horizon is {c.horizon}, but {setdlm.MODEL_TYPE} holds half of it, so an even one is accepted")
    if not {c.mask_token_id, *range(_text_vocabulary(c), c.vocab_size)} == set(c.excluded_token_ids):
        raise ValueError(
            f"{len(c.excluded_token_ids)} ids are excluded, but {setdlm.MODEL_TYPE} excludes the MASK id and a run of last ids"
        )
    _write(
        model,
        Path(folder),
        setdlm.tensor_map(c),
        {"config.json": setdlm_json(c, pad_token_id), setdlm.BASE_CONFIG: qwen3_json(c)},
    )


def write_adapter(model: Transformer, folder: Path, alpha: float) -> None:
    """Writes the adapter that ``model`` carries in the PEFT format, in ``model.config.dtype``, into ``folder``.

    Like `write_nemotron`.  ``alpha`` is the format's ``lora_alpha``: what is stored as B is the model's divided by alpha / r.
    """
    family = {nemotron.MODEL_TYPE: nemotron, setdlm.MODEL_TYPE: setdlm}.get(model.config.model_type)
    known = {} if family is None else adapter.targets(family.tensor_map(model.config))
    chosen = {module: target for module, target in known.items() if adapter.carries(model, target)}
    if not chosen:
        raise ValueError(f"the model of type {model.config.model_type!r} carries no adapter, so there is none to write")
    tensors, dtype = {}, getattr(torch, model.config.dtype)
    for module, target in chosen.items():
        down, up = adapter.part_of(model, target)
        rank = len(down)
        for name, part in zip(adapter.keys(module), (down, up / (alpha / rank)), strict=True):
            tensors[name] = part.to("cpu", dtype, copy=True).contiguous()
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({module.rpartition(".")[2] for module in chosen}),
        "fan_in_fan_out": False,
        "use_dora": False,
        "use_rslora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / adapter.WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    _replace(folder / adapter.CONFIG, lambda path: path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8"))


def _write(model: Transformer, folder: Path, tensor_map: TensorMap, texts: dict[str, dict[str, Any]]) -> None:
    """The weights under their names in the map, and JSON files by name, config.json last."""
    folder.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, model.config.dtype)
    tensors = {}
    for parameter, parts in tensor_map.items():
        whole = model.get_parameter(parameter).detach()
        for (name, _), part in zip(parts, whole.split([shape[0] for _, shape in parts]), strict=True):
            # A fresh tensor each: safetensors refuses views that share storage.
            tensors[name] = part.to("cpu", dtype, copy=True).contiguous()
    _replace(folder / "model.safetensors", lambda path: save_file(tensors, path, metadata={"format": "pt"}))
    for file, values in texts.items():
        text = json.dumps(values, indent=2) + "\n"
        _replace(folder / file, functools.partial(Path.write_text, data=text, encoding="utf-8"))


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


def setdlm_json(config: ModelConfig, pad_token_id: int | None) -> dict[str, Any]:
    """The wrapper's ``config.json`` of a model, as a dictionary with the format's public keys."""
    c = config
    eos = c.eos_token_ids[0] if len(c.eos_token_ids) == 1 else list(c.eos_token_ids)
    special = {
        "vocab_size": _text_vocabulary(c),
        "mask_token_id": c.mask_token_id,
        "eos_token_id": eos,
        "pad_token_id": pad_token_id,
    }
    schedule = {"_target_": "noise_schedule_noise_schedules.StaggeredNoise", "length": c.max_position}
    return {
        "architectures": ["SetDLM"],
        "model_type": setdlm.MODEL_TYPE,
        "attn_backend": "sdpa",
        "backbone_config": {
            "_target_": "backbone_automodel.AutoModelFromPreTrained",
            "automodel_cls": "AutoModelForCausalLM",
            "num_layers": c.num_layers,
            "pretrained_model_name_or_path": None,
        },
        "block_size": c.max_position,
        "dtype": c.dtype,
        "eval_block_size": c.max_position,
        "length": c.max_position,
        "noise_config": schedule | ({} if c.horizon is None else {"desired_block_size": c.horizon // 2}),
        "tokenization_config": special,
        **special,
    }


def qwen3_json(config: ModelConfig) -> dict[str, Any]:
    """The base model's ``config.json``, as a dictionary with Qwen3's public keys."""
    c = config
    scaling = {key: value for key, value in rope_json(c.rope).items() if key != "rope_theta"}
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": setdlm.BASE_MODEL_TYPE,
        "attention_bias": False,
        "dtype": c.dtype,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "max_position_embeddings": c.max_position,
        "num_attention_heads": c.num_heads,
        "num_hidden_layers": c.num_layers,
        "num_key_value_heads": c.num_kv_heads,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_scaling": scaling if c.rope.yarn_factor is not None else None,
        "rope_theta": c.rope.theta,
        "sliding_window": None,
        "tie_word_embeddings": c.tie_word_embeddings,
        "use_sliding_window": False,
        "vocab_size": c.vocab_size,
    }


def rope_json(rope: RopeConfig) -> dict[str, Any]:
    """The ``rope_parameters`` of a model, without the keys that are not set."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    if rope.yarn_factor is not None:
        parameters |= {
            "rope_type": "yarn",
            "factor": rope.yarn_factor,
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "mscale": rope.mscale,
            "mscale_all_dim": rope.mscale_all_dim,
            "attention_factor": rope.attention_factor,
            "truncate": None if rope.truncate else False,
        }
    parameters |= {
        "original_max_position_embeddings": rope.original_max_position,
        "llama_4_scaling_beta": rope.llama_4_scaling_beta,
    }
    return {key: value for key, value in parameters.items() if value is not None}


def _text_vocabulary(config: ModelConfig) -> int:
    """The number of ids before the run of excluded ones at the end; a MASK id that begins the run counts as before it."""
    excluded, size = set(config.excluded_token_ids), config.vocab_size
    while size - 1 in excluded:
        size -= 1
    return size + (size == config.mask_token_id)


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
