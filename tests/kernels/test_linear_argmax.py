"""linear_argmax: the argmax of each row's logits, without the logits, against float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .backends import CUDA_DTYPES, INTERPRETED, Backend, no_triton

Operator = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture
def operator(backend: Backend) -> Operator:
    """The operator by each backend that has a kernel for it, and by plain torch."""

    def call(x: Tensor, weight: Tensor) -> Tensor:
        if INTERPRETED and x.dtype == torch.bfloat16 and backend.name == "triton":
            pytest.skip("Triton's interpreter multiplies matrices of bfloat16 as integers")
        return backend("linear_argmax", x, weight)

    return call


def integers(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32, most: int = 4) -> Tensor:
    """Whole numbers, of which sums of products are exact in any order, and often tie."""
    return torch.randint(-most, most + 1, shape, generator=rng).to(dtype)


def expected(x: Tensor, weight: Tensor) -> Tensor:
    """Ids by float64: the lowest of several, -1 where the maximum is not finite."""
    best, ids = (x.double().flatten(0, 1) @ weight.double().T).view(*x.shape[:2], -1).max(-1)
    return torch.where(best.isfinite(), ids, -1)


def check(operator: Operator, x: Tensor, weight: Tensor) -> Tensor:
    """Compares exact results, which are returned."""
    ids = operator(x, weight)
    assert ids.dtype == torch.int32 and ids.is_contiguous()
    assert ids.tolist() == expected(x, weight).tolist()
    return ids


@pytest.mark.parametrize("dtype", CUDA_DTYPES, ids=str)
@pytest.mark.parametrize(("n", "rows"), [(1, 1), (1, 17), (2, 8), (3, 33), (1, 100), (1, 140)])
def test_rows(operator: Operator, n: int, rows: int, dtype: torch.dtype) -> None:
    """Any number of rows; the vocabulary is no multiple of a block, and the maximum ties in many rows."""
    rng = torch.Generator().manual_seed(rows)
    check(operator, integers(rng, n, rows, 64, dtype=dtype), integers(rng, 331, 64, dtype=dtype))


@pytest.mark.parametrize("vocab", [1, 2, 7, 111, 255, 256, 257, 1023])
def test_vocabularies(operator: Operator, vocab: int) -> None:
    rng = torch.Generator().manual_seed(vocab)
    check(operator, integers(rng, 2, 3, 96, dtype=torch.float16), integers(rng, vocab, 96, dtype=torch.float16))


@pytest.mark.parametrize("size", [1, 8, 63, 64, 65, 200])
def test_hidden_sizes(operator: Operator, size: int) -> None:
    rng = torch.Generator().manual_seed(size)
    check(operator, integers(rng, 1, 5, size), integers(rng, 300, size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_random_numbers(operator: Operator, dtype: torch.dtype) -> None:
    """The logit of the id that won is the largest up to rounding."""
    rng = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 20, 256, generator=rng).to(dtype), torch.randn(700, 256, generator=rng).to(dtype)
    ids = operator(x, weight)
    logits = x.double() @ weight.double().T
    chosen = logits.gather(-1, ids.long().unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(chosen, logits.amax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("ids", [(0,), (299,), (130, 131), (40, 299), (255, 256), (256,)], ids=str)
def test_the_lowest_id_wins_a_tie(operator: Operator, ids: tuple[int, ...]) -> None:
    """In one tile of the vocabulary and in several."""
    rng = torch.Generator().manual_seed(1)
    x, weight = integers(rng, 1, 4, 32), integers(rng, 300, 32)
    weight[list(ids)] = 9 * x[0, 0].sign()
    assert check(operator, x[:, :1], weight).item() == ids[0]


def test_zeros_of_both_signs_are_equal(operator: Operator) -> None:
    x = torch.tensor([[[1.0, 0.0]]])
    weight = torch.tensor([[-1.0, 0.0], [-0.0, -0.0], [0.0, 0.0], [-0.0, 0.0]])
    assert operator(x, weight).item() == 1


@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("places", [(0,), (70, 290), (290,)], ids=str)
def test_values_that_are_not_finite(operator: Operator, places: tuple[int, ...], value: float) -> None:
    """In the weights of some ids, and in a row of x: other rows are as they would be."""
    rng = torch.Generator().manual_seed(2)
    x, weight = integers(rng, 1, 5, 40).abs() + 1, integers(rng, 300, 40)
    weight[list(places), 3] = value
    check(operator, x, weight)
    weight[list(places), 3] = 1.0
    x[0, 2, 7] = value
    check(operator, x, weight)


def test_a_row_of_nothing_but_minus_infinity(operator: Operator) -> None:
    x, weight = torch.ones(1, 2, 16), torch.full((300, 16), -torch.inf)
    assert operator(x, weight).tolist() == [[-1, -1]]


def test_rows_of_a_longer_tensor(operator: Operator) -> None:
    """The last rows of each sequence, without a copy; whatever lies around them does not matter."""
    rng = torch.Generator().manual_seed(3)
    x, weight = torch.full((3, 9, 48), torch.nan), torch.full((320, 56), torch.nan)
    x[:, -4:], weight[5:, :48] = integers(rng, 3, 4, 48), integers(rng, 315, 48)
    check(operator, x[:, -4:], weight[5:, :48])
    check(operator, x[:, -4:].transpose(1, 2).contiguous().transpose(1, 2), weight[5:, :48])


def test_no_rows(operator: Operator) -> None:
    for shape in ((0, 3, 8), (2, 0, 8)):
        assert operator(torch.zeros(shape), torch.zeros(5, 8)).shape == shape[:2]


def test_a_row_does_not_depend_on_the_others(operator: Operator) -> None:
    rng = torch.Generator().manual_seed(4)
    x, weight = torch.randn(1, 70, 160, generator=rng), torch.randn(400, 160, generator=rng)
    ids = operator(x, weight)
    for rows in (slice(0, 1), slice(3, 30), slice(30, 70)):
        assert torch.equal(operator(x[:, rows], weight), ids[:, rows])


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(3, 8), torch.zeros(5, 8), "x must be"),
        (torch.zeros(1, 3, 8, dtype=torch.int32), torch.zeros(5, 8, dtype=torch.int32), "x must be"),
        (torch.zeros(1, 3, 8), torch.zeros(5, 9), "weight must be"),
        (torch.zeros(1, 3, 8), torch.zeros(0, 8), "weight must be"),
        (torch.zeros(1, 3, 8), torch.zeros(5, 8).half(), "weight must be"),
    ],
)
def test_refuses(backend: Backend, x: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"^linear_argmax: {message}"):
        backend("linear_argmax", x, weight)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (torch.zeros(1, 3, 8).double(), torch.zeros(5, 8).double(), "x must be float32, bfloat16 or float16"),
        (torch.zeros(1, 3, 8), torch.zeros(8, 5).t(), "weight must be contiguous along its rows"),
        (torch.zeros(1, 3, 8, device="meta"), torch.zeros(5, 8, device="meta"), "x must be on a CUDA device"),
    ],
)
def test_what_the_triton_kernels_do_not_take(x: Tensor, weight: Tensor, message: str) -> None:
    if no_triton():
        pytest.skip(no_triton())
    function = importlib.import_module("packed_ss.triton_kernels.linear_argmax").linear_argmax
    with pytest.raises(ValueError, match=f"^linear_argmax: {message}"):
        function(x, weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operator_contract(dtype: torch.dtype) -> None:
    rng = torch.Generator().manual_seed(5)
    torch.library.opcheck(
        torch.ops.packed_ss.linear_argmax.default, (integers(rng, 2, 3, 16, dtype=dtype), integers(rng, 9, 16, dtype=dtype))
    )
