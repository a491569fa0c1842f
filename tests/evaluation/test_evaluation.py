"""Reading problems, scoring answers, summing up, and teacher forcing."""

from __future__ import annotations

import json

import pytest
import torch

from packed_ss import Branched, Decoder
from packed_ss.evaluation.options import parse_schedule
from packed_ss.evaluation.problems import final_answer, read_problems
from packed_ss.evaluation.totals import Totals
from packed_ss.evaluation.verify import verify
from tests.support.checkpoints import random_config, random_model


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("14 + 9 = 23.\nThe answer is 23.", "23"),
        ("The answer is 1. No: The answer is -2.", "-2"),
        ("The answer is unknown.", None),
        ("", None),
    ],
)
def test_the_last_stated_answer_counts(text, answer):
    assert final_answer(text) == answer


def test_problems_are_read_up_to_the_limit(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": i}) + "\n\n" for i in range(5)))
    assert [(p.question, p.answer) for p in read_problems(path, 2)] == [("q0", "0"), ("q1", "1")]
    assert len(read_problems(path)) == 5


@pytest.mark.parametrize("line", ["{", "[]", '{"question": "q"}', "3"])
def test_what_is_no_problem_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "q", "answer": "1"}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"p\.jsonl line 2"):
        read_problems(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match="no records"):
        read_problems(path)


def test_schedules_are_parsed():
    assert parse_schedule("packed") == "packed"
    assert parse_schedule("branched:4,0") == Branched((0, 4))
    for text in ("fast", "branched", "branched:", "branched:a", "branched:0,-1", "Packed"):
        with pytest.raises(ValueError, match=repr(text)[1:-1]):
            parse_schedule(text)


def test_rates_multiply_to_throughput():
    s = Totals("packed", 10, tokens=500, nfe=125, seconds=2.5, correct=0.5, equal=10)
    assert s.tokens_per_nfe == 4.0
    assert s.ms_per_nfe == 20.0
    assert s.tokens_per_second == pytest.approx(s.tokens_per_nfe / s.ms_per_nfe * 1e3) == 200.0


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "verification": "coupled"}])
def test_teacher_forcing_accepts_the_decoder_and_finds_a_changed_token(sampling):
    model = random_model(random_config(1), 1, torch.float64)
    prompt = [1, 2, 3]
    out = (
        Decoder(model, "packed", block_size=4, max_length=64)
        .generate(prompt, max_new_tokens=20, eos_token_id=[], seed=7, **sampling)
        .tokens[0]
        .tolist()
    )
    noise = {k: v for k, v in sampling.items() if k != "verification"} | {"seed": 7}
    report = verify(model, prompt, out, **noise)
    assert report.tokens == len(out) == 20
    assert report.mismatches == []
    assert report.smallest_gap > 0
    wrong = (out[4] + 1) % model.config.vocab_size
    report = verify(model, prompt, [*out[:4], wrong, *out[5:]], **noise)
    first = report.mismatches[0]
    assert (first.index, first.token, first.expected) == (4, wrong, out[4])
    assert first.gap > 0
    if sampling:
        assert verify(model, prompt, out, **(noise | {"seed": 8})).mismatches


def test_an_empty_output_has_nothing_to_object_to():
    model = random_model(random_config(1), 1, torch.float64)
    assert verify(model, [1], []).mismatches == []
