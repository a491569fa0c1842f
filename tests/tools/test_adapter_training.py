"""The training of the bundled adapter: what learns, from which rows, and that what is written is what was trained."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import pytest
import torch

from packed_ss import load_model
from packed_ss.models.export import write_adapter, write_nemotron
from tests.support.checkpoints import random_model

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import train_tiny  # noqa: E402
import train_tiny_adapter as tool  # noqa: E402
import training  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(ROOT / "packed_ss/assets/tiny/tokenizer.json"))


@pytest.fixture
def model():
    config = dataclasses.replace(
        train_tiny.tiny_config(),
        hidden_size=32,
        num_layers=2,
        intermediate_size=48,
        num_heads=3,
        num_kv_heads=1,
        head_dim=16,
        dtype="float32",
    )
    return random_model(config, 3, scale=1.0)


def test_an_adapter_starts_at_nothing_and_acts_on_drafting_rows(model, tokenizer):
    batch = next(train_tiny.batches(tokenizer, 3, 0))
    rows = batch.ids.shape[1] - batch.clean_rows
    base = training.hidden(model, batch)
    weights = tool.give_adapter(model, 4, seed=0)
    assert [weight.requires_grad for weight in model.parameters()].count(True) == len(weights) == 2 * 2
    assert torch.equal(training.hidden(model, batch, rows), base)
    with torch.no_grad():
        for weight in weights:
            weight.add_(0.1)
    adapted = training.hidden(model, batch, rows)
    assert torch.equal(adapted[:, :-rows], base[:, :-rows]) and not torch.isclose(adapted[:, -rows:], base[:, -rows:]).all()
    logits, targets = tool.predictions(model, batch)
    wanted = batch.targets[:, batch.clean_rows :]
    assert torch.equal(targets, wanted[wanted >= 0]) and len(logits) == len(targets)
    assert torch.equal(
        logits,
        model.head(
            model.norm(
                adapted[batch.targets.where(torch.arange(batch.ids.shape[1]) >= batch.clean_rows, torch.tensor(-100)) >= 0]
            )
        ),
    )


def test_only_the_adapter_learns_and_the_file_holds_it(model, tokenizer, tmp_path):
    write_nemotron(model, tmp_path)
    weights = tool.give_adapter(model, 4, seed=0)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    first = tool.evaluate(model, tokenizer, 8, 12)
    tool.train(model, tokenizer, weights, steps=30, size=4, rate=3e-2)
    trained = tool.evaluate(model, tokenizer, 8, 12)
    assert trained["loss"] < first["loss"] - 0.2
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]) != (".adapter." in name)
    write_adapter(model, tmp_path / tool.NAME, alpha=8.0)
    loaded = load_model(tmp_path, device="cpu", adapter=tool.NAME)
    assert tool.evaluate(loaded, tokenizer, 8, 12) == pytest.approx(trained)


def test_what_is_told_of_held_out_problems(model, tokenizer, monkeypatch):
    def wrong_third(model, batch):
        """Right but for the third draft of each block."""
        targets = batch.targets[:, batch.clean_rows :].clone()
        given = targets.clone()
        given[:, 3::8] = (targets[:, 3::8] + 1) % training.VOCABULARY
        logits = torch.nn.functional.one_hot(given[targets >= 0], training.VOCABULARY) * 50.0
        return logits, targets[targets >= 0]

    monkeypatch.setattr(tool, "predictions", wrong_third)
    told = tool.evaluate(model, tokenizer, 8, 6)
    texts = [training.encode(tokenizer, p) for p in itertools.islice(tool.problems(tool.HELD_OUT_SEED, held_out=True), 6)]
    batch = tool.make_batch(texts, 8, tool.random.Random(0))
    drafts = (batch.targets[:, batch.clean_rows :].reshape(-1, 8) >= 0).sum(1)
    wrong = (drafts >= 3).sum() / drafts.sum()
    assert told["right"] == pytest.approx(1 - wrong.item()) and told["loss"] == pytest.approx(50 * wrong.item())
    assert told["leading"] == pytest.approx(drafts.clamp(max=2).float().mean().item())
