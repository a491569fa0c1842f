"""tail_attention on every backend, against a dense softmax in float64."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from packed_ss.layouts.block import BlockCall
from packed_ss.models.attention import SlotCache
from packed_ss.models.config import ModelConfig
from packed_ss.rows import pack_bits

from .attention_backends import BACKENDS, ON_GPU, kernel

# Of numpy, in Triton's interpreter.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")

# Of the result, relative and absolute.  Sums are float32 or better: below it, the one rounding of the result decides.
TOLERANCE = {
    torch.float64: (1e-12, 1e-13),
    torch.float32: (2e-6, 1e-6),
    torch.bfloat16: (2.0**-8, 1e-5),
    torch.float16: (2.0**-10, 1e-5),
}
# These round each weight to the dtype of the values, as tensor cores require.
ROUNDS_WEIGHTS = {"triton", *ON_GPU}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Attention of q [N, R, Hq, D] over the slots that seen [N, R, C] names, in float64, one row and head at a time.

    NaN where there is no such slot, and where one of them holds a value that is not finite.
    """
    q, k, v = q.double(), k.double(), v.double()
    out = torch.full(q.shape, math.nan, dtype=torch.float64)
    group = q.shape[2] // k.shape[2]
    for n, r, h in np.ndindex(q.shape[:3]):
        slots = seen[n, r].nonzero()[:, 0]
        keys, values = k[n, slots, h // group], v[n, slots, h // group]
        if len(slots) and values.isfinite().all():
            out[n, r, h] = torch.softmax(keys @ q[n, r, h] * scale, 0) @ values
    return out


def visible(cache_len: list[int], tail: np.ndarray, slots: int) -> Tensor:
    """seen [N, R, slots] for a tail [1 or N, R, S] of bools: the prefix, and slot cache_len + s where tail[..., s]."""
    tail = np.broadcast_to(tail, (len(cache_len), *tail.shape[1:]))
    seen = np.zeros((len(cache_len), tail.shape[1], slots + tail.shape[2]), dtype=bool)
    for n, length in enumerate(cache_len):
        seen[n, :, :length] = True
        seen[n, :, length : length + tail.shape[2]] = tail[n]
    return torch.from_numpy(seen[..., :slots])


class Case:
    """Random operands; every slot that no row of a sequence sees holds NaN, and so does memory around the caches."""

    def __init__(
        self,
        seed: int,
        tail: np.ndarray,
        cache_len: list[int],
        heads: int,
        kv_heads: int,
        size: int,
        dtype: torch.dtype = torch.float32,
        spare: int = 3,
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        n, rows = len(cache_len), tail.shape[1]
        slots = max(cache_len) + rows + spare
        self.q, wide_k, wide_v = (
            torch.randn(n, length, h, size, generator=rng, dtype=torch.float64).to(dtype)
            for length, h in ((rows, heads), (slots + 5, kv_heads), (slots + 5, kv_heads))
        )
        wide_k[:, slots:] = wide_v[:, slots:] = math.nan
        self.k, self.v = wide_k[:, :slots], wide_v[:, :slots]
        self.seen = visible(cache_len, tail, slots)
        nobody = ~self.seen.any(1)
        self.k[nobody] = self.v[nobody] = math.nan
        self.cache_len = torch.tensor(cache_len, dtype=torch.int32)
        self.tail_mask = torch.from_numpy(pack_bits(tail).astype(np.int32))
        self.scale = size**-0.5

    def operands(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
        return self.q, self.k, self.v, self.cache_len, self.tail_mask, self.scale

    def expected(self) -> Tensor:
        return dense(self.q, self.k, self.v, self.seen, self.scale)

    def check(self, backend: str) -> Tensor:
        out = kernel(backend, "tail_attention")(*self.operands())
        assert out.dtype == self.q.dtype
        assert out.is_contiguous() or backend == "torch"
        rtol, atol = TOLERANCE[self.q.dtype]
        expected = self.expected()
        if backend in ROUNDS_WEIGHTS and self.q.dtype.itemsize == 2:
            # A rounded weight is off by a fraction of itself: by so much of the mean of |v| is the result.
            atol = atol + rtol * dense(self.q, self.k, self.v.abs(), self.seen, self.scale).nan_to_num(0)
            assert torch.equal(out.isnan(), expected.isnan())
            assert ((out.double() - expected).abs().nan_to_num(0) <= atol + rtol * expected.abs().nan_to_num(0)).all()
        else:
            torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=atol, equal_nan=True)
        return out


def random_tail(rng: np.random.Generator, n: int, rows: int, share: float = 0.5) -> np.ndarray:
    """[n, rows, rows]; each row sees itself, as in every layout."""
    return (rng.random((n, rows, rows)) < share) | np.eye(rows, dtype=bool)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [1, 2, 7, 31, 32, 33, 64, 97, 289])
def test_any_number_of_rows(backend: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    Case(rows, random_tail(rng, 1, rows), [57], 2, 1, 8).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_batch_of_different_lengths(backend: str, shared: bool, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    Case(3, random_tail(rng, 1 if shared else 4, 35), [0, 1, 95, 300], 6, 2, 32, dtype).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [2, 8, 20, 32, 64, 80, 128])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_head_sizes(backend: str, size: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(size)
    Case(size, random_tail(rng, 1, 9), [130], 4, 2, size, dtype).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", range(1, 9))
def test_query_heads_that_share_a_key_head(backend: str, group: int) -> None:
    rng = np.random.default_rng(group)
    Case(group, random_tail(rng, 2, 11), [40, 5], 3 * group, 3, 16).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cache_len", [0, 31, 32, 63, 94, 95, 96, 97, 127, 191, 192, 500])
def test_where_the_tail_begins(backend: str, cache_len: int) -> None:
    """On and around the boundaries of words, of blocks of keys, and of tiles within them."""
    rng = np.random.default_rng(cache_len)
    for rows in (3, 40):
        Case(cache_len, random_tail(rng, 1, rows), [cache_len], 3, 1, 8, spare=0).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("verifier_rows", "cuts"), [(1, ()), (4, (0,)), (0, (0,)), (4, (0, 1, 2, 3)), (16, (0, 4, 8)), (16, ())])
def test_block_layouts(backend: str, verifier_rows: int, cuts: tuple[int, ...]) -> None:
    call = BlockCall(verifier_rows, 16 if verifier_rows == 16 else 4, cuts)
    Case(5, call.visibility()[None], [77, 12], 4, 2, 32).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_long_causal_tail_without_prefix(backend: str) -> None:
    """As a prompt has: hundreds of rows in several tiles, most blocks of keys hidden from most of them."""
    Case(6, np.tri(300, dtype=bool)[None], [0], 2, 1, 16).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_the_prefix_alone(backend: str) -> None:
    Case(4, np.zeros((2, 5, 5), dtype=bool), [50, 100], 2, 1, 8).check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ahead", [0, 10])
def test_rows_that_see_one_slot(backend: str, ahead: int) -> None:
    """Row r sees tail slot r + ahead alone: for many blocks of keys a row has seen nothing, while its neighbours have."""
    case = Case(7, np.eye(200, k=ahead, dtype=bool)[None], [0], 2, 1, 8)
    out = case.check(backend)
    torch.testing.assert_close(out[0, : 200 - ahead], case.v[0, ahead:200].expand(-1, 2, -1), rtol=1e-6, atol=0)
    assert out[0, 200 - ahead :].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["k", "v"])
@pytest.mark.parametrize("slot", [10, 60, 64])
def test_only_rows_that_see_a_bad_slot_are_bad(backend: str, poison: float, where: str, slot: int) -> None:
    """Slots 60 ... are the tail.  A value that is not finite makes the row NaN; a key does as its scores in a softmax do."""
    rng = np.random.default_rng(8)
    case = Case(8, random_tail(rng, 1, 20), [60], 4, 2, 16)
    getattr(case, where)[0, slot, 1, 3] = poison
    out = case.check(backend)
    bad = out.isnan().all(-1)
    assert torch.equal(bad, out.isnan().any(-1))
    assert not bad[0, :, :2].any(), "the other key head has nothing wrong"
    if where == "v" or math.isnan(poison):
        assert torch.equal(bad[0, :, 2], case.seen[0, :, slot])
        assert torch.equal(bad[0, :, 3], case.seen[0, :, slot])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_that_sees_nothing_is_nan(backend: str) -> None:
    tail = np.eye(6, dtype=bool)[None].copy()
    tail[0, 2] = False
    out = Case(9, tail, [0], 2, 1, 8).check(backend)
    assert out.isnan().all(-1).all(-1)[0].tolist() == [r == 2 for r in range(6)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_of_any_size(backend: str) -> None:
    """Large scores of both signs, also where the largest comes late, and values near the ends of float32."""
    rng = np.random.default_rng(10)
    case = Case(10, random_tail(rng, 1, 24), [200], 2, 1, 8)
    case.k[0, :200] *= torch.linspace(-300, 300, 200)[:, None, None]
    case.v *= 1e30
    rows = case.seen[0].any(0)
    out = kernel(backend, "tail_attention")(*case.operands())
    bound = case.v[0, rows].abs().max().item()
    torch.testing.assert_close(out.double() / bound, case.expected() / bound, rtol=1e-4, atol=1e-5)
    case.k[0, rows] = 1e30 * case.k[0, rows].sign()
    case.q[:] = 1e-3
    case.v[0, rows] = 1.0
    torch.testing.assert_close(kernel(backend, "tail_attention")(*case.operands()), torch.ones_like(case.q))


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_operands(backend: str) -> None:
    """Views of a larger cache and of a qkv tensor, as the model passes them; then other orders of q in memory."""
    config = ModelConfig(
        vocab_size=8,
        hidden_size=32,
        num_layers=3,
        intermediate_size=8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        mask_token_id=0,
        eos_token_ids=(),
    )
    cache = SlotCache(config, 4, 90, torch.float32, torch.device("cpu"))
    cache.keys.fill_(math.nan)
    cache.values.fill_(math.nan)
    rng = np.random.default_rng(11)
    case = Case(11, random_tail(rng, 2, 13), [50, 9], 4, 2, 8)
    keys, values = cache.layers(2, case.k.shape[1])[1]
    case.k, case.v = keys.copy_(case.k), values.copy_(case.v)
    assert not case.k.is_contiguous()
    qkv = torch.full((2, 13, 8, 8), math.nan)
    qkv[:, :, 1:5] = case.q
    case.q = qkv[:, :, 1:5]
    case.check(backend)
    for a, b in ((2, 3), (1, 2)):
        case.q = case.q.transpose(a, b).contiguous().transpose(a, b)
        case.check(backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bits_past_the_last_slot_mean_nothing(backend: str) -> None:
    rng = np.random.default_rng(12)
    case = Case(12, random_tail(rng, 1, 40, 1.0), [100], 2, 1, 8)
    for slots in (120, 115):
        case.k, case.v, case.seen = case.k[:, :slots], case.v[:, :slots], case.seen[..., :slots]
        case.check(backend)


@pytest.mark.parametrize("backend", ["torch", "cpu", "triton"])
def test_no_rows_and_no_sequences(backend: str) -> None:
    attention, cache = kernel(backend, "tail_attention"), torch.zeros(2, 5, 1, 4)
    none = torch.zeros(2, 0, 0, dtype=torch.int32)
    assert attention(torch.zeros(2, 0, 1, 4), cache, cache, torch.zeros(2, dtype=torch.int32), none, 1.0).shape == (2, 0, 1, 4)
    mask, length = torch.ones(1, 3, 1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    assert attention(torch.zeros(0, 3, 1, 4), cache[:0], cache[:0], length, mask, 1.0).shape == (0, 3, 1, 4)


@pytest.mark.parametrize("shape", [(1, 1, 8, 2), (1, 31, 6, 2), (1, 50, 6, 1), (3, 64, 8, 1), (1, 289, 4, 4)])
def test_however_the_work_is_shared_out(threads: None, shape: tuple[int, int, int, int]) -> None:
    """Prefixes long enough to be split, on one thread and on several."""
    n, rows, heads, kv_heads = shape
    rng = np.random.default_rng(13)
    case = Case(13, random_tail(rng, 1, rows), [3000 - 700 * i for i in range(n)], heads, kv_heads, 32)
    attention, expected = kernel("cpu", "tail_attention"), kernel("torch", "tail_attention")(*case.operands())
    for count in (1, 2, 5, 2, 2, 2):  # more than once, as what threads do to one another they do not always do
        torch.set_num_threads(count)
        torch.testing.assert_close(attention(*case.operands()), expected, rtol=1e-5, atol=1e-6)


def test_a_row_does_not_depend_on_the_others(threads: None) -> None:
    """Bit for bit the same alone and among others, as prefix and as tail: what a schedule adds to a call changes no row."""
    attention = kernel("cpu", "tail_attention")
    torch.set_num_threads(1)
    case = Case(14, np.tri(75, dtype=bool)[None], [150], 6, 2, 32)
    together = attention(*case.operands())
    for row in (0, 1, 30, 74):
        one = torch.ones(1, 1, 1, dtype=torch.int32)
        alone = attention(case.q[:, row : row + 1], case.k, case.v, case.cache_len + row, one, case.scale)
        assert torch.equal(alone[:, 0], together[:, row])


def test_memory_does_not_grow_with_the_prefix() -> None:
    """Every allocation of torch in the call, summed: the result and scratch of a fixed size."""
    attention = kernel("cpu", "tail_attention")

    def allocated(cache_len: int) -> int:
        rng = np.random.default_rng(15)
        case = Case(15, random_tail(rng, 1, 16), [cache_len], 4, 2, 32)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            attention(*case.operands())
        sizes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        assert sum(size > 0 for size in sizes) >= 2, "the profiler missed the result or the scratch"
        return sum(size for size in sizes if size > 0)

    short, long = allocated(1000), allocated(64_000)
    assert long == short
    assert short < 2**20


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_other_instruction_sets(capability: str) -> None:
    """Torch's own switch takes this process's kernels down to narrower vectors, or to none."""
    kernel("cpu", "tail_attention")
    code = "import tests.kernels.test_attention as t, torch; t.check_some(); print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().lower() in (capability, "default", "no avx")


def check_some() -> None:
    """What the test above runs in a process of its own."""
    rng = np.random.default_rng(16)
    for dtype in TOLERANCE:
        for size in (8, 20, 128):
            case = Case(size, random_tail(rng, 2, 37), [111, 40], 4, 2, size, dtype)
            case.check("cpu")
            case.v[0, 100] = math.inf
            case.check("cpu")


def operands() -> dict[str, Tensor | float]:
    """Valid ones, by name."""
    case = Case(17, np.tri(40, dtype=bool)[None], [3, 5], 4, 2, 8)
    return dict(zip(("q", "k_cache", "v_cache", "cache_len", "tail_mask", "scale"), case.operands(), strict=True))


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda x: x[0], "q must be"),
        ("q", lambda x: x.int(), "q must be"),
        ("q", lambda x: x[:, :, :3], "multiple of the heads"),
        ("q", lambda x: x[:, :, :0], "q must have at least one head"),
        ("q", lambda x: x[:1], "k_cache must be"),
        ("q", lambda x: x[..., :4], "k_cache must be"),
        ("k_cache", lambda x: x.double(), "k_cache must be (Float|float32)"),
        ("k_cache", lambda x: x[..., 0], "k_cache must be"),
        ("k_cache", lambda x: x[:, :-1], "v_cache must have the shape"),
        ("k_cache", lambda x: x.transpose(2, 3).contiguous().transpose(2, 3), "k_cache must be contiguous"),
        ("v_cache", lambda x: x.bfloat16(), "v_cache must be (Float|float32)"),
        ("v_cache", lambda x: x.repeat(1, 1, 2, 1)[:, :, ::2], "v_cache must be contiguous"),
        ("cache_len", lambda x: x.long(), "cache_len must be int32"),
        ("cache_len", lambda x: x[:1], "cache_len must be int32"),
        ("cache_len", lambda x: x - 4, "cache_len must be in 0"),
        ("cache_len", lambda x: x + 1000, "cache_len must be in 0"),
        ("tail_mask", lambda x: x.long(), "tail_mask must be int32"),
        ("tail_mask", lambda x: x[..., :1], "tail_mask must be int32"),
        ("tail_mask", lambda x: x.repeat(1, 1, 2), "tail_mask must be int32"),
        ("tail_mask", lambda x: x[:, :-1], "tail_mask must be int32"),
        ("tail_mask", lambda x: x.repeat(3, 1, 1), "tail_mask must be int32"),
        ("tail_mask", lambda x: x[0], "tail_mask must be int32"),
    ],
)
def test_refuses(backend: str, name: str, change, message: str) -> None:
    if backend == "triton" and message in ("cache_len must be in 0", "v_cache must be contiguous"):
        pytest.skip("Triton kernels stay inside the cache whatever lengths say, and take any stride of heads")
    attention, arguments = kernel(backend, "tail_attention"), operands()
    arguments[name] = change(arguments[name])
    with pytest.raises(ValueError, match=f"^tail_attention: .*{message}"):
        attention(*arguments.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operator_contract(dtype: torch.dtype) -> None:
    case = Case(18, np.tri(5, dtype=bool)[None], [4, 2], 4, 2, 8, dtype)
    torch.library.opcheck(
        torch.ops.packed_ss.tail_attention.default, case.operands(), test_utils=["test_schema", "test_faketensor"]
    )
