"""Plain-torch version of `uniform_noise`: Philox4x32-10 in int64 arithmetic, for any device.

Equal bit for bit to csrc/include/packed_ss/philox.h and to packed_ss.reference.philox. The word of vocabulary id v at a
position is output lane v % 4 of

    Philox4x32-10(key = (seed mod 2^32, seed div 2^32), counter = (position, v div 4, stream, 0))

(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_BLOCKS_AT_ONCE = 1 << 17  # keeps the int64 intermediates near the caches of a CPU
_STREAMS = 3  # draft, accept, target
_MAX_VOCAB_SIZE = 2**31 - 1


def uniform_noise(seed: Tensor, position: Tensor, stream: int, vocab_size: int) -> Tensor:
    """Uniform variates u[n, r, v], each a function of (seed[n], position[n, r], stream, v) alone.

    Args:
        seed: int64 [N]; read as 64 unsigned bits.
        position: int32 [N, R]; absolute 0-based index of the token being drawn, read as unsigned.
        stream: 0 (draft), 1 (accept) or 2 (target).
        vocab_size: V, 1 ... 2^31 - 1.

    Returns:
        float32 [N, R, V], 2^-33 <= u <= 1 - 2^-24. Nothing is read back from the device.

    Raises:
        ValueError: for another dtype, shape, stream or size.
    """
    check_uniform_noise(seed, position, stream, vocab_size)
    low = (seed & _LOW)[:, None, None]
    high = ((seed >> 32) & _LOW)[:, None, None]
    index = position.to(torch.int64)[:, :, None] & _LOW
    blocks = (vocab_size + 3) // 4
    out = torch.empty(*position.shape, blocks, 4, dtype=torch.float32, device=position.device)
    step = max(1, _BLOCKS_AT_ONCE // max(1, position.numel()))
    for start in range(0, blocks, step):
        part = out[:, :, start : start + step]
        block = torch.arange(start, start + part.shape[2], dtype=torch.int64, device=position.device)
        words = _philox(low, high, (index, block, torch.full_like(block, stream), torch.zeros_like(block)))
        for lane, word in enumerate(words):
            part[..., lane] = _word_to_uniform(word)
    return out.flatten(-2)[..., :vocab_size].contiguous()


def check_uniform_noise(seed: Tensor, position: Tensor, stream: int, vocab_size: int) -> None:
    """Refuses what `uniform_noise` does not accept, in the words of the native kernel."""
    if seed.dtype != torch.int64 or seed.dim() != 1:
        raise ValueError(f"uniform_noise: seed must be int64 [N], got {seed.dtype} {list(seed.shape)}.")
    if position.dtype != torch.int32 or position.dim() != 2 or position.shape[0] != seed.shape[0]:
        raise ValueError(
            f"uniform_noise: position must be int32 [N, R] with N = {seed.shape[0]} as in seed, "
            f"got {position.dtype} {list(position.shape)}."
        )
    if seed.device != position.device:
        raise ValueError(f"uniform_noise: seed and position must be on one device, got {seed.device} and {position.device}.")
    if not 0 <= stream < _STREAMS:
        raise ValueError(f"uniform_noise: stream must be 0 (draft), 1 (accept) or 2 (target), got {stream}.")
    if not 1 <= vocab_size <= _MAX_VOCAB_SIZE:
        raise ValueError(f"uniform_noise: vocab_size must be in 1 ... 2^31 - 1, got {vocab_size}.")


def _philox(low: Tensor, high: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 on int64 tensors that hold 32-bit words, broadcast against each other."""
    c0, c1, c2, c3 = counter
    for step in range(_ROUNDS):
        key_low = (low + step * _KEY_STEPS[0]) & _LOW
        key_high = (high + step * _KEY_STEPS[1]) & _LOW
        high_a, low_a = _multiply(_MULTIPLIERS[0], c0)
        high_b, low_b = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high_b ^ c1 ^ key_low, low_b, high_a ^ c3 ^ key_high, low_a
    return c0, c1, c2, c3


def _multiply(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of the 64-bit product of a multiplier m >= 2^31 and 32-bit words c.

    m c = (m - 2^32) c + 2^32 c. The first term fits into int64, which m c does not, and the second is c in the high word.
    """
    product = (multiplier - (1 << 32)) * word
    return (product >> 32) + word, product & _LOW


def _word_to_uniform(word: Tensor) -> Tensor:
    """u = min((x + 1/2) 2^-32, 1 - 2^-24): one rounding in float32(x), none in the product, one in the sum."""
    return (word.to(torch.float32) * 2.0**-32 + 2.0**-33).clamp_max(1.0 - 2.0**-24)
