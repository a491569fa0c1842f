from __future__ import annotations

import math

import pytest

from packed_ss.reference.philox import ACCEPT, DRAFT, TARGET, Randomness, float32, gumbel, philox4x32, uniform, word_to_uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_blocks(
    counter: tuple[int, int, int, int], key: tuple[int, int], block: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == block


def test_the_uniform_map_at_both_ends() -> None:
    assert word_to_uniform(0) == 2.0**-33
    assert word_to_uniform(1) == 1.5 * 2.0**-32
    # the words whose float32 is 2^32 or its predecessor would give 1.0 or stay below it
    assert word_to_uniform(0xFFFFFFFF) == 1.0 - 2.0**-24
    assert word_to_uniform(0xFFFFFF80) == 1.0 - 2.0**-24
    assert word_to_uniform(0xFFFFFF7F) == 1.0 - 2.0**-24
    assert word_to_uniform(0xFFFFFE7F) == 1.0 - 2.0**-23


def test_the_uniform_map_is_monotone_open_and_float32() -> None:
    words = sorted({*range(3000), *(ONES - i for i in range(3000)), *(1 << i for i in range(32)), *range(0, ONES, 10_000_019)})
    values = [word_to_uniform(word) for word in words]
    assert values == sorted(values)
    assert all(0.0 < u < 1.0 and float32(u) == u for u in values)
    assert max(abs(u - (word + 0.5) * 2.0**-32) for u, word in zip(values, words, strict=True)) <= 2.0**-24


def test_the_sum_is_rounded_once_to_even() -> None:
    assert word_to_uniform((1 << 22) + 1) == ((1 << 22) + 1.5) * 2.0**-32
    # half way between two float32 values: the even one is taken, above and below
    assert word_to_uniform((1 << 23) + 1) == ((1 << 23) + 2) * 2.0**-32
    assert word_to_uniform((1 << 23) + 2) == ((1 << 23) + 2) * 2.0**-32
    # a word that float32 cannot hold is rounded before the sum, which the exact word + 1/2 would not survive
    assert word_to_uniform((1 << 24) + 1) == (1 << 24) * 2.0**-32
    assert word_to_uniform((1 << 25) + 2) == (1 << 25) * 2.0**-32


def test_gumbel_noise_is_finite_at_both_ends_and_keeps_the_winning_tail() -> None:
    largest, smallest = gumbel(word_to_uniform(0)), gumbel(word_to_uniform(ONES))
    assert largest == pytest.approx(33.0 * math.log(2.0), rel=1e-10)
    assert smallest == pytest.approx(-math.log(24.0 * math.log(2.0)), rel=1e-10)
    # without log1p, 1 - u would be 1 for the smallest u and the noise infinite
    assert gumbel(2.0**-60) == pytest.approx(60.0 * math.log(2.0), rel=1e-12)


def test_the_counter_is_position_block_stream_and_the_key_is_the_seed() -> None:
    seed = 0x0123456789ABCDEF
    for position, stream, token in [(0, DRAFT, 0), (7, ACCEPT, 0), (7, TARGET, 131_071), (2**31, DRAFT, 5)]:
        block = philox4x32((position, token // 4, stream, 0), (0x89ABCDEF, 0x01234567))
        assert uniform(seed, position, stream, token) == word_to_uniform(block[token % 4])
    assert (DRAFT, ACCEPT, TARGET) == (0, 1, 2)


def test_a_negative_seed_is_its_twos_complement() -> None:
    assert uniform(-1, 3, TARGET, 9) == uniform(2**64 - 1, 3, TARGET, 9)


def test_rows_of_noise_agree_with_single_numbers() -> None:
    randomness = Randomness(2**63 + 11)
    for vocab_size in (1, 2, 7, 8, 9):
        row = randomness.gumbel(5, TARGET, vocab_size)
        assert row == [gumbel(uniform(2**63 + 11, 5, TARGET, token)) for token in range(vocab_size)]
    assert randomness.uniform(5, ACCEPT) == uniform(2**63 + 11, 5, ACCEPT, 0)


def test_no_number_is_used_twice() -> None:
    numbers = {
        uniform(seed, position, stream, token)
        for seed in (0, 1, 1 << 32)
        for position in range(8)
        for stream in (DRAFT, ACCEPT, TARGET)
        for token in range(8)
    }
    assert len(numbers) == 3 * 8 * 3 * 8
