"""The ordered layout (App. D.2): tokens at their own positions, in an order of acceptance, and masks beside them.

Rows of a call, in order::

    N    accepted tokens whose rows are still due      each sees those before it and itself
    O    draft tokens by rank, MASK where there is none
    M    one MASK per rank: the verifier's rows
    R    one MASK per rank and cut: the proposal's rows

Every row sees the cache and, but for N's own, all of N.  O and M at rank r also see the draft tokens at earlier ranks, a proposal
row of cut c those at the first c ranks, and every row itself.  The rows at a rank share its position, and each predicts the token
of its own position.  Rows whose keys and values survive come first, N and then the accepted part of O, so that the cache update
is ``cache_len += kept``.  A row that stands for nothing writes to the spare slot and is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OrderedCall:
    """The shape of one call over a window of ``window`` positions.

    ``waiting_rows``: most rows of N.  ``drafts``: whether it has O.  ``verifies``: whether it has M.  ``cuts``: those of its
    proposal regions, ascending.
    """

    waiting_rows: int
    window: int
    drafts: bool
    verifies: bool
    cuts: tuple[int, ...]

    @property
    def rows(self) -> int:
        """R, the rows of the call for one sequence."""
        return self.waiting_rows + (self.drafts + self.verifies + len(self.cuts)) * self.window

    @property
    def head_rows(self) -> int:
        """The last rows, whose logits are wanted: M and R."""
        return (self.verifies + len(self.cuts)) * self.window

    @property
    def verified_rows(self) -> int:
        """The first of those, which verify: M."""
        return self.verifies * self.window

    @property
    def proposal_rows(self) -> int:
        """The last rows, which draft: R."""
        return len(self.cuts) * self.window

    def visibility(self, waiting: int, drafted: Sequence[bool]) -> np.ndarray:
        """Who sees whom with ``waiting`` rows of N present and u = len(drafted) ranks, of which some have a draft token.

        bool [R, R]; row k of N and the rows after N stand where they do in the call, absent ones see and are seen by nobody.
        """
        u, w = len(drafted), self.window
        seen = np.zeros((self.rows, self.rows), dtype=bool)
        seen[:waiting, :waiting] = np.tri(waiting, dtype=bool)
        start = self.waiting_rows
        tokens = [start + r if self.drafts and drafted[r] else -1 for r in range(u)]
        earlier = [range(u)] * (self.drafts + self.verifies) + [[cut] * u for cut in self.cuts]
        for region, before in enumerate(earlier):
            for r in range(u):
                row = start + region * w + r
                seen[row, :waiting] = True
                seen[row, [token for token in tokens[: before[r]] if token >= 0]] = True
                seen[row, row] = True
        return seen
