"""Streamers see the prompt, then exactly the output, in order and once."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from itertools import accumulate
from threading import Thread
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer, TextStreamer

from tests.decoder.models import Scripted, new_decoder, schedules, small_model
from tests.reference.toy_models import TableModel

PROMPT = [0, 2, 4, 1]
WORDS = ["zero", "one", "two", "three", "four"]


class Recorder:
    """Keeps what it was given; raises at put number ``fails_at``."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.puts: list[list[int]] = []
        self.ends, self.fails_at = 0, fails_at

    def put(self, value: torch.Tensor) -> None:
        assert self.ends == 0
        assert value.dtype == torch.int64 and value.dim() == 1 and value.device.type == "cpu"
        if len(self.puts) == self.fails_at:
            raise RuntimeError("the terminal is gone")
        self.puts.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="zero"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words)


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 1.0, "seed": 6}, {"temperature": 1.0, "verification": "coupled"}],
    ids=["greedy", "rejection", "coupled"],
)
def test_a_streamer_gets_the_prompt_then_each_calls_tokens_then_one_end(options: dict[str, Any]) -> None:
    for schedule in schedules(5).values():
        decoder = new_decoder(small_model(2), schedule, 5)
        for stops in ({"eos_token_id": []}, {"eos_token_id": None}, {"stop_sequences": [[0, 4], [2, 2]]}):
            silent, seen = decoder.generate(PROMPT, 14, **options, **stops), Recorder()
            out = decoder.generate(torch.tensor(PROMPT), 14, streamer=seen, **options, **stops)
            assert out.tokens[0].tolist() == silent.tokens[0].tolist()
            assert seen.puts[0] == PROMPT and seen.ends == 1
            assert [token for put in seen.puts[1:] for token in put] == out.tokens[0].tolist()
            assert [len(put) for put in seen.puts[1:]] == [a for a in out.advances[0] if a]


def test_nothing_after_a_stop_inside_a_run_is_streamed() -> None:
    model, inside = TableModel(3, 5, 0.9), 0
    free = Scripted(model.verifier, model.drafter, 5, "packed", 5).generate(PROMPT, 14, eos_token_id=[])
    text, ends = free.tokens[0].tolist(), list(accumulate(free.advances[0]))
    for size in range(1, 14):
        seen = Recorder()
        decoder = Scripted(model.verifier, model.drafter, 5, "packed", 5)
        decoder.generate(PROMPT, 14, eos_token_id=[], stop_sequences=[text[:size]], streamer=seen)
        assert [token for put in seen.puts[1:] for token in put] == text[:size] and seen.ends == 1
        inside += size not in ends
    assert inside > 3


def test_no_tokens_stream_as_a_prompt_and_an_end() -> None:
    seen = Recorder()
    new_decoder(small_model(2)).generate(PROMPT, 0, streamer=seen)
    assert (seen.puts, seen.ends) == ([PROMPT], 1)


def test_transformers_streamers() -> None:
    decoder = new_decoder(small_model(2), "packed", 5)
    out = decoder.generate(PROMPT, 12, eos_token_id=[])
    words = [WORDS[token] for token in out.tokens[0]]
    printed = io.StringIO()
    with redirect_stdout(printed):
        decoder.generate(PROMPT, 12, eos_token_id=[], streamer=TextStreamer(tokenizer(), skip_prompt=True))
    assert printed.getvalue().split() == words
    with redirect_stdout(printed):
        decoder.generate(PROMPT, 12, eos_token_id=[], streamer=TextStreamer(tokenizer()))
    assert printed.getvalue().split() == words + [WORDS[token] for token in PROMPT] + words

    stream = TextIteratorStreamer(tokenizer(), skip_prompt=True, timeout=60)
    worker = Thread(target=decoder.generate, args=(PROMPT, 12), kwargs={"eos_token_id": [], "streamer": stream})
    worker.start()
    pieces = list(stream)
    worker.join()
    assert "".join(pieces).split() == words and len(pieces) > 2


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_a_streamer_that_raises_leaves_the_decoder_usable(fails_at: int) -> None:
    for schedule in schedules(5).values():
        decoder = new_decoder(small_model(2), schedule, 5)
        options = {"max_new_tokens": 12, "temperature": 1.0, "eos_token_id": []}
        before = decoder.generate(PROMPT, **options)
        with pytest.raises(RuntimeError, match="terminal"):
            decoder.generate([4, 4], streamer=Recorder(fails_at), **options)
        after = decoder.generate(PROMPT, **options)
        assert after.tokens[0].tolist() == before.tokens[0].tolist() and after.advances == before.advances
