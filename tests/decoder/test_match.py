"""verification="match": the published linear decoder's rule, for comparisons of acceptance."""

from __future__ import annotations

import math

import pytest
import torch

from packed_ss import Branched, Decoder
from packed_ss.layouts.block import BlockCall
from packed_ss.models.config import ModelConfig
from packed_ss.request import check_request
from packed_ss.state import DecodeState
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


def _accepted(operator, p: torch.Tensor, q: torch.Tensor, n: int) -> float:
    """The share of n sequences whose first draft, drawn from q, is accepted against p."""
    vocab = len(p)
    state = DecodeState.start(
        [[0]] * n, max_new_tokens=20, block_size=3, capacity=24, stops=[], seeds=list(range(n)), device=torch.device("cpu")
    )
    for call, logits in ((BlockCall(0, 3, (0,)), q), (BlockCall(3, 3, ()), p)):
        rows = logits.log().expand(n, call.rows, vocab).contiguous()
        operator(
            rows,
            *state.operands(),
            call.verifier_rows,
            3,
            list(call.cuts),
            0,
            0,
            0,
            [],
            None,
            None,
            None,
            state.seed,
            1.0,
            0,
            1.0,
        )
    return float((state.length > 2).double().mean())


def test_a_draft_is_accepted_with_the_probability_that_two_draws_agree():
    p, q, n = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5]), 40_000
    agree, overlap = float((p * q).sum()), float(torch.minimum(p, q).sum())
    rate = _accepted(torch.ops.packed_ss.resolve_match, p, q, n)
    assert abs(rate - agree) < 6 * math.sqrt(agree * (1 - agree) / n)  # a false alarm in 10^9
    assert _accepted(torch.ops.packed_ss.resolve_coupled, p, q, n) > (agree + overlap) / 2


def test_the_operator_keeps_its_contract():
    call = BlockCall(3, 3, (0, 2))
    state = DecodeState.start(
        [[1, 2], [3]], max_new_tokens=9, block_size=3, capacity=16, stops=[[4]], seeds=[1, 2], device=torch.device("cpu")
    )
    arguments = (*state.operands(), 3, 3, list(call.cuts), 0, 0, 0, [], None, None, None, state.seed, 0.8, 5, 0.9)
    logits = torch.randn(2, call.rows, 9)
    torch.library.opcheck(torch.ops.packed_ss.resolve_match.default, (logits, *arguments))
    with pytest.raises(ValueError, match="resolve_match: logits must have verifier_rows"):
        torch.ops.packed_ss.resolve_match(logits[:, :-1], *arguments)


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
