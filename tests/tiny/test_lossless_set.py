"""The bundled ordered checkpoint: every schedule and order gives the serial text, and left to right the autoregressive one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from packed_ss import Branched, Decoder, load_model, load_tokenizer
from packed_ss.evaluation.ordered_trace import Trace, wrong_pairs
from packed_ss.evaluation.problems import final_answer, read_problems
from packed_ss.evaluation.prompts import chat_prompt
from packed_ss.evaluation.verify import verify
from tests.support.oracle import qwen3

NEW_TOKENS, BATCH = 160, 25


class TinySet:
    """The checkpoint in float32, the held-out prompts, and the autoregressive greedy continuation of each."""

    def __init__(self) -> None:
        self.model, self.tokenizer = load_model("tiny-set", dtype=torch.float32, device="cpu"), load_tokenizer("tiny-set")
        self.problems = read_problems(self.model.source / "held_out.jsonl")
        self.prompts = [chat_prompt(self.tokenizer, p.question) for p in self.problems]
        self.longest = max(map(len, self.prompts)) + NEW_TOKENS
        self.expected = self.decode("autoregressive", window=1)

    def decode(
        self,
        schedule: Any,
        *,
        window: int,
        order: str | None = None,
        batch: int = BATCH,
        count: int | None = None,
        **sampling: Any,
    ) -> list[list[int]]:
        """Texts; in the order of confidence none whose tokens are not the serial ones."""
        trace = Trace() if order else None
        decoder = Decoder(
            self.model, schedule, window=window, order=order, max_length=self.longest, batch_size=batch, observer=trace
        )
        prompts, out = self.prompts[:count], []
        for i in range(0, len(prompts), batch):
            part = prompts[i : i + batch]
            result = decoder.generate(part, max_new_tokens=NEW_TOKENS, seed=range(i, i + len(part)), **sampling)
            assert set(result.finish_reason) <= {"stop", "length"}
            out += [tokens.tolist() for tokens in result.tokens]
            if trace is not None:
                for prompt, pairs in zip(part, trace.pairs, strict=True):
                    assert not wrong_pairs(self.model, prompt, pairs)
        return out

    def right(self, texts: list[list[int]]) -> int:
        answers = [final_answer(self.tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in texts]
        return sum(answer == p.answer for answer, p in zip(answers, self.problems, strict=True))


@pytest.fixture(scope="module")
def tiny_set() -> TinySet:
    return TinySet()


def test_most_final_answers_are_right(tiny_set: TinySet) -> None:
    assert len(tiny_set.expected) == 200
    assert tiny_set.right(tiny_set.expected) >= 150


def test_the_causal_prompt_pass_is_qwen3s(tiny_set: TinySet) -> None:
    """The keys and values of a prompt are those of Qwen3ForCausalLM: so are its logits, row by row."""
    oracle = qwen3(tiny_set.model)
    decoder = Decoder(tiny_set.model, window=4, max_length=tiny_set.longest)
    for prompt in tiny_set.prompts[:10]:
        decoder.generate(prompt, max_new_tokens=1)
        with torch.no_grad():
            cache = oracle(torch.tensor([prompt]), use_cache=True).past_key_values
        for i, layer in enumerate(cache.layers):
            for ours, theirs in ((decoder.cache.keys, layer.keys), (decoder.cache.values, layer.values)):
                torch.testing.assert_close(ours[i, 0, : len(prompt)], theirs[0].transpose(0, 1), rtol=1e-4, atol=1e-4)


def test_the_autoregressive_text_is_the_argmax_of_mask_rows(tiny_set: TinySet) -> None:
    for prompt, tokens in zip(tiny_set.prompts, tiny_set.expected, strict=True):
        assert not verify(tiny_set.model, prompt, tokens).mismatches


SCHEDULES = ["linear", "packed", "quadratic", Branched((0, 1))]


@pytest.mark.parametrize("window", [4, 8, 16])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s if isinstance(s, str) else "branched")
def test_left_to_right_is_the_autoregressive_text(tiny_set: TinySet, schedule: Any, window: int) -> None:
    count = 200 if schedule != "quadratic" or window <= 8 else 25  # bench/lossless.py runs all of them
    assert tiny_set.decode(schedule, window=window, count=count) == tiny_set.expected[:count]


@pytest.mark.parametrize("window", [4, 8, 16])
@pytest.mark.parametrize("schedule", SCHEDULES[:3])
def test_by_confidence_every_token_is_the_serial_one(tiny_set: TinySet, schedule: Any, window: int) -> None:
    count = 200 if schedule != "quadratic" or window <= 8 else 25
    texts = tiny_set.decode(schedule, window=window, order="confidence", count=count)
    same = sum(a == b for a, b in zip(texts, tiny_set.expected, strict=False))
    assert 0 < same < count + (window < 16)  # another order has other conditionals


def test_one_by_one_as_in_batches(tiny_set: TinySet) -> None:
    for schedule in SCHEDULES[:2]:
        assert tiny_set.decode(schedule, window=8, batch=1, count=20) == tiny_set.expected[:20]
        texts = tiny_set.decode(schedule, window=8, order="confidence", batch=1, count=20)
        assert texts == tiny_set.decode(schedule, window=8, order="confidence", batch=5, count=20)


def test_coupled_samples_are_the_autoregressive_samples(tiny_set: TinySet) -> None:
    sampling = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "verification": "coupled"}
    expected = tiny_set.decode("autoregressive", window=1, count=20, **sampling)
    assert expected != tiny_set.expected[:20]
    for schedule in SCHEDULES:
        assert tiny_set.decode(schedule, window=8, batch=5, count=20, **sampling) == expected


def test_native_answers_with_fewer_calls(tiny_set: TinySet) -> None:
    texts = tiny_set.decode("native", window=8)
    assert tiny_set.right(texts) >= 100
