"""Processed distributions, residuals and draws in torch, against the reference's in float64."""

from __future__ import annotations

import math
import random

import pytest
import torch

from packed_ss.reference import log_probabilities, log_residual
from packed_ss.sampling import Stream, gumbel, process, residual

INF = math.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_filters_keep_what_the_reference_keeps(dtype: torch.dtype) -> None:
    """Ties at the boundary included: logits are on a coarse grid, which every dtype holds exactly."""
    rng = random.Random(5)
    for _ in range(400):
        vocab = rng.choice([1, 2, 3, 7, 16])
        row = [rng.choice([-INF, *(x / 4 for x in range(-8, 9))]) if rng.random() < 0.9 else -(2.0**100) for _ in range(vocab)]
        if max(row) == -INF:
            row[0] = 0.5
        temperature, top_k, top_p = rng.choice([0.5, 1.0, 1.7]), rng.choice([0, 1, 2, 5, 99]), rng.choice([1.0, 0.9, 0.5, 1e-9])
        want = log_probabilities(row, temperature, top_k, top_p)
        got = process(torch.tensor(row, dtype=dtype), temperature, top_k, top_p)
        assert got.dtype == torch.promote_types(dtype, torch.float32) and float(got.max()) == 0.0
        assert got.log_softmax(-1).tolist() == pytest.approx(want, abs=2e-6, rel=1e-6)


def test_a_row_without_a_finite_maximum_is_not_a_distribution() -> None:
    for row in ([0.0, math.nan, 1.0], [-INF] * 3, [0.0, INF, 1.0], [math.nan, -INF, INF]):
        for settings in ((1.0, 0, 1.0), (0.7, 2, 1.0), (0.7, 0, 0.5), (1.3, 1, 0.9)):
            got = process(torch.tensor([row, [0.0, 1.0, 2.0]]), *settings).log_softmax(-1)
            assert got.isnan().all(-1).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_residual_is_the_references(dtype: torch.dtype) -> None:
    rng = random.Random(6)
    for _ in range(300):
        vocab = rng.choice([1, 2, 5])
        p = log_probabilities([rng.gauss(0, 3) for _ in range(vocab)], 1.0, rng.choice([0, 2]))
        q = log_probabilities([rng.gauss(0, 3) for _ in range(vocab)], 1.0, rng.choice([0, 2]))
        log_p, log_q = torch.tensor(p, dtype=dtype), torch.tensor(q, dtype=dtype)
        want = log_residual(log_p.tolist(), log_q.tolist())
        assert residual(log_p, log_q).tolist() == pytest.approx(want, abs=1e-3 if dtype == torch.float32 else 1e-9)
    assert residual(log_p, log_p.clone()).tolist() == log_p.tolist()
    assert residual(log_p, torch.full_like(log_p, -INF)).tolist() == log_p.tolist()


def test_small_ratios_keep_their_digits() -> None:
    """log(p - Q) for Q/p from 1e-8 to 1e-3, where log(1 - Q/p) in float32 is 0 or a few digits of noise."""
    for ratio in (1e-8, 1e-7, 3e-6, 1e-4, 1e-3):
        log_p = torch.tensor([0.0, -INF])
        log_q = torch.tensor([math.log(ratio), 0.0])
        assert float(residual(log_p, log_q)[0]) == pytest.approx(math.log1p(-ratio), rel=2e-6)


def draws(log_p: list[float], count: int) -> torch.Tensor:
    """How often each id is drawn at ``count`` positions of one seed."""
    hits = torch.zeros(len(log_p), dtype=torch.int64)
    for begin in range(0, count, 250_000):
        place = torch.arange(begin, begin + 250_000, dtype=torch.int32)[None]
        noise = gumbel(torch.tensor([99]), place, Stream.TARGET, len(log_p))
        hits += (torch.tensor(log_p) + noise).argmax(-1).flatten().bincount(minlength=len(log_p))
    return hits


def test_a_million_draws_of_a_point_mass_and_of_rare_tokens() -> None:
    assert draws([-INF, 0.0, -INF], 10**6).tolist() == [0, 10**6, 0]
    rare = [1e-9, 0.0, 1e-4, 1e-5]
    rare[1] = 1 - sum(rare)
    hits = draws([math.log(x) for x in rare], 10**6).tolist()
    assert hits[0] == 0
    assert abs(hits[2] - 100) < 62 and 0 < hits[3] < 35
