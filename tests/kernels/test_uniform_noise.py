"""uniform_noise, by whoever computes it, against the reference and against published values of Philox4x32-10."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from packed_ss.ops import native, philox
from packed_ss.ops.philox import _word_to_uniform, uniform_noise
from packed_ss.reference import philox as reference

from .backends import Backend

Noise = Callable[[Tensor, Tensor, int, int], Tensor]

SEEDS = (0, -1, 0x0123456789ABCDEF, -(2**63), 2**63 - 1)
POSITIONS = (0, 1, 4095, 2**31 - 1)
STREAMS = (reference.DRAFT, reference.ACCEPT, reference.TARGET)


@pytest.fixture
def noise(backend: Backend) -> Noise:
    """The operator by each backend."""
    return functools.partial(backend, "uniform_noise")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def one(seed: int, position: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([seed]), torch.tensor([[position]], dtype=torch.int32)


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 4, 5, 7, 111, 1025])
@pytest.mark.parametrize("stream", STREAMS)
def test_equals_the_reference_bit_for_bit(noise: Noise, vocab_size: int, stream: int) -> None:
    position = torch.tensor([POSITIONS] * len(SEEDS), dtype=torch.int32)
    u = noise(torch.tensor(SEEDS), position, stream, vocab_size)
    assert u.dtype == torch.float32
    assert u.is_contiguous()
    assert u.shape == (len(SEEDS), len(POSITIONS), vocab_size)
    # All ids of the short vocabularies, and both ends of the long ones (the reference is plain Python).
    ids = sorted({*range(min(vocab_size, 9)), *range(max(0, vocab_size - 70), vocab_size)})
    expected = [[[reference.uniform(s, p, stream, v) for v in ids] for p in POSITIONS] for s in SEEDS]
    assert u[:, :, ids].tolist() == expected


def test_published_block(noise: Noise) -> None:
    """The all-zero block of the Random123 distribution."""
    words = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    u = noise(*one(0, 0), 0, 4)
    assert u.flatten().tolist() == [reference.word_to_uniform(x) for x in words]


@pytest.mark.parametrize(
    ("seed", "position", "stream", "token", "expected"),
    [
        (0, 92880, 0, 2024, 2.0**-33),  # the word is 0
        (0, 948013, 1, 1644, 2.0**-33),
        (-1, 76687, 0, 1115, 1 - 2.0**-24),  # the word is 2^32 - 1
        (-2, 132891, 1, 1268, 1 - 2.0**-24),
    ],
)
def test_ends_are_open(noise: Noise, seed: int, position: int, stream: int, token: int, expected: float) -> None:
    u = noise(*one(seed, position), stream, token + 1)[0, 0, token]
    assert u.item() == expected
    assert torch.isfinite(-torch.log(-torch.log1p(-u)))


def test_torch_map_of_words_where_rounding_decides() -> None:
    """Ties of float32(x), and words on either side of the largest u."""
    words = [0, 1, 2, 2**23 + 1, 2**24 - 1, 2**24 + 1, 2**24 + 3, 2**25 + 2, 2**25 + 6, 2**31 - 65, 2**31 - 64, 2**31 + 128]
    words += [2**31 + 384, 2**32 - 513, 2**32 - 385, 2**32 - 384, 2**32 - 383, 2**32 - 257, 2**32 - 129, 2**32 - 128, 2**32 - 1]
    assert _word_to_uniform(torch.tensor(words)).tolist() == [reference.word_to_uniform(x) for x in words]


def test_native_equals_torch_however_rows_are_shared_out(threads: Callable[[int], None]) -> None:
    """A vocabulary long enough for several tasks a row, not a multiple of four or of a vector, on one thread and on several."""
    if not native.available():
        pytest.skip(f"no native kernels: {native.reason()}")
    seed, position = torch.tensor([5, -7]), torch.tensor([[3, 9, 27], [0, 1, 2]], dtype=torch.int32)
    expected = uniform_noise(seed, position, 2, 50_003)
    for count in (1, 2, 5):
        threads(count)
        assert torch.equal(torch.ops.packed_ss.uniform_noise(seed, position, 2, 50_003), expected)


def test_torch_version_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of the vocabulary are laid end to end, whatever their length."""
    seed, position = torch.tensor([5, -7]), torch.tensor([[3, 9, 27], [0, 1, 2]], dtype=torch.int32)
    whole = uniform_noise(seed, position, 0, 203)
    for blocks_at_once in (1, 42, 60):
        monkeypatch.setattr(philox, "_BLOCKS_AT_ONCE", blocks_at_once)
        assert torch.equal(uniform_noise(seed, position, 0, 203), whole)


def test_rows_do_not_depend_on_their_neighbours_or_strides(noise: Noise) -> None:
    seed = torch.arange(6)
    position = torch.arange(60, dtype=torch.int32).reshape(10, 6).t()
    whole = noise(seed, position, 0, 37)
    assert torch.equal(noise(seed[1::2], position[1::2, 3::4], 0, 11), whole[1::2, 3::4, :11])


def test_nothing_to_draw(noise: Noise) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert noise(none, torch.zeros(0, 3, dtype=torch.int32), 0, 5).shape == (0, 3, 5)
    assert noise(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int32), 0, 5).shape == (2, 0, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2), torch.zeros(2, 1, dtype=torch.int32), 0, 5), "seed must be int64"),
        ((torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int32), 0, 5), "seed must be int64"),
        ((torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64), 0, 5), "position must be int32"),
        ((torch.zeros(2, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int32), 0, 5), "position must be int32"),
        ((torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32), 0, 5), "position must be int32"),
        ((*one(0, 0), 3, 5), "stream must be 0"),
        ((*one(0, 0), -1, 5), "stream must be 0"),
        ((*one(0, 0), 0, 0), "vocab_size must be in 1"),
        ((*one(0, 0), 0, 2**31), "vocab_size must be in 1"),
    ],
)
def test_refuses(noise: Noise, arguments: tuple[Tensor, Tensor, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noise(*arguments)


@pytest.mark.parametrize("vocab_size", [1, 6])
def test_operator_contract(vocab_size: int) -> None:
    torch.library.opcheck(torch.ops.packed_ss.uniform_noise.default, (*one(1, 2), 1, vocab_size))


def test_native_kernel_takes_precedence() -> None:
    if not native.available():
        pytest.skip(f"no native kernels: {native.reason()}")
    for name in native.info()["kernels"]["cpu"]:
        table = torch._C._dispatch_dump_table(f"packed_ss::{name}").splitlines()
        [entry] = [line for line in table if line.startswith("CPU:")]
        assert "bindings.cpp" in entry, entry
