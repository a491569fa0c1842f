"""tail_attention by Triton kernels: how the work is shared out, in the interpreter (TRITON_INTERPRET=1) or on a GPU."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from .attention_backends import INTERPRETED, kernel, on_gpu
from .test_attention import Case, random_tail

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")


@pytest.fixture
def attend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """`attend`, where new memory holds NaN: what no program writes must not be read either."""
    kernel("triton", "tail_attention")
    from packed_ss.triton_kernels import tail_attention

    empty = torch.empty

    def poisoned(*size, **options) -> Tensor:
        new = empty(*size, **options)
        return new.fill_(torch.nan) if new.is_floating_point() else new

    monkeypatch.setattr(torch, "empty", poisoned)
    return tail_attention.attend if INTERPRETED else on_gpu(tail_attention.attend)


def check(case: Case, out: Tensor) -> None:
    torch.testing.assert_close(out.double(), case.expected(), rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("splits", [1, 2, 5, 64])
@pytest.mark.parametrize("rows", [1, 33, 64])
def test_any_number_of_splits(attend: Callable[..., Tensor], rows: int, splits: int) -> None:
    """Of sequences with long, short and no prefix, whose splits take one block, several, or none."""
    rng = np.random.default_rng(splits)
    case = Case(splits, random_tail(rng, 3, rows), [700, 0, 320], 3, 1, 16)
    check(case, attend(*case.operands(), splits=splits))


@pytest.mark.parametrize("cache_len", [0, 127, 128, 129, 511, 512, 640])
@pytest.mark.parametrize("rows", [1, 40])
def test_where_splits_meet(attend: Callable[..., Tensor], rows: int, cache_len: int) -> None:
    """The tail in one split, across two, and in one that holds nothing else."""
    rng = np.random.default_rng(cache_len)
    case = Case(cache_len, random_tail(rng, 1, rows), [cache_len], 2, 1, 8, spare=0)
    check(case, attend(*case.operands(), splits=5))


def test_what_no_row_sees_in_a_split_of_its_own(attend: Callable[..., Tensor]) -> None:
    """Rows that see the end of a long tail alone: other splits have keys for some rows and none for others."""
    tail = np.eye(300, dtype=bool)[None]
    case = Case(1, tail, [0], 2, 1, 8)
    out = attend(*case.operands(), splits=3)
    torch.testing.assert_close(out[0], case.v[0, :300].expand(-1, 2, -1), rtol=1e-6, atol=0)


def test_a_value_that_is_not_finite_in_another_split(attend: Callable[..., Tensor]) -> None:
    rng = np.random.default_rng(2)
    for slot in (5, 410):
        case = Case(2, random_tail(rng, 1, 20), [400], 4, 2, 8)
        case.v[0, slot, 1, 3] = torch.inf
        out = attend(*case.operands(), splits=4)
        check(case, out)
        assert out.isnan().all(-1)[0, :, 2].tolist() == case.seen[0, :, slot].tolist()


def test_a_chunk_of_a_prompt(attend: Callable[..., Tensor]) -> None:
    case = Case(3, np.tri(1100, dtype=bool)[None], [70], 1, 1, 8)
    check(case, attend(*case.operands()))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3)])
def test_caches_in_any_order(attend: Callable[..., Tensor], order: tuple[int, ...]) -> None:
    """Elements of a head lie side by side; sequences, slots and heads lie in any order."""
    rng = np.random.default_rng(4)
    case = Case(4, random_tail(rng, 2, 9), [100, 30], 4, 2, 16)
    back = [order.index(i) for i in range(4)]
    case.k, case.v = (x.permute(order).contiguous().permute(back) for x in (case.k, case.v))
    check(case, attend(*case.operands()))


def test_offsets_of_more_than_31_bits(attend: Callable[..., Tensor]) -> None:
    """Slots 2**24 elements apart.  A wrapped offset would point 2**32 elements lower, which is memory too, of zeros."""
    rng = np.random.default_rng(5)
    case = Case(5, random_tail(rng, 1, 4), [125], 2, 1, 16, torch.float16)
    stride, size = 2**24, case.k.shape[3]
    elements = 2**31 + case.k.shape[1] * stride
    if INTERPRETED:  # pages that are not touched take no memory
        pages = mmap.mmap(-1, 2 * elements, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000))
        buffer = torch.frombuffer(pages, dtype=torch.float16)
        device = "cpu"
    else:
        device = "cuda"
        if torch.cuda.mem_get_info()[0] < 3 * elements:
            pytest.skip(f"needs {2 * elements / 1e9:.0f} GB of GPU memory")
        buffer = torch.zeros(elements, dtype=torch.float16, device=device)
    spread = [buffer.as_strided(case.k.shape, (stride, stride, size, 1), 2**31 + offset) for offset in (0, stride // 2)]
    for there, x in zip(spread, (case.k, case.v), strict=True):
        there.copy_(x)
    expected = attend(*case.operands(), splits=2)
    from packed_ss.triton_kernels.tail_attention import attend as direct

    q, _, _, cache_len, tail_mask, scale = (x.to(device) if isinstance(x, Tensor) else x for x in case.operands())
    out = direct(q, *spread, cache_len, tail_mask, scale, splits=2)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize(("size", "dtype"), [(16, torch.float32), (20, torch.float16), (128, torch.bfloat16)])
def test_invariant_rows(attend: Callable[..., Tensor], size: int, dtype: torch.dtype) -> None:
    """Bit for bit: a causal row alone, among others, behind a shorter prefix, in another batch, in a cache of another size."""
    case = Case(6, np.tri(75, dtype=bool)[None], [1030], 3, 1, size, dtype, spare=500)
    q, k, v, cache_len, mask, scale = case.operands()
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies matrices of bfloat16 as integers")
    together = attend(q, k, v, cache_len, mask, scale, invariant=True)
    if dtype == torch.float32:
        check(case, together)
    for first, last in ((0, 1), (30, 63), (74, 75)):
        rows = last - first
        mask = Case(0, np.tri(rows, dtype=bool)[None], [0], 1, 1, 2).tail_mask
        here = cache_len + first
        some = attend(q[:, first:last], k, v, here, mask, scale, invariant=True)
        assert torch.equal(some, together[:, first:last])
        slots = int(here) + rows  # no slot more than needed, and a sequence with no prefix beside it
        twice = [x.expand(2, -1, -1, -1) for x in (q[:, first:last], k[:, :slots], v[:, :slots])]
        pair = attend(*twice, torch.cat((here, 0 * here)), mask, scale, invariant=True)
        assert torch.equal(pair[:1], some)


@pytest.mark.parametrize("cache_len", [-5, 31, 1000])
def test_lengths_that_do_not_fit_stay_inside_the_cache(attend: Callable[..., Tensor], cache_len: int) -> None:
    """As the nearest that does fit; the host does not look at them."""
    case = Case(7, np.tri(6, dtype=bool)[None], [20], 2, 1, 8, spare=4)
    slots = case.k.shape[1]
    case.k[:], case.v[:] = torch.randn(case.k.shape), torch.randn(case.v.shape)
    q, k, v, length, mask, scale = case.operands()
    out = attend(q, k, v, torch.full_like(length, cache_len), mask, scale)
    fit = attend(q, k, v, torch.full_like(length, min(max(cache_len, 0), slots)), mask, scale)
    assert torch.equal(out, fit)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda x: x.double(), "q must be .* in float32, bfloat16 or float16, got float64"),
        ("q", lambda x: x.repeat(1, 1, 1, 40), "q must have at least one head of 1 to 256 elements"),
        ("scale", lambda x: 0.0, "scale must be positive"),
        ("scale", lambda x: -x, "scale must be positive"),
        ("scale", lambda x: float("nan"), "scale must be positive"),
        ("scale", lambda x: float("inf"), "scale must be positive"),
    ],
)
def test_refuses(attend: Callable[..., Tensor], name: str, change: Callable, message: str) -> None:
    case = Case(8, np.tri(4, dtype=bool)[None], [3], 2, 1, 8)
    arguments = dict(zip(("q", "k_cache", "v_cache", "cache_len", "tail_mask", "scale"), case.operands(), strict=True))
    arguments[name] = change(arguments[name])
    with pytest.raises(ValueError, match=f"^tail_attention: .*{message}"):
        attend(*arguments.values())
