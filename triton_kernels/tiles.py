"""Tile shapes of the Triton kernels, by shape class and architecture.

No kernel is tuned where it runs: what a launch looks like follows from the shapes of its arguments and from the device alone,
so that a captured launch is the one that was warmed up.  The numbers come from compiles for sm_80, sm_90 and sm_100
(tests/triton): the largest tiles that spill nothing and leave room for a pipeline of loads.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Device:
    """What tile shapes depend on: compute capability, as 10 * major + minor, and the number of multiprocessors."""

    capability: int
    multiprocessors: int


#: What Triton's interpreter stands for.  Few multiprocessors, since it runs programs one after the other.
INTERPRETER = Device(90, 8)


@functools.cache
def device(of: torch.device) -> Device:
    """The device of a tensor, looked at once."""
    if of.type != "cuda":
        return INTERPRETER
    major, minor = torch.cuda.get_device_capability(of)
    return Device(10 * major + minor, torch.cuda.get_device_properties(of).multi_processor_count)


def on(of: torch.device) -> contextlib.AbstractContextManager:
    """Makes launches go to this device, where there is more than one to choose from."""
    return torch.cuda.device(of) if of.type == "cuda" and torch.cuda.device_count() > 1 else contextlib.nullcontext()


def generation(capability: int) -> int:
    """Which tables a device uses: 80, 90 or 100.  Those of sm_80 fit every device with 99 KB of shared memory, sm_120 too."""
    return 10 * (capability // 10) if 90 <= capability < 110 else 100 if capability // 10 == 11 else 80


def padded(size: int, least: int = 16) -> int:
    """The power of two that a block of ``size`` elements takes in a kernel; matrix products need 16."""
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class AttentionTile:
    """``lanes`` queries (rows times the query heads of a key head) against ``keys`` slots at a time, by ``warps`` warps.

    ``stages``: blocks of keys and values in flight.  ``resident``: programs that a multiprocessor holds at once.
    """

    lanes: int
    keys: int
    warps: int
    stages: int
    resident: int


# (generation, bytes of an element, padded head size): tiles by growing number of lanes.  Shared memory of one is about
# head size * bytes * (lanes + 2 * stages * keys); head sizes that are not named take the entry of the next larger one.
_ATTENTION = {
    (80, 2, 128): (AttentionTile(16, 64, 4, 3, 1), AttentionTile(32, 64, 4, 3, 1), AttentionTile(64, 32, 8, 3, 1)),
    (80, 2, 256): (AttentionTile(16, 32, 4, 3, 1), AttentionTile(32, 32, 8, 2, 1)),
    (80, 4, 128): (AttentionTile(16, 32, 8, 2, 2),),
    (80, 4, 256): (AttentionTile(16, 32, 16, 1, 1),),
    (90, 2, 128): (AttentionTile(16, 64, 4, 3, 2), AttentionTile(32, 64, 4, 3, 2), AttentionTile(64, 64, 4, 2, 2),
                   AttentionTile(128, 64, 8, 3, 1)),
    (90, 2, 256): (AttentionTile(16, 32, 4, 3, 2), AttentionTile(32, 32, 8, 2, 1), AttentionTile(64, 32, 8, 2, 1)),
    (90, 4, 128): (AttentionTile(16, 32, 8, 2, 2), AttentionTile(32, 32, 16, 2, 1)),
    (90, 4, 256): (AttentionTile(16, 32, 16, 2, 1),),
}
_ATTENTION |= {(100, *key[1:]): tiles for key, tiles in _ATTENTION.items() if key[0] == 90}
# The interpreter has no registers to run out of, and takes as long for a large block as for a small one.
_ATTENTION_INTERPRETED = (AttentionTile(16, 64, 4, 1, 1), AttentionTile(128, 64, 4, 1, 1))

#: Slots that a split takes at the least: with fewer, writing its sums costs more than reading its keys.
SPLIT_KEYS = 128
MOST_SPLITS = 64


def attention_tile(lanes: int, size: int, itemsize: int, device: Device) -> AttentionTile:
    """The smallest tile that takes all lanes, or else the largest one; heads of ``size`` elements of ``itemsize`` bytes."""
    if device is INTERPRETER:
        tiles = _ATTENTION_INTERPRETED
    else:
        tiles = _ATTENTION[generation(device.capability), itemsize, 128 if size <= 128 else 256]
    return next((tile for tile in tiles if tile.lanes >= lanes), tiles[-1])


def attention_splits(tile: AttentionTile, programs: int, slots: int, device: Device) -> int:
    """Into how many splits the keys go, where one takes ``programs`` programs: as many as keep every multiprocessor busy."""
    fill = tile.resident * device.multiprocessors // max(programs, 1)
    return max(1, min(fill, MOST_SPLITS, -(-slots // max(SPLIT_KEYS, tile.keys))))


#: Heads of a row that a program of rope_store takes.
ROPE_HEADS = 8


def rope_rows(programs: int, device: Device) -> int:
    """Rows that a program of rope_store takes, where there would be ``programs`` with one each: 1, 2, 4 or 8."""
    waves = programs // (16 * device.multiprocessors)  # a multiprocessor holds 16 programs of one row
    return max(1, min(8, 1 << waves.bit_length() >> 1))


#: Registers that a thread may have where the assembler, left to itself, would spill a few for the sake of more warps.
REGISTERS = 128


@dataclass(frozen=True)
class RowTile:
    """How the row operators cut rows of logits: ``ids`` of a split, which one program takes."""

    ids: int
    warps: int


@dataclass(frozen=True)
class FilterTile:
    """How top-k and top-p look at a row: ``width`` tokens at a time, the maxima of ``groups``, and then ``ids`` at a time of
    those in question, for which there is ``room``."""

    width: int
    groups: int
    room: int
    ids: int


def row_tile(vocab: int) -> RowTile:
    """Depends on the vocabulary alone: results of a row must not depend on the call that it is part of."""
    return RowTile(min(8192, padded(vocab)), 16 if vocab > 2048 else 4)


def filter_tile(vocab: int, capability: int) -> FilterTile:
    size, width = padded(vocab), 2048 if generation(capability) == 100 else 4096
    return FilterTile(min(width, size), min(1024, size), min(16384, size), min(512, size))


@dataclass(frozen=True)
class HeadTile:
    """``rows`` by ``ids`` of the vocabulary, ``depth`` of the hidden size at a time, ``stages`` of them in flight."""

    rows: int
    ids: int
    depth: int
    warps: int
    stages: int


# (generation, bytes of an element): tiles by growing number of rows.  Shared memory of one is about
# depth * bytes * (rows + ids) * stages.  From sm_90 on none has less than 64 rows, which one instruction takes: so a row's sums
# are the same whatever its call has.
_HEAD = {
    (80, 2): (HeadTile(16, 128, 64, 4, 4), HeadTile(32, 128, 64, 4, 4), HeadTile(64, 128, 64, 8, 4),
              HeadTile(128, 128, 64, 8, 3)),
    (90, 2): (HeadTile(64, 256, 64, 8, 4), HeadTile(128, 256, 64, 8, 4)),
    (80, 4): (HeadTile(16, 64, 32, 4, 3), HeadTile(32, 64, 32, 4, 3), HeadTile(64, 128, 32, 8, 3)),
}
_HEAD |= {(100, 2): _HEAD[90, 2], (90, 4): _HEAD[80, 4], (100, 4): _HEAD[80, 4]}


def head_tile(rows: int, itemsize: int, capability: int) -> HeadTile:
    """The smallest tile that takes all rows, or else the largest one; of weights of ``itemsize`` bytes."""
    tiles = _HEAD[generation(capability), itemsize]
    return next((tile for tile in tiles if tile.rows >= rows), tiles[-1])
