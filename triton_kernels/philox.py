"""Counter-based noise in kernels, and `uniform_noise`: Philox4x32-10 and the maps from its words to uniform and Gumbel variates.

A word is a function of (seed, position, stream, vocabulary id) and of nothing else (packed_ss/ops/philox.py, to which u is equal
bit for bit): key = the halves of the seed, counter = (position, id div 4, stream, 0), output lane id mod 4.  Philox is from
Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops.philox import check_uniform_noise

from . import tiles
from .checks import check_on_device
from .scores import log, log1p_of_minus

#: What a noise value is for (packed_ss.sampling.Stream).
DRAFT = tl.constexpr(0)
ACCEPT = tl.constexpr(1)
TARGET = tl.constexpr(2)


@triton.jit
def philox(seed, position, block, stream):
    """The four uint32 words of ids 4 block ... 4 block + 3; int64 seed, int32 position, block and stream, broadcast.

    Sums and products wrap, which Triton's debug mode must not take for a mistake.
    """
    key_low = seed.to(tl.uint32)
    key_high = (seed >> 32).to(tl.uint32)
    c0 = position.to(tl.uint32)
    c1 = block.to(tl.uint32)
    c2 = (position * 0 + stream).to(tl.uint32)
    c3 = c2 ^ c2
    for _ in tl.static_range(10):
        high_a, low_a = tl.umulhi(c0, 0xD2511F53), tl.mul(c0, 0xD2511F53, sanitize_overflow=False)
        high_b, low_b = tl.umulhi(c2, 0xCD9E8D57), tl.mul(c2, 0xCD9E8D57, sanitize_overflow=False)
        c0, c1, c2, c3 = high_b ^ c1 ^ key_low, low_b, high_a ^ c3 ^ key_high, low_a
        key_low = tl.add(key_low, 0x9E3779B9, sanitize_overflow=False)
        key_high = tl.add(key_high, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def to_uniform(word):
    """u = min((x + 1/2) 2^-32, 1 - 2^-24) in float32, open at both ends; the product is exact, so fma or not is the same."""
    return tl.minimum(tl.fma(word.to(tl.float32), 2.3283064365386963e-10, 1.1641532182693481e-10), 0.9999999403953552)


@triton.jit
def to_gumbel(u):
    """G = -log(-log1p(-u)).  The largest G, which win, come from the smallest u, and float32 resolves those."""
    return -log(-log1p_of_minus(u))


@triton.jit
def uniform_tile(seed, position, first_id, stream, SIZE: tl.constexpr):
    """u of ids first_id ... first_id + SIZE - 1, float32 [SIZE], for a scalar seed and position; first_id a multiple of 4."""
    x0, x1, x2, x3 = philox(seed, position, first_id // 4 + tl.arange(0, SIZE // 4), stream)
    words = tl.join(tl.join(x0, x2), tl.join(x1, x3))  # lanes 0, 1, 2, 3 lie in this order
    return to_uniform(tl.reshape(words, (SIZE,)))


@triton.jit
def _uniform_noise(seed_ptr, position_ptr, out_ptr, rows, vocab_size, stream, programs, SIZE: tl.constexpr):
    row = (tl.program_id(0) // programs).to(tl.int64)
    first = tl.program_id(0) % programs * SIZE
    u = uniform_tile(tl.load(seed_ptr + row // rows), tl.load(position_ptr + row), first, stream, SIZE)
    ids = first + tl.arange(0, SIZE)
    tl.store(out_ptr + row * vocab_size + ids, u, mask=ids < vocab_size)


def uniform_noise(seed: Tensor, position: Tensor, stream: int, vocab_size: int) -> Tensor:
    """`packed_ss.ops.philox.uniform_noise`: u[n, r, v], float32 [N, R, V], for seed [N] and position [N, R]."""
    check_uniform_noise(seed, position, stream, vocab_size)
    check_on_device("uniform_noise", "seed", seed)
    seed, position = seed.contiguous(), position.contiguous()
    out = torch.empty((*position.shape, vocab_size), dtype=torch.float32, device=position.device)
    if position.numel():
        size = max(16, min(4096, triton.next_power_of_2(vocab_size)))
        programs = triton.cdiv(vocab_size, size)
        # Reads 12 bytes a program, writes 4 N R V bytes.
        with tiles.on(position.device):
            _uniform_noise[(position.numel() * programs,)](seed, position, out, position.shape[1], vocab_size, stream, programs,
                                                           SIZE=size, num_warps=4)
    return out
