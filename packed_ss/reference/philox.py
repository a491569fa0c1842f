"""Counter-based randomness: Philox4x32-10 (Salmon et al., 2011), the map from words to uniforms, and Gumbel noise.

A number depends on (seed, absolute position, stream, vocabulary id) and on nothing else: not on the call, the row or the batch.
Each position is tested at most once in a generation and the streams are disjoint by purpose, so no number is ever used twice.
"""

from __future__ import annotations

import math
import struct

DRAFT, ACCEPT, TARGET = 0, 1, 2
"""Streams: the draw of a draft token, its acceptance coin (vocabulary id 0), and the draw of a correction, bonus or AR token."""

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LARGEST_UNIFORM = 1.0 - 2.0**-24


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of the Philox4x32-10 block for a ``counter`` of four and a ``key`` of two 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = _MULTIPLIERS[0] * c0
        product1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _WORD, (product0 >> 32) ^ c3 ^ k1, product0 & _WORD
        k0 = (k0 + _KEY_INCREMENTS[0]) & _WORD
        k1 = (k1 + _KEY_INCREMENTS[1]) & _WORD
    return c0, c1, c2, c3


def float32(x: float) -> float:
    """Return ``x`` rounded to the nearest float32, ties to even."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def word_to_uniform(word: int) -> float:
    """Map a 32-bit word to the float32 value u = min((word + 1/2) 2^-32, 1 - 2^-24), open at both ends.

    The word is rounded to float32, the product is exact, and the sum is rounded to float32 once, as on every device.
    """
    return min(float32(float32(word) * 2.0**-32 + 2.0**-33), _LARGEST_UNIFORM)


def gumbel(u: float) -> float:
    """Return the Gumbel variate -log(-log1p(-u)) for u in (0, 1); small u gives the large values that win an argmax."""
    return -math.log(-math.log1p(-u))


def _block(seed: int, position: int, stream: int, index: int) -> tuple[int, int, int, int]:
    """Return the block that holds vocabulary ids 4 * index ... 4 * index + 3; a negative ``seed`` counts modulo 2^64."""
    return philox4x32((position & _WORD, index, stream, 0), (seed & _WORD, (seed >> 32) & _WORD))


def uniform(seed: int, position: int, stream: int, token: int = 0) -> float:
    """Return the uniform (a float32 value in (0, 1)) of a vocabulary id at a position (absolute, from 0, prompt included).

    ``seed`` is a 64-bit integer, signed or not; ``stream`` is `DRAFT`, `ACCEPT` or `TARGET`.
    """
    return word_to_uniform(_block(seed, position, stream, token // 4)[token % 4])


class Randomness:
    """The noise of one sequence: everything it draws, addressed by position, stream and vocabulary id."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, position: int, stream: int) -> float:
        """Return the uniform of vocabulary id 0, which is the acceptance coin of a position."""
        return uniform(self.seed, position, stream)

    def gumbel(self, position: int, stream: int, vocab_size: int) -> list[float]:
        """Return Gumbel noise for the vocabulary ids 0 ... vocab_size - 1 at a position."""
        words = [word for index in range((vocab_size + 3) // 4) for word in _block(self.seed, position, stream, index)]
        return [gumbel(word_to_uniform(word)) for word in words[:vocab_size]]
