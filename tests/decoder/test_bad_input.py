"""Refusals name the value and what is accepted, and leave nothing half-done; broken numbers end one text and no more."""

from __future__ import annotations

import copy
import math
import re
import warnings
from typing import Any

import pytest
import torch

from packed_ss import Branched, Decoder, GenerateOutput
from packed_ss.layouts import prefill
from packed_ss.models.transformer import Transformer
from tests.decoder.models import new_decoder, plain, schedules, small_model
from tests.decoder.test_streaming import Recorder
from tests.support.checkpoints import random_config, random_model, random_set_config

NAN, MASK = math.nan, 3
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"temperature": 1.0, "verification": "coupled"},
    "rejection": {"temperature": 1.0, "verification": "rejection"},
}

REFUSED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"max_new_tokens": -1}, ("max_new_tokens", "-1", "at least 0")),
    ({"max_new_tokens": True}, ("max_new_tokens", "True", "at least 0")),
    ({"max_new_tokens": 2.0}, ("max_new_tokens", "2.0", "at least 0")),
    ({"max_new_tokens": "4"}, ("max_new_tokens", "'4'", "at least 0")),
    ({"max_new_tokens": None}, ("max_new_tokens", "None", "at least 0")),
    ({"input_ids": []}, ("prompt", "empty", "at least one")),
    ({"input_ids": torch.tensor([], dtype=torch.int64)}, ("prompt", "empty", "at least one")),
    ({"input_ids": [[0], []]}, ("prompt 1", "empty", "at least one")),
    ({"input_ids": [0, 5]}, ("5", "[0, 5)")),
    ({"input_ids": [0, -1]}, ("-1", "[0, 5)")),
    ({"input_ids": [[0], [2, 131072]]}, ("prompt 1", "131072", "[0, 5)")),
    ({"input_ids": torch.tensor([0, 7])}, ("7", "[0, 5)")),
    ({"input_ids": [0, 1.0]}, ("1.0", "[0, 5)")),
    ({"input_ids": [0, True]}, ("True", "[0, 5)")),
    ({"input_ids": torch.tensor([0.0, 1.0])}, ("torch.float32", "integer")),
    ({"input_ids": torch.zeros(1, 2, 2, dtype=torch.int64)}, ("(1, 2, 2)", "1-D")),
    ({"input_ids": torch.tensor(3)}, ("()", "1-D")),
    ({"input_ids": "hello"}, ("'hello'", "token ids")),
    ({"input_ids": None}, ("None", "token ids")),
    ({"input_ids": 3}, ("3", "token ids")),
    ({"input_ids": [0] * 60}, ("60", "5", "65", "64")),
    ({"input_ids": [0] * 65, "max_new_tokens": 0}, ("65", "64")),
    ({"max_new_tokens": 10**30}, (str(10**30), "64")),
    ({"input_ids": [[0]] * 6}, ("6 prompts", "batch_size", "5")),
    ({"temperature": -0.5}, ("temperature", "-0.5", "0 or more")),
    ({"temperature": NAN}, ("temperature", "nan", "finite")),
    ({"temperature": math.inf}, ("temperature", "inf", "finite")),
    ({"temperature": 10**400}, ("temperature", "finite")),
    ({"temperature": "warm"}, ("temperature", "'warm'", "finite number")),
    ({"temperature": None}, ("temperature", "None", "finite number")),
    ({"temperature": True}, ("temperature", "True", "finite number")),
    ({"top_k": -1}, ("top_k", "-1", "at least 0")),
    ({"top_k": 1.5}, ("top_k", "1.5", "whole")),
    ({"top_p": 0.0}, ("top_p", "0.0", "(0, 1]")),
    ({"top_p": -0.1}, ("top_p", "-0.1", "(0, 1]")),
    ({"top_p": 1.0000001}, ("top_p", "1.0000001", "(0, 1]")),
    ({"top_p": NAN}, ("top_p", "nan", "finite")),
    ({"seed": 1.5}, ("seed", "1.5", "64")),
    ({"seed": None}, ("seed", "None", "64")),
    ({"seed": True}, ("seed", "True", "64")),
    ({"seed": 2**64}, ("seed", str(2**64), "64")),
    ({"seed": -(2**63) - 1}, ("seed", str(-(2**63) - 1), "64")),
    ({"seed": [1, 2]}, ("seed", "[1, 2]", "(1)")),
    ({"seed": ["one"]}, ("seed", "'one'", "64")),
    ({"verification": "typical"}, ("'typical'", "greedy", "rejection", "coupled")),
    ({"verification": None}, ("None", "greedy", "rejection", "coupled")),
    ({"verification": "greedy", "temperature": 0.7}, ("'greedy'", "0.7", "temperature 0")),
    ({"eos_token_id": 5}, ("eos_token_id", "5", "[0, 5)")),
    ({"eos_token_id": [1, -2]}, ("eos_token_id", "-2", "[0, 5)")),
    ({"eos_token_id": 1.0}, ("eos_token_id", "1.0", "token id")),
    ({"eos_token_id": True}, ("eos_token_id", "True", "token id")),
    ({"eos_token_id": "</s>"}, ("eos_token_id", "'</s>'", "token ids")),
    ({"stop_sequences": [[]]}, ("stop sequence 0", "empty", "at least one")),
    ({"stop_sequences": [[1], [0, 9]]}, ("stop sequence 1", "9", "[0, 5)")),
    ({"stop_sequences": "\n\n"}, ("stop_sequences", "list")),
    ({"stop_sequences": ["END"]}, ("stop sequence 0", "'END'", "token ids")),
    ({"stop_sequences": [1, 2]}, ("stop sequence 0", "1", "token ids")),
    ({"stop_sequences": 3}, ("stop_sequences", "3", "list")),
    ({"input_ids": [[0], [2]], "streamer": Recorder()}, ("streamer", "2 prompts", "one")),
]


def one_sentence(error: ValueError, parts: tuple[str, ...]) -> None:
    text = str(error)
    assert "\n" not in text and len(text) < 500 and all(part in text for part in parts), text


@pytest.mark.parametrize(("options", "parts"), REFUSED, ids=[str(parts) for _, parts in REFUSED])
def test_generate_refuses_and_stays_as_it_was(options: dict[str, Any], parts: tuple[str, ...]) -> None:
    decoder = new_decoder(small_model(1))
    before = decoder.generate([0, 2], 8, temperature=1.0)
    keys = decoder.cache.keys.clone()
    streamer = options.get("streamer", Recorder())
    with pytest.raises(ValueError, match=re.escape(parts[0])) as refusal:
        decoder.generate(**({"input_ids": [0, 2], "max_new_tokens": 5, "streamer": streamer} | options))
    one_sentence(refusal.value, parts)
    assert (streamer.puts, streamer.ends) == ([], 0)
    assert torch.equal(decoder.cache.keys, keys)
    after = decoder.generate([0, 2], 8, temperature=1.0)
    assert after.tokens[0].tolist() == before.tokens[0].tolist() and after.advances == before.advances


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"block_size": 1}, ("block_size", "1", "at least 2")),
        ({"block_size": 0}, ("block_size", "0", "at least 2")),
        ({"block_size": -4}, ("block_size", "-4", "at least 2")),
        ({"block_size": 4.0}, ("block_size", "4.0", "whole")),
        ({"block_size": True}, ("block_size", "True", "whole")),
        ({"max_length": 0}, ("max_length", "0", "at least 1")),
        ({"batch_size": 0}, ("batch_size", "0", "at least 1")),
        ({"schedule": "parallel"}, ("'parallel'", "autoregressive", "linear", "packed", "quadratic", "Branched")),
        ({"schedule": None}, ("None", "autoregressive", "linear", "packed", "quadratic", "Branched")),
        ({"schedule": Branched((0, 4)), "block_size": 4}, ("4", "below the block size 4")),
    ],
)
def test_a_decoder_that_cannot_be_is_refused(options: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(parts[0])) as refusal:
        Decoder(small_model(1), **options)
    one_sentence(refusal.value, parts)


@pytest.mark.parametrize("cuts", [(), (1, 2), (0, 0), (0, -1), (0, 1.0), (0, True)])
def test_cuts_that_make_no_schedule_are_refused(cuts: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="distinct whole numbers from 0 on, with 0 among them") as refusal:
        Branched(cuts)
    one_sentence(refusal.value, (str(cuts),))


def test_a_checkpoint_without_a_block_size_needs_one() -> None:
    model = small_model(1, block_size=None)
    with pytest.raises(ValueError, match="block_size is not given"):
        Decoder(model)
    assert Decoder(model, block_size=3, max_length=16).layout.block_size == 3


def test_forms_of_a_prompt_that_are_accepted() -> None:
    decoder, prompt = new_decoder(small_model(1)), [0, 2, 4]
    want = decoder.generate(prompt, 6).tokens[0].tolist()
    for form in (
        tuple(prompt),
        torch.tensor(prompt),
        torch.tensor(prompt, dtype=torch.int32),
        torch.tensor([prompt]),
        [torch.tensor(prompt)],
        list(torch.tensor(prompt)),
        [prompt],
    ):
        assert [tokens.tolist() for tokens in decoder.generate(form, 6).tokens] == [want]
    both = decoder.generate([torch.tensor(prompt), (1,)], 6)
    assert both.tokens[0].tolist() == want and len(both.tokens) == 2
    for eos in (torch.tensor(1), torch.tensor([1]), (1,), 1, None):
        assert decoder.generate(prompt, 6, eos_token_id=eos).tokens[0].tolist() == want


def test_no_new_tokens_need_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = new_decoder(small_model(1))

    def refuse(*_: Any) -> None:
        raise AssertionError("the model was called")

    monkeypatch.setattr(decoder, "forward", refuse)
    out = decoder.generate([[0, 2], [4]], 0)
    assert [tokens.tolist() for tokens in out.tokens] == [[], []] and out.tokens[0].dtype == torch.int64
    assert (out.nfe, out.advances, out.finish_reason) == ([0, 0], [[], []], ["length"] * 2)


def poisoned(model: Transformer, token: int) -> Transformer:
    """A copy whose every row that holds or sees ``token`` is NaN."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.embed.weight[token] = NAN
    return model


def run(out: GenerateOutput) -> list[tuple[list[int], str]]:
    return [(tokens.tolist(), reason) for tokens, reason in zip(out.tokens, out.finish_reason, strict=True)]


@pytest.mark.parametrize("mode", SAMPLING)
def test_nan_ends_its_own_text_with_an_error_and_no_other(mode: str) -> None:
    """Token 2 of one model is NaN: a text ends after emitting it; drafts that hold it hurt nobody who rejects them."""
    model = poisoned(small_model(6), 2)
    prompts, ends = [[0, 4], [1], [4, 4, 0], [0, 2], [1, 0, 0]], set()
    for schedule in schedules(5).values():
        decoder = new_decoder(model, schedule, 5)
        for seed in (0, 70):
            out = decoder.generate(prompts, 8, seed=seed, eos_token_id=[], **SAMPLING[mode])
            assert run(out)[3] == ([], "error") and (out.nfe[3], out.advances[3]) == (1, [0])
            for i, (tokens, reason) in enumerate(run(out)):
                assert 2 not in tokens[:-1] and all(0 <= token < 5 for token in tokens)
                assert (reason == "error") == (i == 3 or (2 in tokens and len(tokens) < 8))
                if mode != "rejection" or schedule == "autoregressive":
                    want = plain(model, prompts[i], 8, "greedy" if mode == "greedy" else "coupled", seed + i)
                    assert (tokens, reason) == (want.tokens, want.finish_reason)
                alone = decoder.generate(prompts[i], 8, seed=seed + i, eos_token_id=[], **SAMPLING[mode])
                assert run(alone) == [(tokens, reason)]
            ends.update(out.finish_reason)
    assert ends == {"error", "length"}


@pytest.mark.parametrize("mode", SAMPLING)
def test_nan_in_the_drafter_changes_no_token(mode: str) -> None:
    """A MASK embedding of NaN spoils every proposal; the text stays that of AR, in rejection too, where nothing is drafted."""
    model = poisoned(small_model(6, 8), MASK)
    with torch.no_grad():  # a token of average logit is hardly ever among the best two, so that texts go on
        model.head.weight[MASK] = model.head.weight[[0, 1, 2, 4, 5, 6, 7]].mean(0)
    options = SAMPLING[mode] | ({} if mode == "greedy" else {"top_k": 2})
    prompts = [[0, 4], [1], [4, 4, 0], [0, 2]]
    done = 0
    for schedule in schedules(5).values():
        decoder = new_decoder(model, schedule, 5)
        for seed in (0, 10):
            out = decoder.generate(prompts, 10, seed=seed, eos_token_id=[], **options)
            want = [
                plain(model, prompt, 10, "greedy" if mode == "greedy" else "coupled", seed + i, top_k=2)
                for i, prompt in enumerate(prompts)
            ]
            assert run(out) == [(one.tokens, one.finish_reason) for one in want]
            done += out.finish_reason.count("length")
            if mode == "rejection":
                assert all(a <= 1 for advances in out.advances for a in advances)
    assert done > 20


def test_models_that_are_nan_throughout() -> None:
    model = copy.deepcopy(small_model(1))
    with torch.no_grad():
        model.norm.weight.fill_(NAN)
    for options in SAMPLING.values():
        for schedule in schedules(4).values():
            out = new_decoder(model, schedule).generate([[0, 2], [1]], 6, **options)
            assert run(out) == [([], "error")] * 2 and out.nfe == [1, 1]


@pytest.mark.parametrize("mode", SAMPLING)
def test_what_the_cache_held_before_cannot_reach_a_text(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    prompts = [[0, 2, 4, 1, 3, 0, 2], [4], [4, 4, 0]]
    for two_call_start, chunks in ((False, (1024, 2)), (True, (2,))):
        for schedule in schedules(4).values():
            decoder = new_decoder(small_model(2, dtype=torch.float32), schedule, 4, two_call_start=two_call_start)
            want = decoder.generate(prompts, 9, eos_token_id=[], **SAMPLING[mode])
            for chunk in chunks:
                for value in (NAN, math.inf):
                    monkeypatch.setattr(prefill, "CHUNK", chunk)
                    decoder.cache.keys.fill_(value)
                    decoder.cache.values.fill_(value)
                    out = decoder.generate(prompts, 9, eos_token_id=[], **SAMPLING[mode])
                    assert run(out) == run(want) and out.advances == want.advances


@pytest.mark.parametrize("vocab_size", [1, 2])
def test_the_smallest_vocabularies(vocab_size: int) -> None:
    model = random_model(random_config(0, vocab_size=vocab_size), 0, torch.float64)
    for options in (*SAMPLING.values(), {"temperature": 1.0, "top_k": 1}, {"temperature": 2.0, "top_p": 0.5, "top_k": 9}):
        for schedule in schedules(4).values():
            decoder = new_decoder(model, schedule)
            out = decoder.generate([[0], [vocab_size - 1] * 3], 7, eos_token_id=[], **options)
            assert all(len(tokens) == 7 and int(tokens.max()) < vocab_size for tokens in out.tokens)
            assert run(decoder.generate([0], 7, eos_token_id=[0, vocab_size - 1], **options))[0][1] == "stop"


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1e30])
def test_extreme_temperatures(temperature: float) -> None:
    """Just above greedy the text is the greedy one, in float32 too; very hot, every token is as likely as any other."""
    model = small_model(2, dtype=torch.float32)
    for verification in ("coupled", "rejection"):
        for schedule in schedules(4).values():
            decoder = new_decoder(model, schedule)
            out = decoder.generate([[0, 2]] * 5, 8, temperature=temperature, verification=verification, eos_token_id=[])
            assert out.finish_reason == ["length"] * 5
            if temperature < 1:
                assert all(tokens.tolist() == plain(model, [0, 2], 8).tokens for tokens in out.tokens)
            else:
                assert len({tuple(tokens.tolist()) for tokens in out.tokens}) == 5
    greedy = decoder.generate([0, 2], 8, temperature=0.9e-5)
    assert greedy.tokens[0].tolist() == plain(model, [0, 2], 8, stop_ids=[1]).tokens


ORDERED: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ("window is not given",)),
    ({"window": 0}, ("window is 0", "from 1 to 1024")),
    ({"window": True}, ("window is True", "from 1 to 1024")),
    ({"window": 2.0}, ("window is 2.0", "from 1 to 1024")),
    ({"window": 1025}, ("window is 1025", "from 1 to 1024")),
    ({"window": 4, "block_size": 4}, ("block_size is 4", "an ordered one, such as SetDLM", "window and order")),
    ({"window": 4, "two_call_start": True}, ("two_call_start is True", "an ordered one, such as SetDLM", "window and order")),
    ({"window": 4, "order": "right_to_left"}, ("'right_to_left'", "'left_to_right' or 'confidence', or a function")),
    ({"window": 4, "order": 3}, ("order is 3", "'left_to_right' or 'confidence', or a function")),
    ({"window": 4, "schedule": "serial"}, ("'serial'", "autoregressive, linear, packed, quadratic, native")),
    ({"window": 4, "schedule": Branched((0, 4))}, ("cut 4", "below the window 4")),
    ({"window": 4, "schedule": "native", "order": "confidence"}, ("'confidence'", "native", "left_to_right is accepted")),
]


@pytest.mark.parametrize(("arguments", "parts"), ORDERED)
def test_arguments_of_an_ordered_decoder_that_are_refused(arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(parts[0])) as refusal:
        Decoder(random_model(random_set_config(0)), **arguments)
    one_sentence(refusal.value, parts)


@pytest.mark.parametrize("arguments", [{"window": 4}, {"order": "left_to_right"}])
def test_arguments_of_the_other_layout_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="of the block layout, such as Nemotron-Labs-Diffusion, which takes block") as refusal:
        Decoder(small_model(1), **arguments)
    one_sentence(refusal.value, (next(iter(arguments)),))


@pytest.mark.parametrize("returned", [(), (1, 2, 3), (1, 2, 3, 3), (1, 2, 3, 5), (1, 2, 3, 4, 4), 7, None])
def test_an_order_that_is_no_permutation_of_the_window_is_refused(returned: Any) -> None:
    decoder = Decoder(random_model(random_set_config(0)), window=4, max_length=20, order=lambda window: returned)
    with pytest.raises(ValueError, match=r"for the window \[1, 2, 3, 4\], but a permutation of it is accepted") as refusal:
        decoder.generate([0, 2], 8)
    one_sentence(refusal.value, ("the order function returned",))


@pytest.mark.parametrize(("schedule", "order"), [("packed", "confidence"), ("linear", lambda window: window), ("native", None)])
def test_sampling_needs_left_to_right(schedule: str, order: Any) -> None:
    decoder = Decoder(random_model(random_set_config(0)), schedule, window=4, max_length=20, order=order)
    with pytest.raises(ValueError, match="temperature") as refusal:
        decoder.generate([0, 2], 8, temperature=0.5)
    one_sentence(refusal.value, ("0.5", "native" if schedule == "native" else "would depend on the draws"))


def test_a_window_beyond_the_horizon_is_warned_of() -> None:
    model = random_model(random_set_config(0))
    with pytest.warns(UserWarning, match=r"^the window is 17, but the checkpoint's horizon is 16 positions$"):
        Decoder(model, window=17, max_length=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Decoder(model, window=16, max_length=40)
