"""The ordered layout as a decoder uses it: its schedule's calls, their rows, and what advances its state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..models.attention import SlotCache
from ..models.config import ModelConfig
from ..ordered_state import OrderedProgress, OrderedState
from ..request import Request
from ..rows import ORDERED_ROWS, Rows
from ..schedules import Branched, ordered_schedule
from .ordered import OrderedCall

#: An order policy: a name, or a function from the window (ascending output positions, from 1) to a permutation of it.
Order = str | Callable[[tuple[int, ...]], Sequence[int]]

ORDERS = ("left_to_right", "confidence")
#: Native SetDLM accepts tokens of at least this probability.
THRESHOLD = 0.9


class OrderedLayout:
    """What a decoder does to decode an ordered model under ``schedule`` with a window of W positions in the given order.

    Raises ValueError for a window that is not a whole number of at least 1, another order, and what `ordered_schedule` refuses;
    warns of a window beyond the checkpoint's horizon.
    """

    #: Some ids are excluded, which takes logits.
    takes_ids = False

    def __init__(self, config: ModelConfig, schedule: str | Branched, window: int | None, order: Order) -> None:
        if window is None:
            raise ValueError("window is not given, but an ordered model, such as SetDLM, needs one")
        if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 1024:
            raise ValueError(f"window is {window!r}, but it must be a whole number from 1 to 1024")
        if not callable(order) and order not in ORDERS:
            raise ValueError(f"order is {order!r}, but it must be {' or '.join(map(repr, ORDERS))}, or a function of the window")
        if config.horizon is not None and config.horizon < window:
            warnings.warn(f"the window is {window}, but the checkpoint's horizon is {config.horizon} positions", stacklevel=4)
        self.config = config
        self.schedule = ordered_schedule(schedule, window)
        if schedule == "native" and order != "left_to_right":
            raise ValueError(f"order is {order!r} with the native schedule, but that one has no order: left_to_right is accepted")
        self.policy = order
        self.native = schedule == "native"
        #: Whether positions are decoded in another order than left to right, and advances ask for probabilities of tokens.
        self.in_any_order = self.native or order != "left_to_right"
        self.wants_probability = self.native or order == "confidence"
        cycle: Any = self.schedule.cycle  # of `OrderedCall`
        self.window = max(call.window for call in cycle)
        self.waiting = max(call.waiting_rows for call in cycle)
        self.masks = 0
        self.prompt_only = self.first = OrderedCall(0, self.window, False, False, ())
        self.opening: tuple[OrderedCall, ...] = ()
        self.most_rows = max(call.rows for call in self.schedule.cycle)
        #: What distinguishes this decoder from others of the layout, for records.
        self.settings = {"window": window, "order": order if isinstance(order, str) else "function"}
        self._excluded: dict[torch.device, Tensor] = {}

    def check(self, request: Request) -> None:
        """Raises ValueError for sampling where the order would depend on the draws, or where the schedule has none."""
        if request.verification == "greedy":
            return
        if self.native:
            raise ValueError(
                f"temperature is {max(request.temperature)} with the native schedule, which is greedy: 0 is accepted"
            )
        if self.policy != "left_to_right":
            raise ValueError(
                f"order is {self.policy!r} with temperature {max(request.temperature)}, but above 0 left_to_right is "
                "accepted: another order would depend on the draws"
            )

    def new_state(self, request: Request, device: torch.device, **shape: Any) -> OrderedState:
        """The state before the first call; further arguments are those of `OrderedState.start`."""
        return OrderedState.start(
            request.prompts,
            max_new_tokens=request.max_new_tokens,
            window=self.window,
            waiting=self.waiting,
            device=device,
            **shape,
        )

    def prefilled(self, state: OrderedState) -> None:
        """The prompt's keys and values are in the cache, all of them."""
        state.cache_len.copy_(state.prompt_length)

    def order(self, state: OrderedState, call: OrderedCall) -> None:
        """Before an iteration's first call, the order of a policy that is a function; the names' are made on the device."""
        if not callable(self.policy) or call != self.schedule.cycle[0]:
            return
        order, draft, begin = state.order.tolist(), state.draft.tolist(), state.prompt_length.tolist()
        for i, ranked in enumerate(order):
            window = [j for j in ranked if j >= 0]
            if not window:
                continue
            chosen = _permutation(self.policy, tuple(sorted(j - begin[i] + 1 for j in window)))
            drafts = dict(zip(window, draft[i], strict=False))
            ranked[: len(window)] = [j + begin[i] - 1 for j in chosen]
            draft[i][: len(window)] = [drafts[j] for j in ranked[: len(window)]]
        state.order.copy_(torch.tensor(order))
        state.draft.copy_(torch.tensor(draft))

    def live(self, progress: OrderedProgress, request: Request, call: OrderedCall) -> OrderedCall:
        """The call without the rows of ranks and waiting tokens that no running sequence has."""
        window = max(progress.open_positions)
        return OrderedCall(
            min(call.waiting_rows, max(progress.waiting)),
            window,
            call.drafts,
            call.verifies,
            tuple(cut for cut in call.cuts if cut < window),
        )

    def buffers(self, state: OrderedState, call: OrderedCall) -> Rows:
        """The input buffers of a call's shape, kept with the state; their cache_len is the state's."""
        if call not in state.rows:
            n = state.length.shape[0]
            mask = torch.zeros((n, call.rows, -(-call.rows // 32)), dtype=torch.int32, device=state.length.device)
            state.rows[call] = Rows.empty(n, call.rows, state.cache_len, mask)
        return state.rows[call]

    def pack(self, state: OrderedState, call: OrderedCall, spare_slot: int) -> Rows:
        """The rows and the tail mask of a call, written from the state."""
        torch.ops.packed_ss.pack_ordered(state.operands(), *self._target(state, call, spare_slot))
        return self.buffers(state, call)

    def usable(self, logits: Tensor) -> Tensor:
        """The logits, -inf at ids that must not be drawn."""
        return logits.index_fill_(-1, self._excluded_ids(logits.device), -torch.inf)

    def advance(
        self,
        ids: Tensor,
        accepted: Tensor | None,
        probability: Tensor | None,
        state: OrderedState,
        call: OrderedCall,
        following: OrderedCall | None,
        cache: SlotCache,
    ) -> None:
        """Advance the state by a call's tokens; write the rows of the ``following`` call where its shape is known."""
        target: tuple[Any, ...] = (0, 0, 0, 0, False, False, (), [])
        if following is not None:
            target = self._target(state, following, cache.capacity - 1)
        if self.native and call.cuts:
            torch.ops.packed_ss.advance_native(ids, probability, state.operands(), call.window, THRESHOLD, *target)
        else:
            torch.ops.packed_ss.advance_ordered(
                ids, probability, accepted, state.operands(), call.waiting_rows, call.window, call.verifies, call.cuts,
                self.policy == "confidence", *target,
            )  # fmt: skip
        if self.in_any_order:  # left to right, nothing is decoded beyond a stop
            torch.ops.packed_ss.compact_cache(cache.keys, cache.values, state.cache_len, state.first_moved, state.moved_from)

    def draft_column(self, call: OrderedCall) -> int | None:
        """The first column of a call's rows that hold the draft; None where none does."""
        return call.waiting_rows if call.drafts else None

    def _target(self, state: OrderedState, call: OrderedCall, spare_slot: int) -> tuple[Any, ...]:
        """What operators take to write the rows of a call."""
        rows = self.buffers(state, call).operands(len(ORDERED_ROWS))
        shape = (call.waiting_rows, call.window, call.drafts, call.verifies, call.cuts)
        return (self.config.mask_token_id, spare_slot, *shape, rows)

    def _excluded_ids(self, device: torch.device) -> Tensor:
        if device not in self._excluded:
            self._excluded[device] = torch.tensor(self.config.excluded_token_ids, dtype=torch.int64, device=device)
        return self._excluded[device]


def _permutation(order: Callable[[tuple[int, ...]], Sequence[int]], window: tuple[int, ...]) -> list[int]:
    """What the function makes of the window; ValueError where it is not a permutation of it."""
    returned = order(window)
    chosen = list(returned) if isinstance(returned, Iterable) else [returned]
    if len(chosen) != len(window) or any(j not in chosen for j in window):
        raise ValueError(
            f"the order function returned {chosen} for the window {list(window)}, but a permutation of it is accepted"
        )
    return chosen
