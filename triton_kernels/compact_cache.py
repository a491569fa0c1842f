"""compact_cache as a Triton kernel (packed_ss/ops/advance_ordered.py): pairs beyond the end leave the cache, in order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from packed_ss.ops import checks

from . import tiles
from .checks import check_on_device

#: Elements of a slot that a program takes, and bytes of slots that it has in registers.
_ELEMENTS = 512
_BYTES = 16384


@triton.jit
def _move(cache_ptr, moved_from_ptr, first_moved, cache_len, stride_slot, slots, element, exists, SLOTS: tl.constexpr):
    """Slots first_moved ... cache_len - 1 of one sequence and layer."""
    for start in range(first_moved, cache_len, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        taken = tl.load(moved_from_ptr + slot, mask=slot < cache_len, other=-1)
        moves = ((taken >= 0) & (taken < slots))[:, None] & exists[None, :]
        pairs = tl.load(cache_ptr + taken.to(tl.int64)[:, None] * stride_slot + element[None, :], mask=moves)
        # Slots to take from ascend and lie to the right: what later steps read is not overwritten, what this one reads may be.
        tl.debug_barrier()
        tl.store(cache_ptr + slot.to(tl.int64)[:, None] * stride_slot + element[None, :], pairs, mask=moves)


@triton.jit(do_not_specialize=["sequences", "slots", "width"])
def move_slots(keys_ptr, values_ptr, cache_len_ptr, first_moved_ptr, moved_from_ptr, stride_layer, stride_n, stride_slot,
               sequences, slots, elements, width, SLOTS: tl.constexpr, ELEMENTS: tl.constexpr):
    """Program (layer and sequence, ELEMENTS of a slot).

    Reads 8 bytes where nothing has moved, which is nearly always; else reads and writes every slot from the first that has.
    """
    i = tl.program_id(0) % sequences
    first_moved, cache_len = tl.load(first_moved_ptr + i), tl.load(cache_len_ptr + i)
    cache_len = tl.minimum(cache_len, slots)
    if first_moved < cache_len:
        layer = (tl.program_id(0) // sequences).to(tl.int64)
        element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
        at = layer * stride_layer + i.to(tl.int64) * stride_n
        moved_from_ptr += i.to(tl.int64) * width
        _move(keys_ptr + at, moved_from_ptr, first_moved, cache_len, stride_slot, slots, element, element < elements, SLOTS)
        _move(values_ptr + at, moved_from_ptr, first_moved, cache_len, stride_slot, slots, element, element < elements, SLOTS)


def compact_cache(keys: Tensor, values: Tensor, cache_len: Tensor, first_moved: Tensor, moved_from: Tensor) -> None:
    """`packed_ss.ops.advance_ordered.compact_cache`: slot s takes slot moved_from[s] for first_moved <= s < cache_len.

    keys, values [layers, N or more, C, Hkv, D] of any dtype.
    """
    checks.check_compact_cache(keys, values, cache_len, first_moved, moved_from)
    check_on_device("compact_cache", "keys", keys)
    layers, _, capacity, heads, size = keys.shape
    n, width = moved_from.shape
    if keys.numel() and n:
        elements = min(_ELEMENTS, tiles.padded(heads * size))
        slots = max(1, _BYTES // (elements * keys.element_size()))
        with tiles.on(keys.device):
            move_slots[(layers * n, triton.cdiv(heads * size, elements))](
                keys, values, cache_len, first_moved, moved_from, *keys.stride()[:3], n, min(capacity, width), heads * size,
                width, SLOTS=slots, ELEMENTS=elements, num_warps=4)
