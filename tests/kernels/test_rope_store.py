"""rope_store on every backend, against complex multiplication in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from .attention_backends import BACKENDS, INTERPRETED, ON_GPU, kernel

NAMES = ("q", "k", "v", "cos", "sin", "query_scale", "slots", "k_cache", "v_cache")


class Case:
    """Random operands: q, k and v are views of one tensor, caches are views of larger ones, whose other elements are NaN."""

    def __init__(
        self,
        n: int = 2,
        rows: int = 7,
        heads: int = 6,
        kv_heads: int = 2,
        size: int = 8,
        dtype: torch.dtype = torch.float32,
        table: torch.dtype = torch.float32,
        scaled: bool = True,
    ) -> None:
        rng = torch.Generator().manual_seed(rows + size)
        capacity = 2 * rows + 3
        qkv = torch.randn(n, rows, heads + 2 * kv_heads, size, generator=rng, dtype=torch.float64).to(dtype)
        self.q, self.k, self.v = qkv.split((heads, kv_heads, kv_heads), dim=2)
        turn = 6.3 * torch.rand(n, rows, size // 2, generator=rng, dtype=torch.float64)
        self.cos, self.sin = (1.3 * turn.cos()).to(table), (1.3 * turn.sin()).to(table)
        self.query_scale = (1 + torch.rand(n, rows, generator=rng, dtype=torch.float64)).to(table) if scaled else None
        self.slots = torch.stack([torch.randperm(capacity, generator=rng)[:rows] for _ in range(n)]).int()
        self.wide_k, self.wide_v = (torch.full((n, capacity + 4, kv_heads, size), math.nan, dtype=dtype) for _ in range(2))
        self.k_cache, self.v_cache = self.wide_k[:, :capacity], self.wide_v[:, :capacity]

    def operands(self) -> list[Tensor | None]:
        return [getattr(self, name) for name in NAMES]

    def rotated(self, x: Tensor) -> Tensor:
        first, second = x.double().chunk(2, dim=-1)
        angle = torch.complex(self.cos.double(), self.sin.double())[:, :, None]
        turned = torch.complex(first, second) * angle
        return torch.cat((turned.real, turned.imag), dim=-1)

    def check(self, backend: str) -> None:
        before = [x.clone() for x in self.operands() if x is not None and x is not self.k_cache and x is not self.v_cache]
        out = kernel(backend, "rope_store")(*self.operands())
        after = [x for x in self.operands() if x is not None and x is not self.k_cache and x is not self.v_cache]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "an input was written to"
        assert out.dtype == self.q.dtype
        assert out.is_contiguous()
        q = self.rotated(self.q)
        if self.query_scale is not None:
            q = q * self.query_scale.double()[..., None, None]
        # cos and sin, then each product and sum, are rounded to the dtype of q; terms of the sum may cancel.
        step = torch.finfo(self.q.dtype).eps
        largest = max(q.abs().max().item(), 1.0)
        torch.testing.assert_close(out.double(), q, rtol=2 * step, atol=3 * step * largest)
        expected_k, expected_v = (torch.full_like(x, math.nan).double() for x in (self.wide_k, self.wide_v))
        for n in range(self.q.shape[0]):
            expected_k[n, self.slots[n].long()] = self.rotated(self.k)[n]
            expected_v[n, self.slots[n].long()] = self.v.double()[n]
        torch.testing.assert_close(self.wide_k.double(), expected_k, rtol=2 * step, atol=3 * step * largest, equal_nan=True)
        assert torch.equal(self.wide_v.double().nan_to_num(-9), expected_v.nan_to_num(-9)), "values are copied"


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaled", [True, False])
def test_equals_the_complex_product(backend: str, dtype: torch.dtype, scaled: bool) -> None:
    table = torch.promote_types(dtype, torch.float32)
    for size in (2, 8, 20, 32, 80, 128):
        Case(dtype=dtype, table=table, size=size, scaled=scaled).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [1, 2, 33, 289])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 1), (6, 3)])
def test_rows_and_heads(backend: str, rows: int, heads: int, kv_heads: int) -> None:
    Case(n=3, rows=rows, heads=heads, kv_heads=kv_heads).check(backend)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of numpy, in Triton's interpreter
@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_equal_the_plain_version(backend: str, dtype: torch.dtype) -> None:
    """Products of such numbers are exact in float32, so nothing is left to the order of operations."""
    if backend == "triton" and INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter does not round to the nearest bfloat16")
    ours, theirs = Case(rows=50, size=64, dtype=dtype), Case(rows=50, size=64, dtype=dtype)
    # Far from one too: subnormal results, and results that overflow.
    for case in (ours, theirs):
        case.q[:, ::3] *= 2.0**-14
        case.q[:, 1::3] *= 2.0**13
        case.k[:, ::3] *= 2.0**-10
    a, b = kernel(backend, "rope_store")(*ours.operands()), kernel("torch", "rope_store")(*theirs.operands())
    assert torch.equal(a, b)
    assert torch.equal(ours.k_cache.nan_to_num(-9), theirs.k_cache.nan_to_num(-9))
    assert torch.equal(ours.v_cache.nan_to_num(-9), theirs.v_cache.nan_to_num(-9))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_stays_in_its_row_and_pair(backend: str) -> None:
    case = Case(rows=4, size=8)
    case.q[0, 1, 2, 3] = math.nan
    case.k[0, 2, 1, 0] = math.inf
    out = kernel(backend, "rope_store")(*case.operands())
    assert out.isfinite().logical_not().nonzero().tolist() == [[0, 1, 2, 3], [0, 1, 2, 7]]
    written = case.k_cache[0, case.slots[0].long()]
    assert written.isfinite().logical_not().nonzero().tolist() == [[2, 1, 0], [2, 1, 4]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_share_a_slot(backend: str) -> None:
    """The slot holds one of them, whole (on a GPU, where they race, elements of them); the others are where they belong."""
    case = Case(n=1, rows=9, size=8)
    case.slots[0] = torch.arange(9)
    case.slots[0, 3:7] = 20
    kernel(backend, "rope_store")(*case.operands())
    keys = case.rotated(case.k)[0].float()
    distance = (case.k_cache[0, 20] - keys[3:7]).abs()
    assert (distance.amin(0).max() if backend in ON_GPU else distance.amax((1, 2)).min()) < 1e-5
    for row in (0, 1, 2, 7, 8):
        torch.testing.assert_close(case.k_cache[0, int(case.slots[0, row])], keys[row])


@pytest.mark.parametrize("slot", [-1, -4, 17, 18])
def test_rows_whose_slot_is_not_in_the_cache(slot: int) -> None:
    """On a GPU nobody looks at slots beforehand: such a row is not written anywhere, and changes no other."""
    case, other = Case(), Case()
    store = kernel("triton", "rope_store")
    row = case.slots[1, 3].item()
    case.slots[1, 3] = slot
    assert torch.equal(store(*case.operands()), store(*other.operands()))
    for got, expected in ((case.wide_k, other.wide_k), (case.wide_v, other.wide_v)):
        expected[1, row] = math.nan
        assert torch.equal(got.nan_to_num(-9), expected.nan_to_num(-9))


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides_of_the_rows(backend: str) -> None:
    case = Case()
    case.q, case.k, case.v = (x.transpose(1, 3).contiguous().transpose(1, 3) for x in (case.q, case.k, case.v))
    case.cos, case.sin = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (case.cos, case.sin))
    case.slots = case.slots.t().contiguous().t()
    case.check(backend)
    case.q, case.k, case.v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (case.q, case.k, case.v))
    case.check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_rows_and_no_sequences(backend: str) -> None:
    assert kernel(backend, "rope_store")(*Case(rows=0).operands()).shape == (2, 0, 6, 8)
    assert kernel(backend, "rope_store")(*[x[:0] for x in Case().operands()]).shape == (0, 7, 6, 8)


def test_however_the_work_is_shared_out(threads: None) -> None:
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        Case(n=2, rows=200, heads=8, kv_heads=2, size=64).check("cpu")


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda x: x[0], "q must be"),
        ("q", lambda x: x.long(), "q must be"),
        ("q", lambda x: x[..., :7], "q must have heads of an even number"),
        ("q", lambda x: x[:, :-1], "k must be"),
        ("k", lambda x: x[:, :, :0], "k must be"),
        ("k", lambda x: x[:, :, :1], "v must be"),
        ("k", lambda x: x.double(), "k must be (Float|float32)"),
        ("v", lambda x: x[..., :6], "v must be"),
        ("v", lambda x: x.half(), "v must be (Float|float32)"),
        ("cos", lambda x: x[..., :-1], "cos must be"),
        ("cos", lambda x: x.int(), "cos must be"),
        ("sin", lambda x: x[:, :1], "sin must be"),
        ("query_scale", lambda x: x[:, :1], "query_scale must be"),
        ("query_scale", lambda x: x.int(), "query_scale must be"),
        ("slots", lambda x: x.long(), "slots must be int32"),
        ("slots", lambda x: x[:, :-1], "slots must be int32"),
        ("slots", lambda x: x - 100, "slots must be in 0"),
        ("slots", lambda x: torch.where(x == x.max(), 17, x), "slots must be in 0"),
        ("k_cache", lambda x: x[:1], "k_cache must be"),
        ("k_cache", lambda x: x.double(), "k_cache must be (Float|float32)"),
        ("k_cache", lambda x: x[:, :, :1], "k_cache must have the heads of k"),
        ("k_cache", lambda x: x.transpose(2, 3).contiguous().transpose(2, 3), "k_cache must be contiguous"),
        ("v_cache", lambda x: x[:, :-1], "v_cache must have the shape of k_cache"),
    ],
)
def test_refuses_before_it_writes(backend: str, name: str, change, message: str) -> None:
    if backend == "triton" and message == "slots must be in 0":
        pytest.skip("Triton kernels leave out rows whose slot is not in the cache")
    rope_store, case = kernel(backend, "rope_store"), Case()
    arguments = dict(zip(NAMES, case.operands(), strict=True))
    arguments[name] = change(arguments[name])
    with pytest.raises(ValueError, match=f"^rope_store: .*{message}"):
        rope_store(*arguments.values())
    assert case.wide_k.isnan().all()
    assert case.wide_v.isnan().all()


@pytest.mark.parametrize("scaled", [True, False])
def test_operator_contract(scaled: bool) -> None:
    case = Case(scaled=scaled)
    case.k_cache.zero_()
    case.v_cache.zero_()
    torch.library.opcheck(torch.ops.packed_ss.rope_store.default, case.operands(), test_utils=["test_schema", "test_faketensor"])
