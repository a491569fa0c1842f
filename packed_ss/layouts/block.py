"""The block layout (App. D.1): one verifier region, then one proposal region per branch cut.

Rows of a call, in order::

    verifier    [last, d_1 ... d_{v-1}]     causal among themselves; MASK where there is no draft
    region c    [token at offset c, MASK^{B-1}]     sees verifier rows before offset c and all of itself

Offset 0 is the last token of the prefix, at position n - 1; a region of cut c begins at position n - 1 + c.  Rows whose
keys and values survive come first, so that the cache update after an advance of a is ``cache_len += a``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from ..rows import pack_bits


@dataclass(frozen=True)
class BlockCall:
    """The shape of one call: v verifier rows and a region of ``block_size`` rows for each cut.

    ``shift`` moves every region right of its cut by that many positions: 0, but 1 for the region of the first call, whose
    B rows are all MASK and start right after the prompt (App. E.2).
    """

    verifier_rows: int
    block_size: int
    cuts: tuple[int, ...]
    shift: int = 0

    @property
    def rows(self) -> int:
        """R, the rows of the call for one sequence."""
        return self.verifier_rows + len(self.cuts) * self.block_size

    @property
    def head_rows(self) -> int:
        """The last rows, whose logits are wanted: all of them."""
        return self.rows

    @property
    def verified_rows(self) -> int:
        """The first of those, which verify."""
        return self.verifier_rows

    @property
    def proposal_rows(self) -> int:
        """The last rows, which draft."""
        return len(self.cuts) * self.block_size

    def visibility(self) -> np.ndarray:
        """Who sees whom among the call's rows: bool [R, R], True where the row sees the column."""
        v, b = self.verifier_rows, self.block_size
        seen = np.zeros((self.rows, self.rows), dtype=bool)
        seen[:v, :v] = np.tri(v, dtype=bool)
        for k, cut in enumerate(self.cuts):
            region = slice(v + k * b, v + (k + 1) * b)
            seen[region, : min(cut, v)] = True
            seen[region, region] = True
        return seen


@dataclass(frozen=True)
class BlockTables:
    """What is constant about a `BlockCall` on a device.

    ``source`` [R] int64: where a row's token comes from in [last, d_1 ... d_W, MASK]; ``offset`` [R] int32: its position
    less n - 1; ``predicted`` [R] int32: the same of the token that it predicts; ``needs`` [R] int32: how many draft entries must
    be there for its token to matter, more than there can be where nobody asks; ``row`` [R] int32: 0 ... R-1; ``cuts`` [K] int64;
    ``tail_mask`` [1, R, ceil(R/32)] int32.
    """

    source: Tensor
    offset: Tensor
    predicted: Tensor
    needs: Tensor
    row: Tensor
    cuts: Tensor
    tail_mask: Tensor


@cache  # never emptied: a captured graph points into them
def tables(verifier_rows: int, block_size: int, cuts: tuple[int, ...], device: torch.device) -> BlockTables:
    """The tables of a call with no shift, made once per shape and device."""
    b, v, mask = block_size, verifier_rows, block_size
    source, offset = list(range(v)), list(range(v))
    predicted, needs = list(range(1, v + 1)), list(range(v))
    for cut in cuts:
        source += [cut] + [mask] * (b - 1)
        offset += range(cut, cut + b)
        predicted += range(cut, cut + b)
        # The first row of a region has no use; after an advance of at least one, nor has the one that predicts the next token.
        needs += [cut if inside >= (2 if v else 1) else b for inside in range(b)]
    visibility = BlockCall(v, b, cuts).visibility()

    def table(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return BlockTables(
        source=torch.tensor(source, device=device),
        offset=table(offset),
        predicted=table(predicted),
        needs=table(needs),
        row=torch.arange(len(source), dtype=torch.int32, device=device),
        cuts=torch.tensor(cuts, dtype=torch.int64, device=device),
        tail_mask=torch.from_numpy(pack_bits(visibility)[None]).to(device),
    )
