"""Greedy and coupled decoding emit the autoregressive text, token for token, whatever the schedule, B, batch or start."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from packed_ss import Branched, Decoder, GenerateOutput
from packed_ss.layouts import prefill
from packed_ss.models.transformer import Transformer
from packed_ss.reference import Generation
from tests.decoder.models import FullShape, new_decoder, plain, schedules, small_model

RAGGED = [[0, 2, 4, 1, 3], [2], [4, 4, 0], [3, 3, 3, 3, 3, 3, 3, 3, 3], [1, 0]]  # 3 is MASK, 1 the checkpoint's stop id
HOT = {"temperature": 0.9, "verification": "coupled"}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": HOT,
    "coupled, filtered": {"temperature": 1.4, "verification": "coupled", "top_k": 4, "top_p": 0.8},
}
STOPS: dict[str, dict[str, Any]] = {
    "endless": {"eos_token_id": []},
    "one id": {"eos_token_id": None},
    "ids and sequences": {"eos_token_id": [1], "stop_sequences": [[0, 4], [2, 2, 2], [4, 3, 0]]},
}


@cache
def expected(model_seed: int, mode: str, stop: str, L: int, seed: int, prompt: tuple[int, ...]) -> Generation:
    """The text of naive decoding."""
    settings = {key: value for key, value in MODES[mode].items() if key != "verification"}
    eos = STOPS[stop]["eos_token_id"]
    stops = {"stop_ids": [1] if eos is None else eos, "stop_sequences": STOPS[stop].get("stop_sequences", ())}
    return plain(small_model(model_seed), prompt, L, "greedy" if mode == "greedy" else "coupled", seed, **settings, **stops)


def texts(out: GenerateOutput) -> list[tuple[list[int], str]]:
    return [(tokens.tolist(), reason) for tokens, reason in zip(out.tokens, out.finish_reason, strict=True)]


def check_counts(out: GenerateOutput) -> None:
    """Advances add up to the text, call by call, and every call is counted."""
    for tokens, advances, nfe in zip(out.tokens, out.advances, out.nfe, strict=True):
        assert tokens.dtype == torch.int64 and tokens.dim() == 1
        assert len(advances) == nfe and sum(advances) == len(tokens) and min(advances) >= 0


@pytest.mark.parametrize("two_call_start", [False, True], ids=["one call", "two calls"])
@pytest.mark.parametrize("block_size", [2, 3, 5, 8])
@pytest.mark.parametrize("mode", MODES)
def test_every_schedule_emits_the_text_of_naive_decoding(mode: str, block_size: int, two_call_start: bool) -> None:
    seed, accepted = 100 * block_size, 0
    for name, schedule in schedules(block_size).items():
        model_seed = 1 + block_size % 2
        decoder = new_decoder(small_model(model_seed), schedule, block_size, two_call_start=two_call_start)
        for stop in list(STOPS)[:: 1 + two_call_start]:
            want = [expected(model_seed, mode, stop, 13, seed + i, tuple(prompt)) for i, prompt in enumerate(RAGGED)]
            together = decoder.generate(RAGGED, 13, seed=seed, **MODES[mode], **STOPS[stop])
            assert texts(together) == [(one.tokens, one.finish_reason) for one in want], (name, stop)
            check_counts(together)
            alone = decoder.generate(RAGGED[3], 13, seed=seed + 3, **MODES[mode], **STOPS[stop])
            assert texts(alone) == texts(together)[3:4] and alone.advances == together.advances[3:4]
            accepted += sum(a > 1 for advances in together.advances for a in advances)
            if name == "autoregressive":
                assert all(set(advances) == {1} for advances in together.advances)
    assert accepted > 15  # drafts are accepted often enough for this to mean something


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
def test_fixed_shapes_give_what_live_rows_give(mode: str) -> None:
    sampling = {} if mode == "greedy" else {"temperature": 1.1, "verification": mode}
    for name, schedule in schedules(5).items():
        for L in (1, 2, 3, 11):
            settings = {"max_new_tokens": L, "seed": 7, "stop_sequences": [[0, 4]], **sampling}
            live = new_decoder(small_model(1), schedule, 5).generate(RAGGED, **settings)
            full = FullShape(small_model(1), schedule, 5, max_length=64, batch_size=5).generate(RAGGED, **settings)
            assert texts(full) == texts(live), (name, L)
            assert (full.advances, full.nfe) == (live.advances, live.nfe)


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
def test_neither_the_batch_nor_the_limit_changes_a_text(mode: str) -> None:
    sampling = {} if mode == "greedy" else {"temperature": 1.1, "verification": mode}
    for name, schedule in schedules(5).items():
        decoder = new_decoder(small_model(2), schedule, 5)
        whole = decoder.generate(RAGGED, 12, seed=30, eos_token_id=[], **sampling)
        for L in (1, 2, 3, 4, 7):
            together = decoder.generate(RAGGED, L, seed=30, eos_token_id=[], **sampling)
            for i in range(5):
                assert together.tokens[i].tolist() == whole.tokens[i][:L].tolist(), (name, L, i)
            for i in (1, 3):
                alone = decoder.generate(RAGGED[i], L, seed=30 + i, eos_token_id=[], **sampling)
                assert alone.tokens[0].tolist() == whole.tokens[i][:L].tolist(), (name, L, i)
                assert alone.advances[0] == together.advances[i]
                assert alone.finish_reason == ["length"]


@pytest.mark.parametrize("block_size", [2, 5])
def test_a_stop_anywhere_ends_the_text_there(block_size: int) -> None:
    """Ids and sequences cut from the text itself, so that they end in the middle of runs and cross call boundaries."""
    model, prompt, crossed, inside = small_model(4), [0, 2], 0, 0
    endless = plain(model, prompt, 14, "coupled", 5).tokens
    stops = sorted({tuple(endless[end - size : end]) for size in (1, 2, 3, 6) for end in range(size, 14, 3)})
    for schedule in schedules(block_size).values():
        decoder = new_decoder(model, schedule, block_size)
        free = decoder.generate(prompt, 14, seed=5, temperature=1.0, verification="coupled", eos_token_id=[])
        for stop in stops:
            end = next(e for e in range(1, 15) if tuple(endless[e - len(stop) : e]) == stop and e >= len(stop))
            for L in {end - len(stop) % 2, end, 14} - {0}:
                given = {"eos_token_id": stop[0]} if len(stop) == 1 else {"eos_token_id": [], "stop_sequences": [stop]}
                out = decoder.generate(prompt, L, seed=5, temperature=1.0, verification="coupled", **given)
                assert texts(out) == [(endless[: min(end, L)], "stop" if end <= L else "length")], (stop, L)
                check_counts(out)
                if end <= L:
                    crossed += out.advances[0][-1] < len(stop)
                    # without the stop the same call would have gone on past it
                    inside += free.advances[0][: out.nfe[0]] != out.advances[0]
    assert crossed > 20 and inside > 4


def test_stops_are_matched_in_the_output_only() -> None:
    model = small_model(3)
    for schedule in schedules(4).values():
        decoder = new_decoder(model, schedule, 4)
        for prompt in ([1, 1, 0], [0, 4, 1], [3, 3, 1, 3]):  # stop id 1 and MASK 3 are ordinary text in a prompt
            want = plain(model, prompt, 12, stop_ids=[1])
            assert texts(decoder.generate(prompt, 12)) == [(want.tokens, want.finish_reason)]
            free = plain(model, prompt, 12).tokens
            stop = [prompt[-1], free[0]]  # begun by the prompt, so not a stop at the first token
            want = plain(model, prompt, 12, stop_sequences=[stop])
            out = decoder.generate(prompt, 12, eos_token_id=[], stop_sequences=[stop])
            assert texts(out) == [(want.tokens, want.finish_reason)]
            assert len(want.tokens) > 1


def test_coupled_text_is_a_function_of_the_seed_alone() -> None:
    model, prompt = small_model(2), [0, 2, 4]
    found: dict[int, set[tuple[int, ...]]] = {}
    for block_size in (2, 4):
        for schedule in schedules(block_size).values():
            decoder = new_decoder(model, schedule, block_size)
            for first in (0, 2**63 - 2, -3):
                out = decoder.generate([prompt] * 5, 10, seed=first, eos_token_id=[], **HOT)
                for i, tokens in enumerate(out.tokens):
                    found.setdefault((first + i) % 2**64, set()).add(tuple(tokens.tolist()))
    assert all(len(text) == 1 for text in found.values())
    assert len(set.union(*found.values())) == len(found) == 13  # -3 ... 4 and the five around 2^63


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_seeds_may_be_a_list_and_leave_nothing_behind(mode: str) -> None:
    decoder = new_decoder(small_model(5), Branched((0, 2)), 4)
    settings = {"max_new_tokens": 10, "temperature": 1.0, "verification": mode, "eos_token_id": []}
    counted = decoder.generate([[0, 2]] * 4, seed=40, **settings)
    listed = decoder.generate([[0, 2]] * 4, seed=[43, 40, 2**64 - 1, 42], **settings)
    assert [texts(listed)[i] for i in (0, 1, 3)] == [texts(counted)[i] for i in (3, 0, 2)]
    torch.manual_seed(1)
    assert texts(listed)[2] == texts(decoder.generate([0, 2], seed=-1, **settings))[0]
    for others in (RAGGED, RAGGED[:2], [[4] * 30]):
        decoder.generate(others, 8, seed=3)
        decoder.generate(others, 8, seed=3, temperature=2.0)
        again = decoder.generate([[0, 2]] * 4, seed=40, **settings)
        assert texts(again) == texts(counted) and again.advances == counted.advances


@pytest.mark.parametrize("two_call_start", [False, True], ids=["one call", "two calls"])
@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
def test_a_long_prompt_in_several_passes_is_one_call(monkeypatch: pytest.MonkeyPatch, mode: str, two_call_start: bool) -> None:
    prompts = [[(i * i + size) % 5 for i in range(size)] for size in (13, 1, 9, 5, 4)]
    settings = {"max_new_tokens": 9, "seed": 3, **({} if mode == "greedy" else {"temperature": 1.0, "verification": mode})}
    for schedule in schedules(4).values():
        decoder = new_decoder(small_model(2), schedule, 4, two_call_start=two_call_start)
        outs = []
        for chunk in (1024, 4, 1):
            monkeypatch.setattr(prefill, "CHUNK", chunk)
            for given in (prompts, prompts[3:]):
                outs.append((given, decoder.generate(given, **settings)))
        for given, out in outs[2:]:
            want = next(whole for prompts_, whole in outs[:2] if prompts_ == given)
            assert texts(out) == texts(want) and out.advances == want.advances


def test_the_whole_of_max_length_can_be_used() -> None:
    model = small_model(1)
    for schedule in schedules(8).values():
        decoder = Decoder(model, schedule, 8, max_length=9, batch_size=2)
        want = [plain(model, prompt, 4).tokens for prompt in ([0, 2, 4, 0, 2], [4])]
        assert [tokens.tolist() for tokens in decoder.generate([[0, 2, 4, 0, 2], [4]], 4, eos_token_id=[]).tokens] == want
        assert decoder.generate([4], 8, eos_token_id=[]).tokens[0].tolist() == plain(model, [4], 8).tokens


def test_rejection_follows_the_greedy_text_where_one_token_is_left() -> None:
    """Top-k 1 makes p and Q point masses: rejection has one possible text."""
    model: Transformer = small_model(3)
    for schedule in schedules(4).values():
        decoder = new_decoder(model, schedule, 4)
        want = [plain(model, prompt, 15, stop_ids=[1]).tokens for prompt in RAGGED]
        for verification in ("rejection", "coupled"):
            out = decoder.generate(RAGGED, 15, temperature=1.0, top_k=1, verification=verification, seed=9)
            assert [tokens.tolist() for tokens in out.tokens] == want
