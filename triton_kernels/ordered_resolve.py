"""The resolves of the ordered layout as Triton kernels (packed_ss/ops/ordered.py): one launch each, a program for each sequence.

A window may have up to 1024 positions; what the kernels are made for is up to 64 of them, which one warp takes.  Safe to capture,
as the other resolves are: the grid follows from shapes, and only torch.empty allocates.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packed_ss.ops import checks_ordered as checks
from packed_ss.ops.ordered import State

from . import tiles
from .checks import check_on_device
from .launches import single
from .ordered_commit import resolve_sequence, resolve_sequence_native


class _State(State):
    """The state tensors of one resolve, with what a launch derives from their shapes."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """T, calls, S, M, W and P."""
        return (self.tokens.shape[1], self.advances.shape[1], *self.stops.shape, self.order.shape[1], self.waiting.shape[1])

    @property
    def constants(self) -> dict[str, Any]:
        """Padded sizes, and as many warps as leave few positions to a thread."""
        stops, width = self.stops.shape[0], tiles.padded(self.order.shape[1])
        return {"WIDTH": width, "MOST": tiles.padded(self.waiting.shape[1]), "STOPS": tiles.padded(stops, 1) if stops else 0,
                "num_warps": max(1, width // 64)}


_STATE = len(_State._fields)


def resolve_ordered(ids: Tensor, probability: Tensor | None, accepted: Tensor | None, *arguments: Any) -> None:
    """`packed_ss.ops.ordered.resolve_ordered`: accept along the order, end, drop, retain by position, order the next window.

    ids [N, R] int32; probability [N, R] float32 or float64, or None; accepted [N, W] int32 or None; ``arguments``: the state,
    then waiting_rows, window, verifies, cuts and by_confidence (`packed_ss.ops.schema`).
    """
    checks.check_resolve_ordered(ids, probability, accepted, *arguments)
    check_on_device("resolve_ordered", "ids", ids)
    state, (waiting_rows, window, verifies, cuts, by_confidence) = _State(*arguments[:_STATE]), arguments[_STATE:]
    if not ids.shape[0]:
        return
    absent = state.draft  # for what a kernel without it does not look at
    by_confidence = bool(by_confidence and verifies)
    scores = torch.empty_like(state.draft, dtype=probability.dtype) if by_confidence else absent
    resolve_sequence[(ids.shape[0],)](
        ids, probability if by_confidence else absent, absent if accepted is None else accepted, scores, *state, *state.sizes,
        window, ids.shape[1],
        CUTS=tuple(cuts), WAITING=waiting_rows > 0, VERIFIES=bool(verifies),
        PROPOSED=len(cuts) > 0 and ids.shape[1] > window * verifies, GIVEN=accepted is not None, BY_CONFIDENCE=by_confidence,
        **state.constants)


def resolve_native(ids: Tensor, probability: Tensor, *arguments: Any) -> None:
    """`packed_ss.ops.ordered.resolve_native`: accept every token of probability ``threshold`` or more, at least the likeliest.

    ids [N, window] int32; probability [N, window] float32 or float64; ``arguments``: the state, then window and threshold.
    """
    checks.check_resolve_native(ids, probability, *arguments)
    check_on_device("resolve_native", "ids", ids)
    state, (window, threshold) = _State(*arguments[:_STATE]), arguments[_STATE:]
    if ids.shape[0]:
        high = single(threshold)
        resolve_sequence_native[(ids.shape[0],)](
            ids, probability, *state[:-1], *state.sizes, window, high, threshold - high,
            DOUBLE=probability.dtype == torch.float64, **state.constants)
