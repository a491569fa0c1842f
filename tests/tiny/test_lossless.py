"""The bundled checkpoint: every schedule gives plain AR's text, and AR is what an independent implementation emits."""

from __future__ import annotations

import pytest
import torch

from packed_ss import Branched, Decoder, load_model, load_tokenizer
from packed_ss.evaluation.problems import final_answer, read_problems
from packed_ss.evaluation.prompts import chat_prompt
from tests.support.oracle import ministral3

NEW_TOKENS = 160


class Tiny:
    """The checkpoint in float32, the held-out prompts, and plain AR's greedy continuation of each."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load_model("tiny", dtype=torch.float32, device="cpu"), load_tokenizer("tiny")
        self.problems = read_problems(self.model.source / "held_out.jsonl")
        self.prompts = [chat_prompt(self.tokenizer, p.question) for p in self.problems]
        self.longest = max(map(len, self.prompts)) + NEW_TOKENS
        self.expected = self.decode("autoregressive", 16, batch=25)

    def decode(self, schedule, block_size: int, batch: int, count: int | None = None, **sampling) -> list[list[int]]:
        decoder = Decoder(self.model, schedule, block_size=block_size, max_length=self.longest, batch_size=batch)
        prompts, out = self.prompts[:count], []
        for i in range(0, len(prompts), batch):
            part = prompts[i : i + batch]
            result = decoder.generate(part, max_new_tokens=NEW_TOKENS, seed=range(i, i + len(part)), **sampling)
            assert set(result.finish_reason) <= {"stop", "length"}
            out += [tokens.tolist() for tokens in result.tokens]
        return out


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny()


def test_four_in_five_final_answers_are_right(tiny):
    texts = [tiny.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in tiny.expected]
    right = sum(final_answer(text) == p.answer for text, p in zip(texts, tiny.problems, strict=True))
    assert len(texts) == 200
    assert right >= 160


def test_autoregressive_output_is_what_transformers_emits(tiny):
    """Teacher forcing through Ministral3ForCausalLM: its argmax after every prefix is the next token of ours."""
    oracle = ministral3(tiny.model)
    for prompt, tokens in zip(tiny.prompts, tiny.expected, strict=True):
        with torch.no_grad():
            logits = oracle(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens


def test_transformers_generate_gives_the_same_text(tiny):
    oracle = ministral3(tiny.model)
    for prompt, tokens in list(zip(tiny.prompts, tiny.expected, strict=True))[:3]:
        with torch.no_grad():
            out = oracle.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=list(tiny.model.config.eos_token_ids),
                pad_token_id=0,
            )
        assert out[0, len(prompt) :].tolist() == tokens


SCHEDULES = ["linear", "packed", "quadratic", Branched((0, 1))]


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("block_size", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: getattr(s, "cuts", s) if isinstance(s, str) else "branched")
def test_greedy_output_is_the_autoregressive_output(tiny, schedule, block_size, batch):
    count = 200 if schedule != "quadratic" or block_size <= 8 else 20  # bench/lossless.py runs all of them
    assert tiny.decode(schedule, block_size, batch, count) == tiny.expected[:count]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s if isinstance(s, str) else "branched")
def test_coupled_samples_are_the_autoregressive_samples(tiny, schedule):
    sampling = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "verification": "coupled"}
    expected = tiny.decode("autoregressive", 16, 10, 20, **sampling)
    assert expected != tiny.expected[:20]
    for block_size, batch in ((4, 1), (16, 5), (32, 4)):
        assert tiny.decode(schedule, block_size, batch, 20, **sampling) == expected
