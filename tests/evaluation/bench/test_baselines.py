"""Baselines decode the same text from the same weights, or say why they cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss import Decoder
from packed_ss.evaluation.bench.baselines import (
    ChainVerified,
    CompiledLoop,
    TransformersGenerate,
    make_baseline,
    ministral3,
    unavailable,
)
from packed_ss.evaluation.verify import causal_logits
from tests.support.checkpoints import random_config, random_model, random_set_config

MODEL = random_model(random_config(3, vocab_size=23), 3)
PROMPTS = ([4, 1, 7], [2, 9, 9, 5, 10, 2, 9, 9, 5], [6])


def plain(prompt: list[int], cap: int) -> Any:
    return Decoder(MODEL, "autoregressive", block_size=4, max_length=64).generate(prompt, cap)


def _baselines() -> dict[str, Any]:
    return {
        "transformers": TransformersGenerate(MODEL),
        "prompt-lookup": TransformersGenerate(MODEL, lookup=3),
        "compiled": CompiledLoop(MODEL, 64, compiled=lambda step: step),
    }


@pytest.mark.parametrize("name", _baselines())
def test_texts_are_those_of_the_autoregressive_schedule(name: str):
    baseline = _baselines()[name]
    for prompt in PROMPTS:
        for cap in (1, 30):
            out, want = baseline.generate(list(prompt), cap, 0.0, 0), plain(prompt, cap)
            assert out.tokens == want.tokens[0].tolist() and out.finish_reason == want.finish_reason[0]
            assert out.seconds > 0 and (out.nfe <= len(out.tokens) if name == "prompt-lookup" else out.nfe == len(out.tokens))
            assert out.advances is None if name == "prompt-lookup" else out.advances == [1] * len(out.tokens)
            if name != "compiled":
                assert 0 < out.first_model_seconds <= out.model_seconds < out.seconds


def test_weights_are_shared_and_not_copied():
    causal = ministral3(MODEL)
    assert causal.lm_head.weight.data_ptr() == MODEL.head.weight.data_ptr()
    assert causal.model.embed_tokens.weight.data_ptr() == MODEL.embed.weight.data_ptr()
    assert not any(weight.requires_grad for weight in causal.parameters())


def chain(draft: Tensor, ids: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What FlashInfer's `chain_speculative_sampling` returns: tokens [N, n + 1] (-1 behind), accepted and emitted [N]."""
    n = ids.shape[1]
    out, emitted = torch.full((1, n + 1), -1), 0
    while emitted < n:
        p, q = target[0, emitted], draft[0, emitted]
        token = int(ids[0, emitted])
        if torch.rand(()) >= p[token] / q[token]:
            break
        out[0, emitted], emitted = token, emitted + 1
    left = target[0, n] if emitted == n else (target[0, emitted] - draft[0, emitted]).clamp(min=0)
    out[0, emitted] = torch.multinomial(left, 1)
    return out.int(), torch.tensor([emitted]), torch.tensor([emitted])


@pytest.mark.parametrize("schedule", ["linear", "packed"])
def test_the_chain_decodes_and_near_temperature_0_as_greedy(schedule: str):
    torch.manual_seed(0)
    baseline = ChainVerified(MODEL, 64, chain, schedule)
    for prompt in PROMPTS:
        out, want = baseline.generate(list(prompt), 30, 1e-4, 0), plain(prompt, 30)
        assert out.tokens == want.tokens[0].tolist() and out.finish_reason == want.finish_reason[0]
        out = baseline.generate(list(prompt), 30, 1.0, 1)
        assert sum(out.advances) == len(out.tokens) <= 30 and len(out.advances) == out.nfe


def test_the_chain_has_the_models_law():
    """The second token, after a draft accepted or corrected, against the ancestral law, by chi-square."""
    torch.manual_seed(1)
    model, n = random_model(random_config(5, vocab_size=6, eos_token_ids=(5,)), 5), 1000
    first = causal_logits(model, [1, 2])[-1].softmax(-1)
    law = sum(first[a] * causal_logits(model, [1, 2, a])[-1].softmax(-1) for a in range(6) if a != 5)
    baseline = ChainVerified(model, 16, chain)
    counts = torch.zeros(6)
    for seed in range(n):
        tokens = baseline.generate([1, 2], 2, 1.0, seed).tokens
        if len(tokens) == 2:
            counts[tokens[1]] += 1
    expected = torch.cat([n * law, n * first[5:]])
    found = torch.cat([counts, torch.tensor([n - counts.sum()])])
    assert float(((found - expected) ** 2 / expected).sum()) < 60  # 6 degrees of freedom: one in 10^10


def test_unavailable_are_sentences():
    assert unavailable("transformers", MODEL) == unavailable("prompt-lookup", MODEL) == ""
    assert "needs a GPU" in unavailable("compiled", MODEL) and "need a GPU" in unavailable("flashinfer", MODEL)
    for baseline in ("transformers", "compiled"):
        assert "no causal class" in unavailable(baseline, random_model(random_set_config()))
    with pytest.raises(ValueError, match="the baseline is 'vllm', but it must be one of transformers, prompt-lookup"):
        unavailable("vllm", MODEL)
    assert isinstance(make_baseline("prompt-lookup", MODEL, 9), TransformersGenerate)
