"""Rotary embedding, query scale and logits against transformers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Ministral3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

from packed_ss.models.config import ModelConfig, RopeConfig
from packed_ss.models.export import rope_json
from packed_ss.models.rope import angles, inverse_frequencies, magnitude, rotate
from packed_ss.models.transformer import Attend, Block, Transformer
from tests.support.checkpoints import random_config, random_model
from tests.support.oracle import ministral3

PUBLIC = RopeConfig(
    theta=1e6, yarn_factor=16.0, original_max_position=16384, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1
)
VARIANTS = {
    "public": PUBLIC,
    "14B": dataclasses.replace(PUBLIC, theta=1e9),
    "mscale ratio": dataclasses.replace(PUBLIC, mscale=0.7, mscale_all_dim=1.3),
    "no mscale": dataclasses.replace(PUBLIC, mscale=None, mscale_all_dim=None),
    "one mscale": dataclasses.replace(PUBLIC, mscale=0.5, mscale_all_dim=None),
    "attention factor": dataclasses.replace(PUBLIC, attention_factor=1.25),
    "not truncated": dataclasses.replace(PUBLIC, truncate=False),
    "betas": dataclasses.replace(PUBLIC, beta_fast=7.0, beta_slow=0.4),
    "factor 1": dataclasses.replace(PUBLIC, yarn_factor=1.0, mscale=None),
    "short": dataclasses.replace(PUBLIC, theta=1e4, original_max_position=8),
    "shorter than a turn": dataclasses.replace(PUBLIC, theta=1e4, original_max_position=2),
}


@pytest.mark.parametrize("head_dim", [16, 128])
@pytest.mark.parametrize("rope", VARIANTS.values(), ids=VARIANTS.keys())
def test_yarn_is_that_of_transformers(rope: RopeConfig, head_dim: int) -> None:
    config = Ministral3Config(head_dim=head_dim, rope_parameters=rope_json(rope), max_position_embeddings=262144)
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    ours = inverse_frequencies(rope, head_dim)
    assert ours.dtype == torch.float64 and ours.shape == (head_dim // 2,)
    torch.testing.assert_close(ours.float(), frequencies, rtol=2e-6, atol=0)
    assert magnitude(rope) == pytest.approx(factor, rel=1e-12)
    cos, sin, _ = angles(rope, ours, torch.tensor([0, 5]))
    torch.testing.assert_close(cos.square() + sin.square(), torch.full_like(cos, factor**2))


def test_plain_rope_is_a_power_of_theta() -> None:
    rope = RopeConfig(theta=500.0)
    expected = torch.tensor([500.0 ** (-i / 4) for i in range(4)], dtype=torch.float64)
    torch.testing.assert_close(inverse_frequencies(rope, 8), expected)
    assert magnitude(rope) == 1.0
    assert angles(rope, expected, torch.arange(3))[2] is None


def test_query_scale_is_that_of_transformers() -> None:
    positions = torch.tensor([[0, 1, 16383, 16384, 16385, 32767, 32768, 49151, 262143]])
    for dtype in (torch.float32, torch.float64):
        scale = angles(PUBLIC, inverse_frequencies(PUBLIC, 16).to(dtype), positions)[2]
        theirs = get_llama_4_attn_scale(positions, 0.1, 16384)[:, 0, :, 0]
        assert scale.dtype == dtype
        torch.testing.assert_close(scale.float(), theirs, rtol=2e-7, atol=0)
    assert scale[0, 3].item() == pytest.approx(1 + 0.1 * math.log(2)) and scale[0, 2] == 1


def causal(model: Transformer, rows: int) -> Attend:
    """The plainest causal attention over contiguous positions from 0: dense, no cache."""
    config = model.config
    cos, sin, scale = angles(config.rope, model.frequencies, torch.arange(rows))
    hidden = torch.ones(rows, rows, dtype=torch.bool).triu(1)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if scale is not None:
            q = q * scale[:, None, None].to(q.dtype)
        k, v = (t.repeat_interleave(config.num_heads // config.num_kv_heads, dim=2) for t in (k, v))
        scores = torch.einsum("nrhd,nshd->nhrs", q, k) / math.sqrt(config.head_dim)
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1, dtype=wide).to(v.dtype)
        return torch.einsum("nhrs,nshd->nrhd", weights, v)

    return attend


def gap(config: ModelConfig, dtype: torch.dtype, rows: int = 40) -> float:
    """Largest difference of a logit from the oracle's, over two random sequences."""
    model = random_model(config, seed=5, dtype=dtype)
    ids = torch.randint(config.vocab_size, (2, rows), generator=torch.Generator().manual_seed(6))
    ours, theirs = model(ids, causal(model, rows)), ministral3(model)(ids, use_cache=False).logits
    assert ours.shape == theirs.shape == (2, rows, config.vocab_size) and ours.dtype == theirs.dtype == dtype
    return (ours - theirs).abs().max().item()


SMALL = random_config(0).rope
CONFIGS = {
    "untied": random_config(0),
    "tied": random_config(1, tie_word_embeddings=True),
    "one kv head": random_config(0, num_heads=3, num_kv_heads=1),
    "a kv head each": random_config(0, num_heads=2, num_kv_heads=2),
    "six heads": random_config(0, num_heads=6, num_kv_heads=2, vocab_size=37, num_layers=3),
    "mscale": random_config(0, rope=dataclasses.replace(SMALL, mscale=0.5, mscale_all_dim=1.5)),
    "no query scale": random_config(0, rope=dataclasses.replace(SMALL, llama_4_scaling_beta=None)),
    "plain": random_config(0, rope=RopeConfig(theta=100.0)),
}


# transformers computes norms, softmax and angles in float32 even for a float64 model, hence 1e-5 there.
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.float64, 1e-5)], ids=["float32", "float64"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_causal_logits_are_those_of_ministral3(config: ModelConfig, dtype: torch.dtype, most: float) -> None:
    assert gap(config, dtype) < most


RIGHT_ANGLES, RIGHT_ROTATE, RIGHT_BLOCK = angles, rotate, Block.forward


def interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The other pairing, (2i, 2i + 1), that some models use."""
    order = torch.cat((torch.arange(0, x.shape[-1], 2), torch.arange(1, x.shape[-1], 2)))
    return RIGHT_ROTATE(x[..., order], cos, sin)[..., order.argsort()]


def unscaled(*given: Any) -> tuple[Tensor, Tensor, None]:
    """No query scale."""
    return (*RIGHT_ANGLES(*given)[:2], None)


def unstretched(rope: RopeConfig, frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Plain RoPE for YaRN."""
    return RIGHT_ANGLES(rope, inverse_frequencies(RopeConfig(theta=rope.theta), 16).to(frequencies.dtype), positions)


def exchanged(self: Block, x: Tensor, update: Tensor | None, attend: Attend, proposal_rows: int) -> tuple[Tensor, Tensor]:
    """Keys taken for values."""
    return RIGHT_BLOCK(self, x, update, lambda layer, q, k, v: attend(layer, q, v, k), proposal_rows)


@pytest.mark.parametrize(("name", "broken"), [("rotate", interleaved), ("angles", unscaled), ("angles", unstretched)])
def test_a_wrong_rotation_is_seen(monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable) -> None:
    monkeypatch.setitem(globals(), name, broken)
    assert gap(CONFIGS["untied"], torch.float64) > 1e-2


def test_a_wrong_block_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "forward", exchanged)
    assert gap(CONFIGS["untied"], torch.float64) > 1e-2


def test_float64_frequencies_follow_the_weights() -> None:
    model = random_model(random_config(0), dtype=torch.bfloat16)
    assert model.frequencies.dtype == torch.float32
    exact = inverse_frequencies(model.config.rope, model.config.head_dim)
    assert torch.equal(model.double().frequencies, exact)
    assert torch.equal(model.bfloat16().frequencies, exact.float())


def test_random_models_are_peaked_and_varied() -> None:
    """Tests of sampling need rows that are neither flat nor one-hot, and that depend on what came before."""
    model = random_model(random_config(0), seed=0)
    ids = torch.randint(11, (4, 32), generator=torch.Generator().manual_seed(0))
    p = model(ids, causal(model, 32)).softmax(-1)
    top = p.amax(-1)
    assert top.median() > 0.3 and top.quantile(0.1) < 0.5 and top.quantile(0.95) > 0.8
    other = ids.clone()
    other[:, 0] = (other[:, 0] + 1) % 11
    moved = (model(other, causal(model, 32)).softmax(-1) - p).abs().sum(-1) / 2
    assert moved[:, 4:16].mean() > 0.1
