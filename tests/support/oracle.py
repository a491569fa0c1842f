"""The same model in transformers: a Nemotron-Labs-Diffusion checkpoint in causal mode is a Ministral 3, a SetDLM one a Qwen3."""

from __future__ import annotations

from transformers import Ministral3Config, Ministral3ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from packed_ss.evaluation.peers import checkpoint_parts
from packed_ss.models import nemotron, setdlm
from packed_ss.models.export import qwen3_json, rope_json
from packed_ss.models.transformer import Transformer


def ministral3(model: Transformer) -> Ministral3ForCausalLM:
    """``model``'s weights, in its dtype and on its device, in transformers' own implementation (eager attention).

    Give it no attention mask or a *float* 4-D one: a boolean one is added to the scores as 0 and 1.
    """
    c = model.config
    # transformers multiplies by the query scale whether there is one or not.
    rope = {"llama_4_scaling_beta": 0.0, "original_max_position_embeddings": 1} | rope_json(c.rope)
    positions = int((c.rope.original_max_position or 256) * (c.rope.yarn_factor or 1))  # the value that it warns without
    config = Ministral3Config(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim, rms_norm_eps=c.rms_norm_eps, max_position_embeddings=positions,
        tie_word_embeddings=c.tie_word_embeddings, rope_parameters=rope, sliding_window=None, pad_token_id=None,
        bos_token_id=None, eos_token_id=None, attn_implementation="eager",
    )
    weight = model.embed.weight
    oracle = Ministral3ForCausalLM(config).to(weight.device, weight.dtype)
    state = {name.replace("encoder.", "model.").replace("diffusion_head", "lm_head"): part
             for name, part in checkpoint_parts(model, nemotron.tensor_map(c))}
    if c.tie_word_embeddings:
        state["lm_head.weight"] = weight
    oracle.load_state_dict(state, strict=True)
    return oracle.requires_grad_(False).eval()


def qwen3(model: Transformer) -> Qwen3ForCausalLM:
    """`ministral3` for a SetDLM model; what its base config says is read by transformers' own config class."""
    weight = model.embed.weight
    values = {key: value for key, value in qwen3_json(model.config).items() if key not in ("architectures", "dtype")}
    oracle = Qwen3ForCausalLM(Qwen3Config(**values, attn_implementation="eager")).to(weight.device, weight.dtype)
    parts = checkpoint_parts(model, setdlm.tensor_map(model.config))
    state = {name.removeprefix("backbone.model."): part for name, part in parts}
    oracle.load_state_dict({"lm_head.weight": weight} | state, strict=True)
    return oracle.requires_grad_(False).eval()
