"""verification="match": the published linear decoder's rule, for comparisons of acceptance."""

from __future__ import annotations

import math

import pytest
import torch

from packed_ss import Branched, Decoder
from packed_ss.layouts.block import BlockCall
from packed_ss.layouts.block_layout import BlockLayout
from packed_ss.models.attention import SlotCache
from packed_ss.models.config import ModelConfig
from packed_ss.request import Request, check_request
from packed_ss.resolve import Resolver
from packed_ss.state import sampling_settings, stops_tensor
from tests.support.checkpoints import random_config, random_model

PROMPTS = [[4, 1, 7], [2, 9, 9, 5, 10], [6]]


def decoded(schedule: str | Branched, verification: str, **options) -> tuple[list[list[int]], list[int]]:
    model = random_model(random_config(3), 3, torch.float64)
    decoder = Decoder(model, schedule, block_size=4, max_length=64, batch_size=3)
    out = decoder.generate(PROMPTS, 30, seed=[5, 2**40, -1], verification=verification, eos_token_id=[], **options)
    return [tokens.tolist() for tokens in out.tokens], out.nfe


@pytest.mark.parametrize("schedule", ["autoregressive", "linear", "packed", "quadratic", Branched((0, 2))])
@pytest.mark.parametrize("filters", [{}, {"top_k": 6, "top_p": 0.9}])
def test_its_texts_are_those_of_coupled_at_the_same_seed(schedule, filters):
    texts, nfe = decoded(schedule, "match", temperature=0.9, **filters)
    coupled, coupled_nfe = decoded(schedule, "coupled", temperature=0.9, **filters)
    assert texts == coupled
    if schedule != "autoregressive":
        assert sum(nfe) > sum(coupled_nfe)  # independent draws agree less often


def _accepted(verification: str, p: torch.Tensor, q: torch.Tensor, n: int) -> float:
    """The share of n sequences whose first draft, drawn from q, is accepted against p."""
    layout = BlockLayout(random_config(), "linear", 3, False)
    request = Request([[0]] * n, 20, verification, [1.0] * n, [0] * n, [1.0] * n, list(range(n)), [[]] * n)
    settings = sampling_settings(request.seeds, request.temperature, request.top_k, request.top_p)
    state = layout.new_state(
        request, torch.device("cpu"), capacity=24, sampling=settings, stops=stops_tensor(request.stops), log_q=None
    )
    resolver, spare = Resolver(layout), SlotCache(random_config(), 1, 1, torch.float32, torch.device("cpu"))
    for call, law in ((BlockCall(0, 3, (0,)), q), (BlockCall(3, 3, ()), p)):
        logits = law.log().expand(n, call.rows, len(law)).contiguous()
        resolver(logits, layout.pack(state, call, 0), state, request, call, None, spare)
    return float((state.length > 2).double().mean())


def test_a_draft_is_accepted_with_the_probability_that_two_draws_agree():
    p, q, n = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5]), 40_000
    agree, overlap = float((p * q).sum()), float(torch.minimum(p, q).sum())
    rate = _accepted("match", p, q, n)
    assert abs(rate - agree) < 6 * math.sqrt(agree * (1 - agree) / n)  # a false alarm in 10^9
    assert _accepted("coupled", p, q, n) > (agree + overlap) / 2


def _checked(config: ModelConfig, temperature: float) -> str:
    return check_request(
        config,
        batch_size=1,
        max_length=9,
        input_ids=[1],
        max_new_tokens=2,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        seed=0,
        verification="match",
        eos_token_id=[],
        stop_sequences=(),
    ).verification


def test_it_is_greedy_at_temperature_0():
    assert (_checked(random_config(), 0.0), _checked(random_config(), 0.5)) == ("greedy", "match")
