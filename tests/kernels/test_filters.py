"""Temperature, top-k and top-p where they are hard: ties at the boundary, adjacent and denormal floats, rows of one value.

draw_rows stores the processed distribution of its rows, which is compared with the reference; settings are per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from packed_ss.reference.distributions import log_probabilities

from .backends import DTYPES, Backend
from .row_cases import (
    DRAFT,
    FILTERS,
    GREEDY,
    TARGET,
    Setting,
    as_int,
    check_draws,
    check_verdicts,
    drafted,
    logits_of,
    sampling,
    wide,
)


def distributions(backend: Backend, row: Tensor, settings: Sequence[Setting]) -> Tensor:
    """log p [N, V] of one row of logits under each of the settings, one a sequence of the same call."""
    n, vocab = len(settings), len(row)
    ids, log_q = torch.zeros(n, 1, dtype=torch.int32), torch.zeros(n, 1, vocab, dtype=wide(row.dtype))
    of, logits = sampling(range(n), settings), row.expand(n, 1, vocab)
    backend("draw_rows", logits, None, torch.ones_like(ids), None, *of, DRAFT, ids, log_q, None, 0)
    return log_q[:, 0]


def compare(backend: Backend, row: Tensor, settings: Sequence[Setting], *, divided: bool = False) -> None:
    """With ``divided``, values are what float32 makes of them: neighbours may become ties."""
    settings = backend.some(settings, 4)
    for setting, got in zip(settings, distributions(backend, row, settings), strict=True):
        if divided:
            z = (row - row.max()) / setting.temperature
            want = log_probabilities(z.tolist(), 1.0, setting.top_k, setting.top_p)
        else:
            want = setting.log_p(row.tolist())
        expected = torch.tensor(want, dtype=torch.float64)
        assert torch.equal(got.isinf(), expected.isinf()), setting
        torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-6)


def shuffled(*parts: tuple[float, int]) -> Tensor:
    """Values with their numbers of occurrences, in a random order."""
    row = torch.tensor([value for value, count in parts for _ in range(count)])
    return row[torch.randperm(len(row), generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_top_k_keeps_ties_of_the_last(backend: Backend, dtype: torch.dtype) -> None:
    row = shuffled((3.0, 2), (2.0, 8), (1.0, 90), (-1.0, 200)).to(dtype)
    compare(backend, row, [Setting(1.0, top_k) for top_k in (1, 2, 3, 9, 10, 11, 63, 64, 299, 300, 301, 10**6, 2**62)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_top_p_keeps_ties_of_the_last(backend: Backend, dtype: torch.dtype) -> None:
    """Half of the mass in one token, a quarter in two, an eighth in each of two groups of four."""
    log = torch.log(torch.tensor([1 / 2, 1 / 8, 1 / 32, 1 / 64], dtype=dtype)).tolist()
    row = shuffled((log[0], 1), (log[1], 2), (log[2], 4), (log[3], 8)).to(dtype)
    masses = (1e-9, 0.1, 0.4999, 0.5001, 0.7499, 0.7501, 0.999999, 1 - 2**-53)
    compare(backend, row, [Setting(1.0, 0, top_p) for top_p in masses])


@pytest.mark.parametrize("vocab", [4097, 1, 2, 7, 111, 1023])
def test_random_rows(backend: Backend, vocab: int) -> None:
    """Top-k, top-p, and both."""
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab))
    backend.skip_most(vocab, 2)
    compare(backend, row, [Setting(0.7, top_k) for top_k in (1, 5, 64, 400)])
    settings = [Setting(0.7, top_k, top_p) for top_k in (0, 40) for top_p in (0.05, 0.3, 0.9, 0.999)]
    for scale in backend.some((0.01, 1.0, 8.0)):
        compare(backend, row * scale, settings)


def test_thresholds_are_found_among_neighbouring_floats(backend: Backend) -> None:
    one = torch.tensor(1.0)
    below = torch.nextafter(one, torch.tensor(0.0)).item()
    rows = [
        torch.full((200,), 0.125),
        shuffled((1.0, 100), (below, 100)),
        torch.arange(200) * 1e-45,
        shuffled((0.0, 1), (-1e30, 199)),
        shuffled((1e30, 2), (-1e30, 198)),
        shuffled((0.0, 4), (-torch.inf, 196)),
        torch.where(torch.arange(200) % 2 == 0, 0.0, -0.0),
        shuffled((-1e30, 200)),
        shuffled((0.0, 1), (-31.99, 100), (-32.01, 100), (-500.0, 10)),
    ]
    # Top-p is not the edge of any number of equal masses.
    filters = [(top_k, top_p) for top_k in (0, 3, 150) for top_p in (0.2029, 0.9031)]
    filters = backend.some(filters, 2)
    for row in rows:
        for temperature in backend.some((0.7, 1.0, 2.5)):
            compare(backend, row, [Setting(temperature, *one) for one in filters], divided=True)


@pytest.mark.parametrize("temperature", [1.1e-5, 0.01, 100.0, 1e30])
def test_extreme_temperatures(backend: Backend, temperature: float) -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 3
    filters = ((0, 1.0), (7, 1.0), (0, 0.8123), (7, 0.8123))
    compare(backend, row, [Setting(temperature, *one) for one in filters], divided=True)


def test_where_greedy_begins(backend: Backend) -> None:
    """Below 1e-5, and for NaN, a sequence takes the lowest of its largest ids, without noise, whatever its filters."""
    row = shuffled((3.0, 3), (2.99, 8), (-1.0, 200))
    temperatures = (0.0, 1e-6, 9.999e-6, float("nan"), -1.0)
    compare(backend, row, [Setting(t, *rest) for t in temperatures for rest in ((0, 1.0), (5, 0.3))])
    from_here_on = Setting(1.0001e-5)
    kept = distributions(backend, row, [Setting(9.99e-6), from_here_on]).isfinite().sum(-1).tolist()
    assert kept[0] == 1 and kept[1] >= 3  # ties share
    logits, positions = row.expand(8, 1, len(row)), torch.arange(8, dtype=torch.int32).view(8, 1)
    drawn, _ = check_draws(backend, logits, positions, range(8), [from_here_on] * 8, TARGET, stores=False)
    assert len({*drawn.flatten().tolist()}) > 1


def test_settings_out_of_range_are_safe(backend: Backend) -> None:
    """Nobody checks values on a device: top_k below 0 and top_p above 1 filter nothing, top_p of 0 and less keeps the largest."""
    row = torch.randn(130, generator=torch.Generator().manual_seed(4))
    filters = ((-3, 1.0), (-(2**63), 1.0), (2**63 - 1, 1.0), (0, 7.5), (0, 0.0), (9, -2.0))
    for one in filters:
        compare(backend, row, [Setting(0.7, *one)])


MIXED = [*FILTERS.values(), GREEDY, Setting(1e-6), Setting(1.0, 0, 0.3), Setting(float("nan"), 5, 0.7)]


@pytest.mark.parametrize("vocab", [70, 2500])
def test_mixed_settings_in_one_batch(backend: Backend, vocab: int) -> None:
    """Filtered, unfiltered and greedy sequences side by side: each gets exactly what it gets alone."""
    settings = backend.some(MIXED, 4)
    n = len(settings)
    seeds = list(range(3, 3 + n))
    logits = logits_of(1, 1, 3, vocab).expand(n, -1, -1)
    positions = as_int([[4, 5, 6]]).repeat(n, 1)
    draft, log_q = drafted(logits, 3, settings, 0.9)
    if vocab < 100:
        check_verdicts(backend, logits, positions, seeds, settings, draft, log_q)

    def results(part: slice) -> list[Tensor]:
        of, at = sampling(seeds[part], settings[part]), positions[part]
        ids, verified, accepted = (torch.zeros_like(at) for _ in range(3))
        stored = torch.zeros(len(at), 3, vocab)
        backend("draw_rows", logits[part], None, at, None, *of, TARGET, ids, stored, None, 0)
        backend("verify_rows", logits[part], at, *of, draft[part], log_q[part], verified, accepted)
        return [ids, stored, verified, accepted]

    together = results(slice(n))
    for i in backend.some(range(n), 2):
        assert all(torch.equal(alone, of[i : i + 1]) for alone, of in zip(results(slice(i, i + 1)), together, strict=True)), i
