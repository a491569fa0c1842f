"""The generated problems and the training rows made of them."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import problems as text  # noqa: E402
import train_tiny as training  # noqa: E402

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}


def test_every_worked_step_is_right_and_the_last_is_the_answer():
    steps = 0
    for problem in itertools.islice(text.problems(11), 4000):
        for a, sign, b, c in re.findall(r"(\d+) ([-+*/]) (\d+) = (-?\d+)", problem.solution):
            assert OPERATIONS[sign](int(a), int(b)) == int(c) >= 0, problem
            steps += 1
        assert text.final_answer(problem.solution) == problem.answer
        assert re.findall(r"= (-?\d+)", problem.solution)[-1] == problem.answer
    assert steps > 8000


def test_the_same_seed_gives_the_same_problems_and_the_sides_do_not_meet():
    first = list(itertools.islice(text.problems(5), 300))
    assert first == list(itertools.islice(text.problems(5), 300))
    assert first != list(itertools.islice(text.problems(6), 300))
    held_out = [p.question for p in itertools.islice(text.problems(5, held_out=True), 100)]
    assert all(text.is_held_out(q) for q in held_out)
    assert not any(text.is_held_out(p.question) for p in first)


def test_shipped_problems_are_the_ones_that_the_tool_holds_out():
    shipped = [json.loads(line) for line in (ROOT / "packed_ss/assets/tiny/held_out.jsonl").read_text().splitlines()]
    made = itertools.islice(text.problems(training.HELD_OUT_SEED, held_out=True), training.HELD_OUT_PROBLEMS)
    assert shipped == [{"question": p.question, "solution": p.solution, "answer": p.answer} for p in made]
    assert len(shipped) == 200


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(ROOT / "packed_ss/assets/tiny/tokenizer.json"))


def test_text_survives_the_tokenizer(tokenizer):
    for problem in itertools.islice(text.problems(3), 50):
        prompt, answer = training.encode(tokenizer, problem)
        assert tokenizer.decode(prompt) == problem.question
        assert tokenizer.decode(answer) == problem.solution
        assert answer[-1] == training.EOS


def test_rows_see_what_they_will_see_when_decoding(tokenizer):
    """Clean rows are causal; a block sees the clean rows before its first token, itself, and nothing else."""
    texts = [training.encode(tokenizer, p) for p in itertools.islice(text.problems(9), 3)]
    block = 16
    batch = training.make_batch(texts, block, random.Random(0))
    clean = batch.clean_rows
    for i, (prompt, answer) in enumerate(texts):
        ids = torch.tensor(prompt + answer)
        visible = batch.visible[i, 0]
        assert torch.equal(visible[:clean, :clean], torch.ones(clean, clean).tril().bool())
        assert not visible[:clean, clean:].any()
        for at in range(clean, batch.ids.shape[1], block):
            start = int(batch.positions[i, at])
            assert len(prompt) - 1 <= start < len(ids) - 1
            assert batch.ids[i, at] == ids[start]
            assert (batch.ids[i, at + 1 : at + block] == training.MASK).all()
            assert batch.positions[i, at : at + block].tolist() == list(range(start, start + block))
            seen = visible[at : at + block]
            assert seen[:, :start].all()
            assert not seen[:, start:clean].any()
            assert seen[:, at : at + block].all()
            assert seen.sum() == block * (start + block)
            for j in range(1, block):
                wanted = int(ids[start + j]) if start + j < len(ids) else -100
                assert batch.targets[i, at + j] == wanted
            assert batch.targets[i, at] == -100


def test_batches_can_be_resumed_at_any_step(tokenizer):
    whole = list(itertools.islice(training.batches(tokenizer, 2, 0), 40))
    for step in (0, 7, 31, 32, 35):
        resumed = next(training.batches(tokenizer, 2, step))
        assert torch.equal(resumed.ids, whole[step].ids)
        assert torch.equal(resumed.targets, whole[step].targets)
