"""Ordered decoding of random models against the reference, which recomputes every row: tokens, ends, calls, iterations, rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import packed_ss
from packed_ss.models.transformer import Transformer
from packed_ss.reference import ordered_schedules
from packed_ss.reference.ordered import OrderedGeneration
from packed_ss.reference.verification import make_rule
from tests.support.checkpoints import random_model, random_set_config
from tests.support.ordered import OrderedDense

PROMPTS = ([1, 5, 2, 8], [4, 4, 10], [0], [7, 2, 9, 9, 1, 0, 6])


def small(seed: int, scale: float = 1.5, **overrides: Any) -> Transformer:
    sizes = {"hidden_size": 12, "intermediate_size": 16, "head_dim": 8, "num_heads": 2, "num_kv_heads": 1} | overrides
    return random_model(random_set_config(seed, **sizes), seed, torch.float64, scale)


def outward(window: tuple[int, ...]) -> list[int]:
    """From the middle to the ends: an order of its own for every window."""
    return sorted(window, key=lambda j: (abs(2 * j - window[0] - window[-1]), j))


class Recorder(packed_ss.Decoder):
    """Keeps, of the first sequence, each call's rows, and each iteration's order and advance before the stopping rule."""

    def generate(self, *arguments: Any, **options: Any) -> packed_ss.GenerateOutput:
        self.rows: list[int] = []
        return super().generate(*arguments, **options)

    def forward(self, rows: Any, slots: int, call: Any, request: Any) -> Tensor:
        self.rows.append(rows.ids.shape[1])
        return super().forward(rows, slots, call, request)


def expected(
    model: Transformer, prompt: list[int], schedule: Any, W: int, L: int, order: Any, rule: Any = None, **stops: Any
) -> OrderedGeneration:
    dense = OrderedDense(model, prompt)
    settings = dict(rule=rule, order=order, prompt_length=len(prompt), **stops)
    if schedule == "autoregressive":
        settings.pop("order")
        return ordered_schedules.autoregressive(dense, L, **settings)
    if schedule == "native":
        return ordered_schedules.native(dense, W, L, **stops)
    if schedule == "linear":
        return ordered_schedules.linear(dense, dense, W, L, **settings)
    cuts = {"packed": (0,), "quadratic": range(W)}.get(schedule) if isinstance(schedule, str) else schedule.cuts
    return ordered_schedules.branched(dense, dense, W, L, cuts=cuts, **settings)


SCHEDULES = ("autoregressive", "linear", "packed", "quadratic", packed_ss.Branched((0, 2)), "native")


@pytest.mark.parametrize("order", ["left_to_right", "confidence", outward], ids=lambda o: getattr(o, "__name__", o))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_schedule_is_the_reference(schedule: Any, order: Any) -> None:
    if schedule == "native" and order != "left_to_right":
        pytest.skip("native has no order")
    ends = set()
    for seed in range(12):
        r = random.Random(seed)
        model = small(seed % 4, scale=r.choice((0.6, 1.5, 3.0)))
        W, L = r.choice((3, 4, 6)), r.choice((1, 5, 9, 14))
        prompt = PROMPTS[seed % 4]
        stops = [r.randrange(11)] if seed % 3 else []
        sequences = [[r.randrange(11) for _ in range(r.choice((2, 2, 3)))] for _ in range(seed % 4)]
        decoder = Recorder(model, schedule, max_length=40, window=W, order=order)
        out = decoder.generate(prompt, L, eos_token_id=stops, stop_sequences=sequences)
        want = expected(model, prompt, schedule, W, L, order, stop_ids=stops, stop_sequences=sequences)
        assert out.tokens[0].tolist() == want.tokens, (seed, W, L)
        assert out.advances[0] == want.advances
        assert out.finish_reason[0] == want.finish_reason
        assert decoder.rows[1:] == [rows for iteration in want.iterations for rows in iteration.rows]  # Table 2
        ends.add(want.finish_reason)
    assert ends == {"stop", "length"}


@pytest.mark.parametrize("schedule", SCHEDULES[:-1], ids=str)
@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_every_schedule_samples_as_the_reference(schedule: Any, mode: str) -> None:
    for seed in range(8):
        r = random.Random(seed)
        model = small(seed % 4, scale=1.0)
        W, L, prompt = r.choice((3, 5)), r.choice((6, 12)), PROMPTS[seed % 4]
        settings = {"temperature": r.choice((0.7, 1.0)), "top_k": r.choice((0, 6)), "top_p": r.choice((1.0, 0.8))}
        out = Recorder(model, schedule, max_length=40, window=W).generate(
            prompt, L, seed=seed, verification=mode, eos_token_id=[2], **settings
        )
        rule = make_rule(mode, seed, **settings)
        want = expected(model, prompt, schedule, W, L, "left_to_right", rule, stop_ids=[2])
        assert out.tokens[0].tolist() == want.tokens, seed
        assert out.advances[0] == want.advances
        assert out.finish_reason[0] == want.finish_reason
