"""The same model in transformers: a Nemotron-Labs-Diffusion checkpoint in causal mode is a Ministral 3, a SetDLM one a Qwen3."""

from __future__ import annotations

from transformers import Ministral3ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from packed_ss.evaluation.bench import baselines
from packed_ss.models import setdlm
from packed_ss.models.export import qwen3_json
from packed_ss.models.transformer import Transformer


def ministral3(model: Transformer) -> Ministral3ForCausalLM:
    """``model``'s weights, in its dtype and on its device, in transformers' own implementation (eager attention).

    Give it no attention mask or a *float* 4-D one: a boolean one is added to the scores as 0 and 1.
    """
    return baselines.ministral3(model, attention="eager")


def qwen3(model: Transformer) -> Qwen3ForCausalLM:
    """`ministral3` for a SetDLM model; what its base config says is read by transformers' own config class."""
    weight = model.embed.weight
    values = {key: value for key, value in qwen3_json(model.config).items() if key not in ("architectures", "dtype")}
    oracle = Qwen3ForCausalLM(Qwen3Config(**values, attn_implementation="eager")).to(weight.device, weight.dtype)
    parts = baselines.checkpoint_parts(model, setdlm.tensor_map(model.config))
    state = {name.removeprefix("backbone.model."): part for name, part in parts}
    oracle.load_state_dict({"lm_head.weight": weight} | state, strict=True)
    return oracle.requires_grad_(False).eval()
