"""The training rows of the any-order checkpoint, its evaluation, and the training loop that can be resumed."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import random
import sys
from pathlib import Path

import pytest
import torch

from packed_ss import load_model
from packed_ss.reference.ordered_schedules import autoregressive
from tests.support.checkpoints import random_model
from tests.support.ordered import OrderedDense

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import problems as text  # noqa: E402
import train_tiny  # noqa: E402
import train_tiny_set as tool  # noqa: E402
import training  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(ROOT / "packed_ss/assets/tiny/tokenizer.json"))


def test_orders_are_left_to_right_or_stay_inside_their_windows():
    r = random.Random(0)
    orders = [tool.draw_order(60, r) for _ in range(400)]
    assert all(sorted(order) == list(range(60)) for order in orders)
    straight = sum(order == list(range(60)) for order in orders)
    assert 0.6 < straight / 400 < 0.8
    reach = []
    for order in orders:
        seen, reach_here = set(), 0
        for j in order:
            leftmost = min(set(range(60)) - seen)
            reach_here = max(reach_here, j - leftmost)
            seen.add(j)
        reach.append(reach_here)
    assert max(reach) < max(tool.SPREADS) == tool.tiny_set_config().horizon
    assert max(reach) > 24 and sum(8 <= x < 16 for x in reach) > 20  # of every spread


def test_drafting_masks_are_open_positions_of_the_window_after_their_cut():
    r = random.Random(1)
    straight, beyond, distances = 0, 0, set()
    for length in (1, 2, 30, 60):
        for order in [list(range(length)), *(tool.draw_order(length, r) for _ in range(20))]:
            drafts = tool.draw_drafts(order, r)
            assert len(drafts) == tool.DRAFT_ROWS
            for cut, j in drafts:
                done = set(order[:cut])
                leftmost = min(set(range(length)) - done)
                assert 0 <= cut < length and j not in done and leftmost <= j < leftmost + max(tool.WINDOWS)
                beyond += j >= length
                straight += order == sorted(order)
                distances.add(j - leftmost)
    assert beyond > 50 and straight > 500 and distances == set(range(max(tool.WINDOWS)))


def test_rows_see_what_they_will_see_when_decoding(tokenizer):
    texts = [training.encode(tokenizer, p) for p in itertools.islice(text.problems(9), 12)]
    batch = tool.make_batch(texts, random.Random(0))
    clean, answers = batch.clean_rows, max(len(a) for _, a in texts)
    assert batch.parts == (slice(clean, clean + answers), slice(clean + answers, None))
    assert batch.ids.shape[1] == clean + answers + tool.DRAFT_ROWS
    shuffled = 0
    for i, (prompt, answer) in enumerate(texts):
        p, a = len(prompt), len(answer)
        visible, positions, ids, targets = batch.visible[i, 0], batch.positions[i], batch.ids[i], batch.targets[i]
        order = (positions[p : p + a] - p).tolist()
        shuffled += order != list(range(a))
        assert positions[:p].tolist() == list(range(p)) and sorted(order) == list(range(a))
        assert ids[:p].tolist() == prompt and ids[p : p + a].tolist() == [answer[j] for j in order]
        assert (targets[:clean] == -100).all() and (ids[clean : clean + a] == training.MASK).all()

        def seen(row: int, visible: torch.Tensor = visible) -> list[int]:
            return visible[row].nonzero()[:, 0].tolist()

        for row in range(p + a):
            assert seen(row) == list(range(row + 1))
        for rank in range(a):  # the mask of the token at this rank
            row = clean + rank
            assert positions[row] == positions[p + rank] and targets[row] == ids[p + rank]
            assert seen(row) == [*range(p + rank), row]
        assert (targets[clean + a : clean + answers] == -100).all()
        for row in range(clean + answers, len(ids)):
            *context, itself = seen(row)
            cut, j = len(context) - p, int(positions[row]) - p
            assert itself == row and context == list(range(p + cut)) and 0 <= cut < a and ids[row] == training.MASK
            assert j not in order[:cut] and targets[row] == (answer[j] if j < a else training.EOS)
    assert 0 < shuffled < len(texts)


def test_batches_can_be_resumed_at_any_step_and_hold_the_other_checkpoints_problems(tokenizer):
    whole = list(itertools.islice(tool.batches(tokenizer, 2, 0), 40))
    for step in (0, 7, 31, 32, 35):
        resumed = next(tool.batches(tokenizer, 2, step))
        for name in ("ids", "positions", "targets", "visible"):
            assert torch.equal(getattr(resumed, name), getattr(whole[step], name))
    theirs = next(iter(train_tiny.batches(tokenizer, 2, 0)))
    for ours, other in zip(whole[0].ids[:, : whole[0].clean_rows], theirs.ids[:, : theirs.clean_rows], strict=True):
        assert sorted(ours.tolist()) == sorted(other.tolist())


def test_every_problem_of_a_pool_is_in_one_batch_with_randomness_of_its_own(tokenizer):
    r = random.Random(training.TRAIN_SEED * 1_000_003)
    stream = text.problems(r.randrange(2**62))
    expected = [training.encode(tokenizer, next(stream)) for _ in range(2 * training.POOL_STEPS)]
    steps = list(itertools.islice(training.text_batches(tokenizer, 2, 0, lambda r: None), training.POOL_STEPS))
    assert sorted(one for texts, _, _ in steps for one in texts) == sorted(expected)
    assert len({r.random() for _, _, r in steps}) == training.POOL_STEPS


def test_batches_are_made_with_the_steps_own_randomness(tokenizer, monkeypatch):
    made = []
    monkeypatch.setattr(tool, "make_batch", lambda texts, r: made.append(r.random()))
    steps = itertools.islice(training.text_batches(tokenizer, 2, 0, lambda r: None), 5)
    assert list(itertools.islice(tool.batches(tokenizer, 2, 0), 5)) == [None] * 5
    assert made == [r.random() for _, _, r in steps]


def small_config():
    return dataclasses.replace(
        tool.tiny_set_config(), hidden_size=32, num_layers=2, intermediate_size=48, num_heads=2, num_kv_heads=1, head_dim=16
    )


def test_answers_are_the_references_left_to_right(tokenizer, monkeypatch):
    model = random_model(small_config(), 3, torch.float64)
    model.embed.weight[training.MASK] *= 2  # would be given now and then, were it not excluded
    prompts = [training.encode(tokenizer, p)[0] for p in itertools.islice(text.problems(4), 3)]
    dense = [OrderedDense(model, prompt) for prompt in prompts]
    expected = [autoregressive(one, 6).tokens for one in dense]
    monkeypatch.setattr(tool, "EOS", -1)
    assert tool.answers_left_to_right(model, prompts, 6) == expected
    assert len({token for answer in expected for token in answer}) > 3

    end = expected[0][2]
    monkeypatch.setattr(tool, "EOS", end)
    assert tool.answers_left_to_right(model, prompts, 6) == [autoregressive(one, 6, stop_ids=[end]).tokens for one in dense]


def test_an_answer_ends_with_the_end_token_and_counts_by_its_number(tokenizer, monkeypatch):
    tested = list(itertools.islice(text.problems(5), 4))
    solutions = {tuple(training.encode(tokenizer, p)[0]): training.encode(tokenizer, p)[1] for p in tested}
    wrong = training.encode(tokenizer, dataclasses.replace(tested[1], solution="The answer is -7."))[1]

    def answers(model, prompts):
        return [wrong if i == 1 else solutions[tuple(prompt)] for i, prompt in enumerate(prompts)]

    monkeypatch.setattr(tool, "answers_left_to_right", answers)
    assert tool.right_answers(None, tokenizer, tested) == 3


def run(folder: Path, steps: int, total: int = 40) -> dict:
    """Trains the small model up to a step of a run of ``total`` steps, as if it were stopped there, and returns its state."""
    recipe = training.Recipe(small_config(), tool.batches, ("verifier", "draft"), tool.write_setdlm)
    args = argparse.Namespace(
        work=folder, out=folder / "out", steps=total, batch=4, rate=5e-2, mask_weight=1.0, seed=0, minutes_per_save=0.0, decay=0.4
    )
    real = recipe.batches

    def first_steps(tokenizer, size, step):
        return itertools.islice(real(tokenizer, size, step), max(steps - step, 0))

    training.train(dataclasses.replace(recipe, batches=first_steps), args)
    return torch.load(folder / "state.pt", weights_only=True)


def test_a_run_that_is_stopped_ends_in_the_same_weights(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train_tokenizer", lambda: tokenizer)
    whole = run(tmp_path / "whole", 40)
    stopped = run(tmp_path / "stopped", 5)
    assert stopped["step"] == 5
    resumed = run(tmp_path / "stopped", 40)
    assert whole["step"] == resumed["step"] == 40
    assert all(torch.equal(weight, resumed["model"][name]) for name, weight in whole["model"].items())
    assert not torch.equal(stopped["model"]["embed.weight"], resumed["model"]["embed.weight"])

    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == list(range(1, 41))
    assert (tmp_path / "stopped" / "log.jsonl").read_text() == (tmp_path / "whole" / "log.jsonl").read_text()
    for name in ("verifier_loss", "draft_loss"):
        assert sum(line[name] for line in log[-10:]) / 10 < log[0][name] - 1.0

    out = tmp_path / "whole" / "out"
    assert sorted(p.name for p in out.iterdir()) == [
        "base_config.json",
        "chat_template.jinja",
        "config.json",
        "held_out.jsonl",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for name in ("held_out.jsonl", "tokenizer.json", "chat_template.jinja", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (ROOT / "packed_ss/assets/tiny" / name).read_bytes()
    loaded = load_model(out, device="cpu")
    assert loaded.config == small_config()
    assert torch.equal(loaded.embed.weight, whole["model"]["embed.weight"].bfloat16().float())
