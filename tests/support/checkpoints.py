"""Small random models and checkpoints for tests."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch

from packed_ss.models.config import ModelConfig, RopeConfig
from packed_ss.models.export import write_nemotron, write_setdlm
from packed_ss.models.transformer import Transformer


def random_config(seed: int = 0, **overrides: Any) -> ModelConfig:
    """A small Nemotron-Labs-Diffusion configuration; ``overrides`` are fields of `ModelConfig`.

    The heads' width is not the hidden size, heads share keys and values, and YaRN and the query scale act from position
    8 on.  The seed picks among head counts.
    """
    heads, kv_heads = random.Random(seed).choice(((3, 1), (4, 2), (2, 1), (6, 2)))
    vocabulary = overrides.get("vocab_size", 11)
    rope = RopeConfig(
        theta=10_000.0, yarn_factor=16.0, original_max_position=8, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1
    )
    values = dict(
        vocab_size=vocabulary,
        hidden_size=24,
        num_layers=2,
        intermediate_size=40,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=16,
        rms_norm_eps=1e-5,
        mask_token_id=min(3, vocabulary - 1),
        eos_token_ids=(min(1, vocabulary - 1),),
        block_size=4,
        max_position=512,
        dtype="float32",
        model_type="nemotron_labs_diffusion",
        rope=rope,
    )
    return ModelConfig(**(values | overrides))


def random_set_config(seed: int = 0, **overrides: Any) -> ModelConfig:
    """A small SetDLM configuration with a MASK id and the last two of 13 rows excluded; ``overrides`` as in `random_config`."""
    values = dict(
        vocab_size=13,
        block_size=None,
        rms_norm_eps=1e-6,
        qk_norm=True,
        tie_word_embeddings=True,
        model_type="bd3lm",
        rope=RopeConfig(theta=10_000.0),
        layout="ordered",
        horizon=16,
    )
    values |= overrides
    if "excluded_token_ids" not in values:
        rows, mask = values["vocab_size"], values.get("mask_token_id", min(3, values["vocab_size"] - 1))
        values["excluded_token_ids"] = tuple(sorted({mask, *([11, 12] if rows == 13 else [])}))
    return random_config(seed, **values)


def random_model(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 2.5) -> Transformer:
    """A model whose logits have a standard deviation near ``scale``, differently peaked from row to row.

    Queries and keys are large enough for attention to tell rows apart.  The same weights, rounded, in every dtype.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = Transformer(config).to(torch.float64)
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if weight.dim() == 1:
                weight.copy_(1 + 0.2 * noise)
            elif name == "embed.weight":
                weight.copy_(noise * (scale / math.sqrt(config.hidden_size) if config.tie_word_embeddings else 1.0))
            else:
                gain = scale if name == "head.weight" else 1.5
                weight.copy_(noise * gain / math.sqrt(weight.shape[1]))
    return model.to(dtype).requires_grad_(False).eval()


def random_checkpoint(folder: Path, seed: int = 0, *, scale: float = 2.5, **overrides: Any) -> Path:
    """Writes `random_model` of `random_config` as a checkpoint folder and returns the folder."""
    write_nemotron(random_model(random_config(seed, **overrides), seed, scale=scale), Path(folder))
    return Path(folder)


def random_set_checkpoint(folder: Path, seed: int = 0, *, scale: float = 2.5, **overrides: Any) -> Path:
    """Writes `random_model` of `random_set_config` as a checkpoint folder and returns the folder."""
    write_setdlm(random_model(random_set_config(seed, **overrides), seed, scale=scale), Path(folder), pad_token_id=0)
    return Path(folder)
