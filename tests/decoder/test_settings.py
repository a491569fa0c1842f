"""Sampling settings are data: one batch may mix them, and each sequence gets what it gets alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from packed_ss import Branched, Decoder
from packed_ss.request import check_request
from tests.decoder.models import Dense, new_decoder, small_model
from tests.support.checkpoints import random_model, random_set_config
from tests.support.enumeration import chi_square_ok, exact_law

PROMPTS = [[0, 2], [4, 1, 0, 2], [3], [2, 2, 4, 0, 1], [1]]
MIXED: dict[str, list[Any]] = {
    "temperature": [0.0, 0.7, 1.4, 1e-6, 1.0],
    "top_k": [3, 0, 2, 0, 10**30],
    "top_p": [1.0, 0.8, 1.0, 0.3, 1.0],
}
SCHEDULES = ("autoregressive", "linear", "packed", "quadratic", Branched((0, 2)))


def alone(decoder: Decoder, i: int, mode: str) -> tuple[list[int], str]:
    settings = {name: values[i] for name, values in MIXED.items()}
    out = decoder.generate(PROMPTS[i], 11, seed=50 + i, verification=mode, **settings)
    return out.tokens[0].tolist(), out.finish_reason[0]


@pytest.mark.parametrize("mode", ["coupled", "rejection", "match"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_each_sequence_of_a_mixed_batch_gets_its_own_text(schedule: Any, mode: str) -> None:
    for decoder in (
        new_decoder(small_model(1), schedule),
        Decoder(random_model(random_set_config(3), 3, torch.float64), schedule, window=4, max_length=64, batch_size=5),
    ):
        out = decoder.generate(PROMPTS, 11, seed=50, verification=mode, **MIXED)
        texts = list(zip([tokens.tolist() for tokens in out.tokens], out.finish_reason, strict=True))
        assert texts == [alone(decoder, i, mode) for i in range(5)]
        greedy = decoder.generate([PROMPTS[0], PROMPTS[3]], 11).tokens
        assert [texts[0][0], texts[3][0]] == [tokens.tolist() for tokens in greedy]  # temperature 0 is the argmax, whatever else
        assert len({tuple(text) for text, _ in texts}) > 1


def test_rejection_of_a_mixed_batch_has_the_law_of_each_setting() -> None:
    sizes = {"num_layers": 1, "hidden_size": 8, "intermediate_size": 8, "head_dim": 4}
    settings = [{"temperature": 0.75}, {"temperature": 1.3, "top_k": 3}, {"temperature": 1.6, "top_k": 4, "top_p": 0.85}]
    each, batch = 1_500, 4_500
    mixed = {
        name: [one.get(name, default) for one in settings for _ in range(each)]
        for name, default in (("temperature", 0.0), ("top_k", 0), ("top_p", 1.0))
    }
    decoder = Decoder(small_model(12, 5, 1.2, torch.float32, **sizes), "packed", 3, max_length=8, batch_size=batch)
    counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in settings]
    for i in range(20):
        out = decoder.generate([[0, 2]] * batch, 3, seed=7 * 10**9 + i * batch, eos_token_id=[], **mixed)
        for j, tokens in enumerate(out.tokens):
            counts[j // each][tuple(tokens.tolist())] += 1
    dense = Dense(small_model(12, 5, 1.2, torch.float64, **sizes))
    laws = [exact_law(dense.verifier, [0, 2], 3, [], **one) for one in settings]
    assert [chi_square_ok(count, law) for count, law in zip(counts, laws, strict=True)] == [True] * 3
    assert not any(chi_square_ok(counts[i], laws[i - 1]) for i in range(3))  # another sequence's settings are seen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": [0.5]}, "temperature is .0.5., but one number or one per prompt .2. is needed"),
        ({"top_k": [1, -1]}, "top_k is -1, but it must be a whole number of at least 0"),
        ({"top_p": [0.5, 0.0]}, r"top_p is 0.0, but it must be in \(0, 1\]"),
        ({"temperature": [0.0, 0.5], "verification": "greedy"}, "verification 'greedy' needs temperature 0"),
    ],
)
def test_settings_that_fit_no_batch_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        new_decoder(small_model(1)).generate([[0], [1]], 3, **options)


def test_a_batch_is_greedy_only_where_all_of_it_is() -> None:
    config = small_model(1).config
    given = {"batch_size": 2, "max_length": 9, "input_ids": [[1], [2]], "max_new_tokens": 2, "seed": 0, "eos_token_id": []}
    for temperature, mode in (([0, 1e-6], "greedy"), ([0, 0.5], "rejection"), (1e-5, "rejection")):
        request = check_request(
            config, **given, temperature=temperature, top_k=0, top_p=1.0, verification="auto", stop_sequences=()
        )
        assert request.verification == mode
