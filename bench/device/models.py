"""Models with random weights, in the shapes of the public checkpoints, made where they are used."""

from __future__ import annotations

import torch

from packed_ss.evaluation.bench.clock import open_runtime
from packed_ss.models.config import ModelConfig, RopeConfig, parameter_count
from packed_ss.models.transformer import Transformer

from .stages import Bench


def _public(hidden: int, layers: int, intermediate: int, theta: float = 1e6) -> ModelConfig:
    rope = RopeConfig(
        theta=theta,
        yarn_factor=16.0,
        original_max_position=16384,
        beta_fast=32.0,
        beta_slow=1.0,
        mscale=1.0,
        mscale_all_dim=1.0,
        llama_4_scaling_beta=0.1,
    )
    return ModelConfig(
        vocab_size=131072,
        hidden_size=hidden,
        num_layers=layers,
        intermediate_size=intermediate,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        mask_token_id=100,
        eos_token_ids=(11,),
        block_size=32,
        max_position=262144,
        dtype="bfloat16",
        model_type="nemotron_labs_diffusion",
        rope=rope,
    )


#: Shapes by name: those of Nemotron-Labs-Diffusion, and one that a CPU runs in no time.
SHAPES = {
    "3B": _public(3072, 26, 9216),
    "8B": _public(4096, 34, 14336),
    "14B": _public(5120, 40, 16384, theta=1e9),
    "mini": ModelConfig(
        vocab_size=257,
        hidden_size=48,
        num_layers=2,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        mask_token_id=3,
        eos_token_ids=(1,),
        block_size=4,
        max_position=4096,
    ),
}


def too_large(config: ModelConfig, dtype: torch.dtype, free: int) -> str:
    """Say why a model does not fit into ``free`` bytes with a quarter of its size to spare; empty where it does."""
    needed = parameter_count(config) * dtype.itemsize * 5 // 4
    return "" if needed <= free else f"it takes {needed / 2**30:.0f} GiB, and {free / 2**30:.0f} GiB are free"


@torch.no_grad()
def random_model(config: ModelConfig, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Transformer:
    """A model for inference with random weights, drawn on the device and in its dtype, one tensor at a time.

    Matrices keep the variance of what they multiply, and every sublayer reads a normalised stream, so that activations stay
    finite at any depth; logits have a standard deviation near 1.
    """
    with torch.device("meta"):
        model = Transformer(config).to(dtype)
    model = model.to_empty(device=device).requires_grad_(False).eval()
    generator = torch.Generator(device).manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.fill_(1.0)
        else:
            weight.normal_(0.0, 1.0 if name == "embed.weight" else weight.shape[1] ** -0.5, generator=generator)
    return model


def largest_model(bench: Bench) -> tuple[str, Transformer]:
    """The largest of a bench's shapes that fits, by name, with random weights.  Raise RuntimeError where none does."""
    free = open_runtime(bench.device).free_memory()
    reasons = {shape: too_large(SHAPES[shape], bench.dtype, free) for shape in bench.sizes.shapes}
    fitting = [shape for shape, reason in reasons.items() if not reason]
    if not fitting:
        raise RuntimeError("; ".join(f"{shape} shape: {reason}" for shape, reason in reasons.items()))
    return fitting[-1], random_model(SHAPES[fitting[-1]], bench.device, bench.dtype)
