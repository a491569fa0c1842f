"""compact_cache as a Triton kernel (packed_ss/ops/ordered.py): pairs beyond the end leave the cache, in order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops import checks_ordered as checks

from . import tiles
from .checks import check_on_device

#: Elements of a slot that a program takes, and bytes of slots that it has in registers.
_ELEMENTS = 512
_BYTES = 16384


@triton.jit
def _move(cache_ptr, source_ptr, moved, cache_len, stride_slot, slots, element, exists, SLOTS: tl.constexpr):
    """Slots moved ... cache_len - 1 of one sequence and layer."""
    for start in range(moved, cache_len, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        source = tl.load(source_ptr + slot, mask=slot < cache_len, other=-1)
        moves = ((source >= 0) & (source < slots))[:, None] & exists[None, :]
        pairs = tl.load(cache_ptr + source.to(tl.int64)[:, None] * stride_slot + element[None, :], mask=moves)
        # Sources ascend and lie to the right: what later steps read is not overwritten, what this one reads may be.
        tl.debug_barrier()
        tl.store(cache_ptr + slot.to(tl.int64)[:, None] * stride_slot + element[None, :], pairs, mask=moves)


@triton.jit(do_not_specialize=["sequences", "slots", "width"])
def move_slots(keys_ptr, values_ptr, cache_len_ptr, source_ptr, moved_ptr, stride_layer, stride_n, stride_slot, sequences, slots,
               elements, width, SLOTS: tl.constexpr, ELEMENTS: tl.constexpr):
    """Program (layer and sequence, ELEMENTS of a slot).

    Reads 8 bytes where nothing has moved, which is nearly always; else reads and writes every slot from the first that has.
    """
    i = tl.program_id(0) % sequences
    moved, cache_len = tl.load(moved_ptr + i), tl.load(cache_len_ptr + i)
    cache_len = tl.minimum(cache_len, slots)
    if moved < cache_len:
        layer = (tl.program_id(0) // sequences).to(tl.int64)
        element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
        at = layer * stride_layer + i.to(tl.int64) * stride_n
        source_ptr += i.to(tl.int64) * width
        _move(keys_ptr + at, source_ptr, moved, cache_len, stride_slot, slots, element, element < elements, SLOTS)
        _move(values_ptr + at, source_ptr, moved, cache_len, stride_slot, slots, element, element < elements, SLOTS)


def compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, source: Tensor, moved: Tensor) -> None:
    """`packed_ss.ops.ordered.compact_cache`: slot s takes slot source[s] for moved <= s < cache_len.

    keys, values [layers, N or more, C, Hkv, D] of any dtype.  One launch, safe to capture.
    """
    checks.check_compact_cache(keys, values, cache_len, source, moved)
    check_on_device("compact_cache", "keys", keys)
    layers, _, capacity, heads, size = keys.shape
    n = cache_len.shape[0]
    if keys.numel() and n:
        elements = min(_ELEMENTS, tiles.padded(heads * size))
        slots = max(1, _BYTES // (elements * keys.element_size()))
        move_slots[(layers * n, triton.cdiv(heads * size, elements))](
            keys, values, cache_len, source, moved, *keys.stride()[:3], n, min(capacity, source.shape[1]), heads * size,
            source.shape[1], SLOTS=slots, ELEMENTS=elements, num_warps=4)
