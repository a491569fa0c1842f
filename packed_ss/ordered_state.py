"""OrderedState: what a generation in any order remembers between calls, on the device, in static shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from .operands import Operand, Shape, operands_of
from .state import State, most_calls, prompt_tokens, stored_log_q


class OrderedProgress(NamedTuple):
    """How far each sequence is, read from the device, as lists of N numbers: u and p are those of the next call."""

    finish_reason: list[int]
    length: list[int]
    cache_len: list[int]
    open_positions: list[int]
    waiting: list[int]


@dataclass
class OrderedState(State):
    """State of N sequences with a window of W positions.  Operands are int32.

    Positions are absolute, from 0, the prompt's included; T > max_length.

    tokens [N, T]: by position, -1 where open.  length [N]: the leftmost open position, so that the tokens before it are final.
    cache_len [N]: pairs in the cache, in acceptance order behind the prompt.  finish_reason, nfe, advances, prompt_length and
    stops as in `packed_ss.state.BlockState`.  end [N]: one more than E, the last position to generate; stopped [N]: whether a
    stop has set it.  order [N, W]: the window's open positions by rank, -1 beyond; draft [N, W]: D by rank, -1 for none.
    waiting [N, P]: accepted positions whose rows are still due, in order, -1 beyond.  cached [N, T]: the cached pairs' positions
    by slot.  moved_from [N, T], first_moved [N]: slots from ``first_moved`` on take what slot ``moved_from`` holds.
    retained [N, W]: rows of the last call from which the draft is yet to be drawn, by rank, -1 for none.
    """

    tokens: Annotated[Tensor, Shape("N T")]
    length: Annotated[Tensor, Shape("N")]
    cache_len: Annotated[Tensor, Shape("N")]
    finish_reason: Annotated[Tensor, Shape("N")]
    nfe: Annotated[Tensor, Shape("N")]
    advances: Annotated[Tensor, Shape("N calls")]
    end: Annotated[Tensor, Shape("N")]
    stopped: Annotated[Tensor, Shape("N")]
    prompt_length: Annotated[Tensor, Shape("N", written=False)]
    stops: Annotated[Tensor, Shape("N S M", written=False)]
    order: Annotated[Tensor, Shape("N W")]
    draft: Annotated[Tensor, Shape("N W")]
    waiting: Annotated[Tensor, Shape("N P")]
    cached: Annotated[Tensor, Shape("N T")]
    moved_from: Annotated[Tensor, Shape("N T")]
    first_moved: Annotated[Tensor, Shape("N")]
    retained: Annotated[Tensor, Shape("N W")]
    seed: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    draft_log_q: Tensor

    @classmethod
    def start(
        cls,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        window: int,
        waiting: int,
        capacity: int,
        sampling: dict[str, Tensor],
        stops: Tensor,
        device: torch.device,
        calls: int | None = None,
        log_q: tuple[int, torch.dtype] | None = None,
    ) -> OrderedState:
        """State before the first call: the prompts, nothing cached, and the first window in textual order.

        Arguments as in `packed_ss.state.BlockState.start`; ``waiting``: P.
        """
        n, width = len(prompts), capacity + window + 1  # the last column is spare
        lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32, device=device)

        def filled(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        order = filled(n, window, value=-1)
        u = min(window, max_new_tokens)
        order[:, :u] = lengths[:, None] + torch.arange(u, dtype=torch.int32, device=device)
        return cls(
            tokens=prompt_tokens(prompts, width, -1).to(device),
            length=lengths,
            cache_len=filled(n),
            finish_reason=filled(n),
            nfe=filled(n),
            advances=filled(n, calls or most_calls(max_new_tokens)),
            end=lengths + max_new_tokens,
            stopped=filled(n),
            prompt_length=lengths.clone(),
            stops=stops.to(device),
            order=order,
            draft=filled(n, window, value=-1),
            waiting=filled(n, waiting, value=-1),
            cached=torch.arange(width, dtype=torch.int32, device=device).repeat(n, 1),
            moved_from=filled(n, width),
            first_moved=filled(n),
            retained=filled(n, window, value=-1),
            draft_log_q=stored_log_q(n, window, log_q, device),
            **{name: values.to(device) for name, values in sampling.items()},
        )

    def progress(self) -> OrderedProgress:
        """Reads what a loop on the host decides by, in one copy."""
        open_positions, waiting = ((t >= 0).sum(1, dtype=torch.int32) for t in (self.order, self.waiting))
        read = torch.stack((self.finish_reason, self.length, self.cache_len, open_positions, waiting))
        return OrderedProgress(*read.tolist())


#: The operands of advance_ordered, advance_native and pack_ordered.
ORDERED_STATE: tuple[Operand, ...] = operands_of(OrderedState)
