"""Temperature, top-k and top-p where they are hard: ties at the boundary, adjacent and denormal floats, rows of one value.

A call that only proposes stores the processed distribution of its rows, which is compared with the reference.
"""

from __future__ import annotations

import pytest
import torch

from packed_ss.layouts.block import BlockCall
from packed_ss.reference.distributions import log_probabilities

from .backends import Backend
from .resolve_cases import random_case, run


def distribution(backend: Backend, row: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """log p of a row of logits, as resolve_rejection stores it."""
    case = random_case(
        0,
        vocab=len(row),
        call=BlockCall(0, 2, (0,)),
        mode="rejection",
        n=1,
        dtype=row.dtype,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
    )
    case.logits[0, 1] = row
    return run(backend, case)[0].draft_log_q[0, 0]


def compare(backend: Backend, row: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> None:
    got = distribution(backend, row, temperature, top_k, top_p)
    want = torch.tensor(log_probabilities(row.tolist(), temperature, top_k, top_p), dtype=torch.float64)
    assert torch.equal(got.isinf(), want.isinf())
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-6)


def shuffled(*parts: tuple[float, int]) -> torch.Tensor:
    """Values with their numbers of occurrences, in a random order."""
    row = torch.tensor([value for value, count in parts for _ in range(count)])
    return row[torch.randperm(len(row), generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("top_k", [1, 2, 3, 9, 10, 11, 63, 64, 299, 300, 301, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_top_k_keeps_ties_of_the_last(backend: Backend, top_k: int, dtype: torch.dtype) -> None:
    compare(backend, shuffled((3.0, 2), (2.0, 8), (1.0, 90), (-1.0, 200)).to(dtype), top_k=top_k)


@pytest.mark.parametrize("top_k", [1, 5, 64, 400])
def test_top_k_in_random_rows(backend: Backend, top_k: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for vocab in backend.some((4097, 1, 2, 7, 111, 1023), 3):
        compare(backend, torch.randn(vocab, generator=generator), temperature=0.7, top_k=top_k)


@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.4999, 0.5001, 0.7499, 0.7501, 0.999999, 1 - 2**-53])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_top_p_keeps_ties_of_the_last(backend: Backend, top_p: float, dtype: torch.dtype) -> None:
    """Half of the mass in one token, a quarter in two, an eighth in each of two groups of four."""
    log = torch.log(torch.tensor([1 / 2, 1 / 8, 1 / 32, 1 / 64], dtype=dtype)).tolist()
    row = shuffled((log[0], 1), (log[1], 2), (log[2], 4), (log[3], 8)).to(dtype)
    compare(backend, row, top_p=top_p)


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("top_k", [0, 40])
def test_top_p_in_random_rows(backend: Backend, top_p: float, top_k: int) -> None:
    generator = torch.Generator().manual_seed(2)
    for vocab in backend.some((4097, 1, 2, 7, 111, 1023), 2):
        for scale in backend.some((0.01, 1.0, 8.0), 2):
            compare(backend, torch.randn(vocab, generator=generator) * scale, temperature=0.7, top_k=top_k, top_p=top_p)


@pytest.mark.parametrize("top_p", [0.2029, 0.9031])  # not the edge of any number of equal masses
@pytest.mark.parametrize("top_k", [0, 3, 150])
def test_thresholds_are_found_among_neighbouring_floats(backend: Backend, top_k: int, top_p: float) -> None:
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
    for row in rows:
        for temperature in backend.some((0.7, 1.0, 2.5), 1):
            got = distribution(backend, row, temperature, top_k, top_p)
            z = (row - row.max()) / temperature  # what float32 makes of them: neighbours may become ties
            want = torch.tensor(log_probabilities(z.tolist(), 1.0, top_k, top_p), dtype=torch.float64)
            assert torch.equal(got.isinf(), want.isinf())
            torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("temperature", [1.1e-5, 0.01, 100.0, 1e30])
def test_extreme_temperatures(backend: Backend, temperature: float) -> None:
    row = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 3
    for top_k, top_p in ((0, 1.0), (7, 1.0), (0, 0.8123), (7, 0.8123)):
        got = distribution(backend, row, temperature, top_k, top_p)
        z = (row - row.max()) / temperature
        want = torch.tensor(log_probabilities(z.tolist(), 1.0, top_k, top_p), dtype=torch.float64)
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-6)
