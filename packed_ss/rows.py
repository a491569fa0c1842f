"""Rows: the fixed-shape input of one model call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .operands import Operand, Shape, operands_of


class Results(NamedTuple):
    """Tokens of some rows of a call, [N, M] int32 each: what the rows predict, and where ids and accepted go."""

    predicts: Tensor
    ids: Tensor
    accepted: Tensor


@dataclass(frozen=True)
class Rows:
    """One call's input for N sequences of R rows each, all int32.

    ids [N, R]: input tokens.  positions [N, R]: logical positions.  slots [N, R]: the cache slot that receives each row's key
    and value.  predicts [N, R]: the position of the token that the row predicts, -1 where nobody asks.  tail_mask [1 or N, R,
    words]: row r sees slot cache_len + s iff bit s is set.  cache_len [N]: cached positions that every row sees.
    """

    ids: Annotated[Tensor, Shape("N R")]
    positions: Annotated[Tensor, Shape("N R")]
    slots: Annotated[Tensor, Shape("N R")]
    predicts: Annotated[Tensor, Shape("N R")]
    tail_mask: Annotated[Tensor, Shape("N R words")]
    cache_len: Tensor
    _results: dict[tuple[int, int], Results] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def empty(cls, n: int, rows: int, cache_len: Tensor, tail_mask: Tensor) -> Rows:
        """Buffers for a call of this shape, to be filled by a pack operator."""
        ids, positions, slots, predicts = (torch.zeros((n, rows), dtype=torch.int32, device=cache_len.device) for _ in range(4))
        return cls(ids, positions, slots, predicts, tail_mask, cache_len)

    def results(self, head_rows: int, count: int) -> Results:
        """Where row operators put what the first ``count`` of the last ``head_rows`` rows say; made once."""
        key = (head_rows, count)
        if key not in self._results:
            first = self.ids.shape[1] - head_rows
            predicts = self.predicts[:, first : first + count]
            ids, accepted = (torch.empty(predicts.shape, dtype=torch.int32, device=predicts.device) for _ in range(2))
            self._results[key] = Results(predicts, ids, accepted)
        return self._results[key]

    def operands(self, count: int) -> list[Tensor]:
        """The first ``count`` tensors, in the order in which operators take them."""
        return [self.ids, self.positions, self.slots, self.predicts, self.tail_mask][:count]


#: What the operators of each layout write: the masks of the ordered layout are made by its operators.
ORDERED_ROWS: tuple[Operand, ...] = operands_of(Rows)
BLOCK_ROWS: tuple[Operand, ...] = ORDERED_ROWS[:4]


def pack_bits(visible: np.ndarray) -> np.ndarray:
    """Packs bool [..., S] into int32 words [..., ceil(S/32)]: bit s % 32 of word s // 32; pad bits are zero."""
    size = visible.shape[-1]
    padded = np.zeros((*visible.shape[:-1], -(-size // 32) * 32), dtype=bool)
    padded[..., :size] = visible
    return np.packbits(padded, axis=-1, bitorder="little").view("<i4")
