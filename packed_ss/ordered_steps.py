"""The steps of the ordered layout: its state, its calls' rows, and what resolves their logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .layouts.ordered import OrderedCall
from .models.attention import SlotCache
from .models.config import ModelConfig
from .ordered_state import OrderedProgress, OrderedState
from .request import Request
from .rows import Rows
from .sampling import Stream
from .schedules import Branched, ordered_schedule

#: An order policy: a name, or a function from the window (ascending output positions, from 1) to a permutation of it.
Order = str | Callable[[tuple[int, ...]], Sequence[int]]

ORDERS = ("left_to_right", "confidence")
#: Native SetDLM accepts tokens of at least this probability.
THRESHOLD = 0.9


class OrderedSteps:
    """What a decoder does to decode an ordered model under ``schedule`` with a window of W positions in the given order.

    Raises ValueError for a window that is not a whole number of at least 1, another order, and what `ordered_schedule` refuses;
    warns of a window beyond the checkpoint's horizon.
    """

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
        self.window = max(call.window for call in self.schedule.cycle)
        self.waiting = max(call.waiting_rows for call in self.schedule.cycle)
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
            raise ValueError(f"temperature is {request.temperature} with the native schedule, which is greedy: 0 is accepted")
        if self.policy != "left_to_right":
            raise ValueError(
                f"order is {self.policy!r} with temperature {request.temperature}, but above 0 left_to_right is "
                "accepted: another order would depend on the draws"
            )

    def new_state(
        self,
        request: Request,
        device: torch.device,
        *,
        capacity: int,
        stops: Sequence[Sequence[int]],
        calls: int | None = None,
        log_q: tuple[int, torch.dtype] | None = None,
    ) -> OrderedState:
        """The state before the first call; arguments as those of `OrderedState.start`."""
        return OrderedState.start(
            request.prompts,
            max_new_tokens=request.max_new_tokens,
            window=self.window,
            waiting=self.waiting,
            capacity=capacity,
            stops=stops,
            seeds=request.seeds,
            device=device,
            calls=calls,
            log_q=log_q,
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
        rows = self.buffers(state, call)
        torch.ops.packed_ss.pack_ordered(
            state.tokens,
            state.cache_len,
            state.order,
            state.draft,
            state.waiting,
            self.config.mask_token_id,
            spare_slot,
            call.waiting_rows,
            call.window,
            call.drafts,
            call.verifies,
            call.cuts,
            rows.ids,
            rows.positions,
            rows.slots,
            rows.tail_mask,
            state.consulted,
        )
        return rows

    def resolve(
        self,
        outputs: tuple[Tensor, ...],
        state: OrderedState,
        request: Request,
        call: OrderedCall,
        following: OrderedCall | None,
        cache: SlotCache,
    ) -> None:
        """Advances the state by a call's logits, and writes the rows of the ``following`` call where its shape is known."""
        (logits,) = outputs
        logits.index_fill_(-1, self._excluded_ids(logits.device), -torch.inf)
        if request.verification == "greedy":
            self._resolve_greedy(logits, state, call)
            if self.native or self.policy != "left_to_right":  # left to right, nothing is decoded beyond a stop
                torch.ops.packed_ss.compact_cache(cache.keys, cache.values, state.cache_len, state.source, state.moved)
        else:
            self._resolve_sampled(logits, state, request, call)
        if following is not None:
            self.pack(state, following, cache.capacity - 1)

    def _resolve_greedy(self, logits: Tensor, state: OrderedState, call: OrderedCall) -> None:
        by_confidence = self.policy == "confidence"
        ids, probability = torch.ops.packed_ss.argmax_rows(logits, by_confidence or self.native)
        if self.native and call.cuts:
            torch.ops.packed_ss.resolve_native(ids, probability, *state.operands(), call.window, THRESHOLD)
            return
        torch.ops.packed_ss.resolve_ordered(
            ids,
            probability if by_confidence else None,
            None,
            *state.operands(),
            call.waiting_rows,
            call.window,
            call.verifies,
            call.cuts,
            by_confidence,
        )

    def _resolve_sampled(self, logits: Tensor, state: OrderedState, request: Request, call: OrderedCall) -> None:
        """Verifies, resolves, and then draws the draft of the positions that are still open."""
        sampling = (state.seed, request.temperature, request.top_k, request.top_p)
        rejects = request.verification == "rejection"
        ids, accepted = state.draft.new_empty((state.draft.shape[0], 0)), None
        if call.verifies and rejects:
            ids, accepted = torch.ops.packed_ss.verify_rows(
                logits, state.consulted, state.order, *sampling, state.draft, state.draft_log_q
            )
        elif call.verifies:
            ids = torch.empty_like(state.draft)
            torch.ops.packed_ss.draw_rows(logits, state.consulted, state.order, *sampling, int(Stream.TARGET), ids, None)
        if call.verifies:
            ids = ids[:, : call.window].contiguous()
        torch.ops.packed_ss.resolve_ordered(
            ids, None, accepted, *state.operands(), call.waiting_rows, call.window, call.verifies, call.cuts, False
        )
        if call.cuts:
            stream = Stream.TARGET if request.verification == "coupled" else Stream.DRAFT
            torch.ops.packed_ss.draw_rows(
                logits, state.retained, state.order, *sampling, int(stream), state.draft, state.draft_log_q if rejects else None
            )

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
