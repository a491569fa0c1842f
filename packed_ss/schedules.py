"""Schedules: which calls an iteration makes and which branch cuts each call has.

All of them are settings of one mechanism.  A schedule is a cycle of calls; a call verifies the draft, proposes a new one,
or does both; proposals start at the branch cuts.

=============== ===== ============================= ==================
schedule        calls verifier rows                 cuts
=============== ===== ============================= ==================
autoregressive  1     1                             none
linear          2     B, then none                  none, then {0}
packed          1     B                             {0}
quadratic       1     B                             {0 ... B-1}
branched        1     B                             any set with 0
=============== ===== ============================= ==================

For ordered models, whose calls are over a window of u <= W open positions (p tokens wait for their rows):

=============== ===== ============================= ==================
schedule        calls rows                          cuts
=============== ===== ============================= ==================
autoregressive  1     p + 1                         none
linear          2     p + u, then 2u                {0}, then none
packed          1     p + 3u                        {0}
quadratic       1     p + 2u + u^2                  {0 ... u-1}
branched        1     p + (2 + K)u                  any set with 0
native          1     p + u                         {0}
=============== ===== ============================= ==================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .layouts.block import BlockCall
from .layouts.ordered import OrderedCall


@dataclass(frozen=True)
class Branched:
    """Verify and propose in one call, with a proposal region at each of ``cuts``.

    A region of cut c is conditioned on the first c draft tokens, and used when at least c of them are accepted.
    ``Branched((0,))`` is packed; ``Branched(range(B))`` is quadratic.  Raises ValueError for cuts that are not distinct
    whole numbers from 0 on with 0 among them.
    """

    cuts: tuple[int, ...]

    def __init__(self, cuts: Iterable[int]) -> None:
        given = tuple(cuts)
        if (
            any(isinstance(c, bool) or not isinstance(c, int) or c < 0 for c in given)
            or len(set(given)) != len(given)
            or 0 not in given
        ):
            raise ValueError(f"cuts are {given}, but they must be distinct whole numbers from 0 on, with 0 among them")
        object.__setattr__(self, "cuts", tuple(sorted(given)))


#: Branch cuts of one call at most: the shape of a call is an argument of kernels.
MOST_CUTS = 256


@dataclass(frozen=True)
class Schedule:
    """A named cycle of calls, to be repeated after the first call until every sequence has finished.

    Raises ValueError for a call of more than `MOST_CUTS` branch cuts.
    """

    name: str
    cycle: tuple[BlockCall, ...] | tuple[OrderedCall, ...]

    def __post_init__(self) -> None:
        cuts = max(len(call.cuts) for call in self.cycle)
        if cuts > MOST_CUTS:
            raise ValueError(f"the {self.name} schedule has {cuts} branch cuts, but {MOST_CUTS} at most are accepted")

    @property
    def proposes(self) -> bool:
        """Whether any call drafts, so that the first call should too."""
        return any(call.cuts for call in self.cycle)


NAMES = ("autoregressive", "linear", "packed", "quadratic")
ORDERED_NAMES = (*NAMES, "native")


def block_schedule(schedule: str | Branched, block_size: int) -> Schedule:
    """The schedule for a block-layout model at block size B = W + 1.

    Raises ValueError for an unknown name and for a cut of B or more.
    """
    b = block_size
    if isinstance(schedule, Branched):
        if schedule.cuts[-1] >= b:
            raise ValueError(f"cut {schedule.cuts[-1]} was given, but cuts must be below the block size {b}")
        return Schedule("branched", (BlockCall(b, b, schedule.cuts),))
    if schedule == "autoregressive":
        return Schedule(schedule, (BlockCall(1, b, ()),))
    if schedule == "linear":
        return Schedule(schedule, (BlockCall(b, b, ()), BlockCall(0, b, (0,))))
    if schedule == "packed":
        return Schedule(schedule, (BlockCall(b, b, (0,)),))
    if schedule == "quadratic":
        return Schedule(schedule, (BlockCall(b, b, tuple(range(b))),))
    raise ValueError(f"schedule is {schedule!r}, but it must be one of {', '.join(NAMES)} or a packed_ss.Branched")


def ordered_schedule(schedule: str | Branched, window: int) -> Schedule:
    """The schedule for an ordered model with a window of W positions.

    Raises ValueError for an unknown name and for a cut of W or more.
    """
    w = window
    if isinstance(schedule, Branched):
        if schedule.cuts[-1] >= w:
            raise ValueError(f"cut {schedule.cuts[-1]} was given, but cuts must be below the window {w}")
        return Schedule("branched", (OrderedCall(1, w, True, True, schedule.cuts),))
    if schedule == "autoregressive":
        return Schedule(schedule, (OrderedCall(1, 1, False, True, ()),))
    if schedule == "linear":
        return Schedule(schedule, (OrderedCall(1, w, False, False, (0,)), OrderedCall(0, w, True, True, ())))
    if schedule == "packed":
        return Schedule(schedule, (OrderedCall(1, w, True, True, (0,)),))
    if schedule == "quadratic":
        return Schedule(schedule, (OrderedCall(1, w, True, True, tuple(range(w))),))
    if schedule == "native":
        return Schedule(schedule, (OrderedCall(w, w, False, False, (0,)),))
    raise ValueError(f"schedule is {schedule!r}, but it must be one of {', '.join(ORDERED_NAMES)} or a packed_ss.Branched")
