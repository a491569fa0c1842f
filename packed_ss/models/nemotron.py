"""The public Nemotron-Labs-Diffusion format: what its ``config.json`` says and what its tensors are called."""

from __future__ import annotations

from typing import Any

from .config import Fields, ModelConfig, rope_from_json

MODEL_TYPE = "nemotron_labs_diffusion"
DTYPES = ("float32", "bfloat16", "float16", "float64")

#: parameter of `Transformer` -> checkpoint tensors (name, shape) that it consists of, in order along dimension 0.
TensorMap = dict[str, list[tuple[str, tuple[int, ...]]]]

EMBEDDING, HEAD = "encoder.embed_tokens.weight", "diffusion_head.weight"


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
            dtype=_dtype(fields),
            model_type=MODEL_TYPE,
            rope=_rope(fields),
        )
    except ValueError as error:
        raise error if str(error).startswith(where) else ValueError(f"{where}: {error}") from None


def _dtype(fields: Fields) -> str:
    """``dtype``, or the older ``torch_dtype``; with or without the ``torch.`` that some writers put before it."""
    key = "dtype" if "dtype" in fields else "torch_dtype"
    return fields.choice(key, DTYPES + tuple(f"torch.{name}" for name in DTYPES), "float32").removeprefix("torch.")


def _rope(fields: Fields):
    """``rope_parameters`` or the older ``rope_scaling``; a top-level ``rope_theta`` counts where they have none."""
    key = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    where = f"{fields.where}: {key}"
    parameters = dict(Fields(fields.get(key, {}), where).values)
    for outer in ("rope_theta", "partial_rotary_factor"):
        if parameters.get(outer) is None and outer in fields:
            parameters[outer] = fields.get(outer)
    return rope_from_json(parameters, where)


def tensor_map(config: ModelConfig) -> TensorMap:
    """Every parameter of ``Transformer(config)`` with the checkpoint tensors it consists of."""
    c = config
    hidden, q, kv, mlp = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
    tensors: TensorMap = {
        "embed.weight": [(EMBEDDING, (c.vocab_size, hidden))],
        "norm.weight": [("encoder.norm.weight", (hidden,))],
    }
    if not c.tie_word_embeddings:
        tensors["head.weight"] = [(HEAD, (c.vocab_size, hidden))]
    for layer in range(c.num_layers):
        ours, theirs = f"blocks.{layer}.", f"encoder.layers.{layer}."
        tensors |= {
            ours + "input_norm.weight": [(theirs + "input_layernorm.weight", (hidden,))],
            ours + "qkv.weight": [
                (theirs + "self_attn.q_proj.weight", (q, hidden)),
                (theirs + "self_attn.k_proj.weight", (kv, hidden)),
                (theirs + "self_attn.v_proj.weight", (kv, hidden)),
            ],
            ours + "out.weight": [(theirs + "self_attn.o_proj.weight", (hidden, q))],
            ours + "mlp_norm.weight": [(theirs + "post_attention_layernorm.weight", (hidden,))],
            ours + "gate_up.weight": [
                (theirs + "mlp.gate_proj.weight", (mlp, hidden)),
                (theirs + "mlp.up_proj.weight", (mlp, hidden)),
            ],
            ours + "down.weight": [(theirs + "mlp.down_proj.weight", (hidden, mlp))],
        }
    return tensors


def tied_copies(config: ModelConfig) -> TensorMap:
    """Tensors that a checkpoint may hold besides, each a copy of the parameter it stands under.

    A tied checkpoint may repeat the embedding as its head; a head of its own would contradict the config.
    """
    return {"embed.weight": [(HEAD, (config.vocab_size, config.hidden_size))]} if config.tie_word_embeddings else {}
