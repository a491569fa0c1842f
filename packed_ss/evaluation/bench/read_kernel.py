"""A kernel that only reads: the floor of whatever must read as much."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 8192
_PROGRAMS_PER_MULTIPROCESSOR = 4


@triton.jit
def read_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Program p: the exclusive or of blocks p, p + programs, ...  Reads 4 * size bytes in all, writes 4 a program."""
    word = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        found ^= tl.load(x_ptr + start + word, mask=start + word < size, other=0)
    tl.store(out_ptr + tl.program_id(0), tl.xor_sum(found, 0))


def reader(data: Tensor, programs: int | None = None) -> Callable[[], Tensor]:
    """A run that reads ``data``, contiguous and of less than 8 GiB, once, by so many programs (None: as many as fill the card).

    It returns [programs] int32, whose exclusive or is that of all words.
    """
    words = data.view(-1).view(torch.uint8)[: data.numel() * data.itemsize // 4 * 4].view(torch.int32)
    if programs is None:
        programs = triton.cdiv(words.numel(), _BLOCK)
    if data.is_cuda:
        multiprocessors = torch.cuda.get_device_properties(data.device).multi_processor_count
        programs = min(programs, _PROGRAMS_PER_MULTIPROCESSOR * multiprocessors)
    out = torch.empty(programs, dtype=torch.int32, device=data.device)

    def read() -> Tensor:
        read_kernel[(programs,)](words, out, words.numel(), BLOCK=_BLOCK, num_warps=8)
        return out

    return read
