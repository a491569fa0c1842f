"""The public SetDLM format: a Qwen3 transformer inside a wrapper whose ``config.json`` says little about it.

Sizes come from the shapes of the tensors.  Rotary settings and the norms' epsilon come from the base model's own config,
``base_config.json`` beside the wrapper's or the one in the hub cache; without either they are Qwen3's, which is logged.  What
the wrapper names as ``_target_`` is never looked at.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from . import tensors
from .config import Fields, ModelConfig, RopeConfig, read_dtype, read_object, read_rope
from .tensors import Shapes, TensorMap

MODEL_TYPE = "bd3lm"
BASE_CONFIG, BASE_MODEL_TYPE = "base_config.json", "qwen3"
PREFIX, HEAD = "backbone.model.model.", "backbone.model.lm_head.weight"

#: A buffer that some of these checkpoints have stored with their weights.
IGNORED = frozenset({"static_attention_mask"})

#: What Qwen3 checkpoints have where none can be asked.
QWEN3_ROPE, QWEN3_EPS = RopeConfig(theta=1_000_000.0), 1e-6

_log = logging.getLogger(__name__)


def model_config(config: dict[str, Any], folder: Path, shapes: Shapes) -> ModelConfig:
    """The model in ``folder``, whose wrapper's ``config.json`` is ``config`` and whose tensors have these ``shapes``.

    The MASK id and every row of the embedding from the wrapper's ``vocab_size`` on are excluded.  The horizon is twice the
    prediction budget S of the training schedule (App. E.1), where the wrapper holds it.

    Raises ValueError for missing, mistyped or contradictory values, and for features that `Transformer` does not have.
    """
    where = str(folder / "config.json")
    fields = Fields(config, where)
    sizes = _sizes(shapes, folder)
    rows = sizes["vocab_size"]
    vocabulary = fields.integer("vocab_size", 1, 2**31 - 1)
    if vocabulary > rows:
        raise ValueError(f"{where}: vocab_size is {vocabulary}, but the embedding in {folder} has {rows} rows only")
    mask = fields.integer("mask_token_id", 0, rows - 1)
    rope, eps, tied = _base_values(fields, folder)
    try:
        return ModelConfig(
            **sizes,
            rms_norm_eps=eps,
            mask_token_id=mask,
            eos_token_ids=fields.integers("eos_token_id", 0, vocabulary - 1),
            max_position=fields.integer("length", 1, 2**31 - 1, None),
            qk_norm=True,
            tie_word_embeddings=tied,
            dtype=read_dtype(fields),
            model_type=MODEL_TYPE,
            rope=rope,
            layout="ordered",
            horizon=_horizon(fields),
            excluded_token_ids=tuple(sorted({mask, *range(vocabulary, rows)})),
        )
    except ValueError as error:
        raise error if str(error).startswith(where) else ValueError(f"{where}: {error}") from None


def _sizes(shapes: Shapes, folder: Path) -> dict[str, int]:
    """The transformer's sizes as `ModelConfig` names them, from the embedding and the first layer."""

    def dimensions(name: str, count: int) -> tuple[int, ...]:
        shape = shapes.get(PREFIX + name)
        if shape is None:
            raise ValueError(f"the weights in {folder} do not hold {PREFIX}{name}, whose shape says how large the model is")
        if len(shape) != count or 0 in shape:
            raise ValueError(
                f"the weights in {folder} hold {PREFIX}{name} of shape {list(shape)}, but a shape of {count} "
                f"positive sizes is accepted"
            )
        return shape

    rows, hidden = dimensions("embed_tokens.weight", 2)
    (head_dim,) = dimensions("layers.0.self_attn.q_norm.weight", 1)
    heads = {}
    for kind, name in (("num_heads", "q_proj"), ("num_kv_heads", "k_proj")):
        out = dimensions(f"layers.0.self_attn.{name}.weight", 2)[0]
        if out % head_dim:
            raise ValueError(f"the weights in {folder} hold a {name} of {out} rows, but whole heads of {head_dim} are accepted")
        heads[kind] = out // head_dim
    numbers = {found[1] for name in shapes if (found := re.match(re.escape(PREFIX) + r"layers\.(\d+)\.", name, re.ASCII))}
    return {
        "vocab_size": rows,
        "hidden_size": hidden,
        "num_layers": len(numbers),
        "head_dim": head_dim,
        **heads,
        "intermediate_size": dimensions("layers.0.mlp.gate_proj.weight", 2)[0],
    }


def _horizon(fields: Fields) -> int | None:
    """Twice the ``desired_block_size`` of the noise schedule, or None where there is none."""
    schedule = Fields(fields.get("noise_config", {}), f"{fields.where}: noise_config")
    budget = schedule.integer("desired_block_size", 1, 2**24, None)
    return None if budget is None else 2 * budget


def _base_values(fields: Fields, folder: Path) -> tuple[RopeConfig, float, bool]:
    """Rotary settings, the norms' epsilon and whether the head is tied, of the base model."""
    file = _base_config(fields, folder)
    if file is None:
        _log.warning(
            "%s has no %s and the hub cache has no config of its base model, so rope_theta %g and rms_norm_eps %g of "
            "Qwen3 are used",
            folder,
            BASE_CONFIG,
            QWEN3_ROPE.theta,
            QWEN3_EPS,
        )
        return QWEN3_ROPE, QWEN3_EPS, True
    base = Fields(read_object(file), str(file))
    base.choice("model_type", (BASE_MODEL_TYPE,))
    base.choice("hidden_act", ("silu",), "silu")
    for key in ("attention_bias", "use_sliding_window"):
        base.choice(key, (False,), False)
    return read_rope(base), base.number("rms_norm_eps", 0.0), base.flag("tie_word_embeddings", True)


def _base_config(fields: Fields, folder: Path) -> Path | None:
    """The config file of the base model: beside the wrapper's, else in the hub cache under the name that it gives."""
    if (folder / BASE_CONFIG).exists():
        return folder / BASE_CONFIG
    backbone = Fields(fields.get("backbone_config", {}), f"{fields.where}: backbone_config")
    name = backbone.get("pretrained_model_name_or_path", "")
    if not isinstance(name, str):
        raise backbone.refusal("pretrained_model_name_or_path", "a hub id")
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "config.json") if name else None
    except errors.HFValidationError:  # the path of a folder, say: no other folder is looked into
        return None
    return Path(cached) if isinstance(cached, str) else None


def tensor_map(config: ModelConfig) -> TensorMap:
    """Every parameter of ``Transformer(config)`` with the checkpoint tensors it consists of."""
    return tensors.tensor_map(config, PREFIX, HEAD)


def tied_copies(config: ModelConfig) -> TensorMap:
    """Tensors that a checkpoint may hold besides, each a copy of the parameter it stands under."""
    return tensors.tied_copies(config, HEAD)
