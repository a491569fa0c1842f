"""What the tensors of a decoder-only checkpoint are called: the names that the Llama family shares, under a prefix."""

from __future__ import annotations

from collections.abc import Mapping

from .config import ModelConfig

#: parameter of `Transformer` -> checkpoint tensors (name, shape) that it consists of, in order along dimension 0.
TensorMap = dict[str, list[tuple[str, tuple[int, ...]]]]

#: checkpoint tensor -> its shape.
Shapes = Mapping[str, tuple[int, ...]]


def tensor_map(config: ModelConfig, prefix: str, head: str) -> TensorMap:
    """Every parameter of ``Transformer(config)`` with the checkpoint tensors it consists of.

    ``prefix`` stands before the embedding, the layers and the last norm; ``head`` is the whole name of the untied head.
    """
    c = config
    hidden, q, kv, mlp = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
    tensors: TensorMap = {
        "embed.weight": [(prefix + "embed_tokens.weight", (c.vocab_size, hidden))],
        "norm.weight": [(prefix + "norm.weight", (hidden,))],
    }
    if not c.tie_word_embeddings:
        tensors["head.weight"] = [(head, (c.vocab_size, hidden))]
    for layer in range(c.num_layers):
        ours, theirs = f"blocks.{layer}.", f"{prefix}layers.{layer}."
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
        if c.qk_norm:
            for norm in ("q_norm", "k_norm"):
                tensors[f"{ours}{norm}.weight"] = [(f"{theirs}self_attn.{norm}.weight", (c.head_dim,))]
    return tensors


def tied_copies(config: ModelConfig, head: str) -> TensorMap:
    """Tensors that a checkpoint may hold besides, each a copy of the parameter it stands under.

    A tied checkpoint may repeat the embedding as its head; a head of its own would contradict the config.
    """
    return {"embed.weight": [(head, (config.vocab_size, config.hidden_size))]} if config.tie_word_embeddings else {}
