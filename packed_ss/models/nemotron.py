"""The public Nemotron-Labs-Diffusion format: what its ``config.json`` says and what its tensors are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import tensors
from .config import Fields, ModelConfig, read_dtype, read_rope
from .tensors import Shapes, TensorMap

MODEL_TYPE = "nemotron_labs_diffusion"
PREFIX, HEAD = "encoder.", "diffusion_head.weight"

#: Last parts of tensor names that stand for nothing the model needs.
IGNORED: frozenset[str] = frozenset()


def model_config(config: dict[str, Any], folder: Path, shapes: Shapes) -> ModelConfig:
    """The model in ``folder``, of which ``config.json`` says all."""
    return read_config(config, str(folder / "config.json"))


def read_config(config: dict[str, Any], where: str) -> ModelConfig:
    """The model that a ``config.json`` describes; ``where`` is the file's name for error messages.

    Raises ValueError for missing, mistyped or out-of-range values, and for features that `Transformer` does not have.
    """
    fields = Fields(config, where)
    fields.choice("hidden_act", ("silu",), "silu")
    for key in ("attention_bias", "mlp_bias"):
        fields.choice(key, (False,), False)
    if "sliding_window" in fields:
        raise fields.refusal("sliding_window", "null")
    size = 1, 2**24
    vocabulary = fields.integer("vocab_size", 1, 2**31 - 1)
    try:
        return ModelConfig(
            vocab_size=vocabulary,
            hidden_size=fields.integer("hidden_size", *size),
            num_layers=fields.integer("num_hidden_layers", 1, 4096),
            intermediate_size=fields.integer("intermediate_size", *size),
            num_heads=fields.integer("num_attention_heads", 1, 65536),
            num_kv_heads=fields.integer("num_key_value_heads", 1, 65536),
            head_dim=fields.integer("head_dim", 1, 65536),
            rms_norm_eps=fields.number("rms_norm_eps", 0.0),
            mask_token_id=fields.integer("mask_token_id", 0, vocabulary - 1),
            eos_token_ids=fields.integers("eos_token_id", 0, vocabulary - 1),
            block_size=fields.integer("block_size", 2, 65536, None),
            max_position=fields.integer("max_position_embeddings", 1, 2**31 - 1, None),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            dtype=read_dtype(fields),
            model_type=MODEL_TYPE,
            rope=read_rope(fields),
        )
    except ValueError as error:
        raise error if str(error).startswith(where) else ValueError(f"{where}: {error}") from None


def tensor_map(config: ModelConfig) -> TensorMap:
    """Every parameter of ``Transformer(config)`` with the checkpoint tensors it consists of."""
    return tensors.tensor_map(config, PREFIX, HEAD)


def tied_copies(config: ModelConfig) -> TensorMap:
    """Tensors that a checkpoint may hold besides, each a copy of the parameter it stands under."""
    return tensors.tied_copies(config, HEAD)
