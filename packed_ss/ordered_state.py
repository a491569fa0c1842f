"""OrderedState: what a generation in any order remembers between calls, on the device, in static shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from .layouts.ordered import OrderedCall
from .ops.ordered import State
from .rows import Rows


class OrderedProgress(NamedTuple):
    """How far each sequence is, read from the device, as lists of N numbers: u and p are those of the next call."""

    finish_reason: list[int]
    length: list[int]
    cache_len: list[int]
    open_positions: list[int]
    waiting: list[int]


@dataclass
class OrderedState:
    """State of N sequences with a window of W positions.  All int32 but ``seed`` (int64) and ``draft_log_q``.

    Positions are absolute, from 0, the prompt's included; T > max_length.

    tokens [N, T]: by position, -1 where open.  length [N]: the leftmost open position, so that the tokens before it are final.
    end [N]: one more than E, the last position to generate; stopped [N]: whether a stop has set it.  prompt_length [N].
    cache_len [N]: pairs in the cache, in acceptance order behind the prompt; cached [N, T]: their positions by slot.
    order [N, W]: the window's open positions by rank, -1 beyond; draft [N, W]: D by rank, -1 where there is none.
    waiting [N, P]: accepted positions whose rows are still due, in order, -1 beyond.
    consulted, retained [N, 2]: first logits row and how many, of the verifier rows that a call may consult and of the proposal
    rows that stay open after it.  source [N, T], moved [N]: slots from ``moved`` on take what slot ``source`` holds.
    finish_reason, nfe, advances, stops, seed and draft_log_q as in `packed_ss.state.DecodeState`.
    """

    tokens: Tensor
    length: Tensor
    cache_len: Tensor
    finish_reason: Tensor
    nfe: Tensor
    advances: Tensor
    end: Tensor
    stopped: Tensor
    prompt_length: Tensor
    stops: Tensor
    order: Tensor
    draft: Tensor
    waiting: Tensor
    cached: Tensor
    source: Tensor
    moved: Tensor
    retained: Tensor
    consulted: Tensor
    seed: Tensor
    draft_log_q: Tensor

    def __post_init__(self) -> None:
        #: The input buffers of this state's calls, by their shape.
        self.rows: dict[OrderedCall, Rows] = {}

    @classmethod
    def start(
        cls,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        window: int,
        waiting: int,
        capacity: int,
        stops: Sequence[Sequence[int]],
        seeds: Sequence[int],
        device: torch.device,
        calls: int | None = None,
        log_q: tuple[int, torch.dtype] | None = None,
    ) -> OrderedState:
        """State before the first call: the prompts, nothing cached, and the first window in textual order.

        ``capacity``, ``calls`` and ``log_q`` as in `packed_ss.state.DecodeState.start`; ``waiting``: P.
        """
        n, width = len(prompts), capacity + window + 1  # the last column is spare

        def whole(*shape: int, fill: int = 0) -> Tensor:
            return torch.full(shape, fill, dtype=torch.int32, device=device)

        def known(values: Sequence) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        tokens = torch.full((n, width), -1, dtype=torch.int32)
        order = torch.full((n, window), -1, dtype=torch.int32)
        for i, prompt in enumerate(prompts):
            tokens[i, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
            u = min(window, max_new_tokens)
            order[i, :u] = torch.arange(len(prompt), len(prompt) + u)
        lengths = [len(prompt) for prompt in prompts]
        longest = max((len(stop) for stop in stops), default=1)
        vocab, dtype = log_q or (0, torch.float32)
        return cls(
            tokens=tokens.to(device),
            length=known(lengths),
            cache_len=whole(n),
            finish_reason=whole(n),
            nfe=whole(n),
            advances=whole(n, calls or 2 * max_new_tokens + 3),
            end=known([length + max_new_tokens for length in lengths]),
            stopped=whole(n),
            prompt_length=known(lengths),
            stops=known([[-1] * (longest - len(stop)) + list(stop) for stop in stops]).view(len(stops), longest),
            order=order.to(device),
            draft=whole(n, window, fill=-1),
            waiting=whole(n, waiting, fill=-1),
            cached=torch.arange(width, dtype=torch.int32, device=device).repeat(n, 1),
            source=whole(n, width),
            moved=whole(n),
            retained=whole(n, 2),
            consulted=whole(n, 2),
            seed=torch.tensor(seeds, dtype=torch.int64, device=device),
            draft_log_q=torch.zeros((n, window if vocab else 0, vocab), dtype=dtype, device=device),
        )

    def load(self, other: OrderedState) -> None:
        """Takes over another state of the same shapes, from any device, in place; draft_log_q stays, for there is no draft."""
        for f in fields(self):
            if f.name != "draft_log_q":
                getattr(self, f.name).copy_(getattr(other, f.name))

    def progress(self) -> OrderedProgress:
        """Reads what a loop on the host decides by, in one copy."""
        open_positions, waiting = ((t >= 0).sum(1, dtype=torch.int32) for t in (self.order, self.waiting))
        read = torch.stack((self.finish_reason, self.length, self.cache_len, open_positions, waiting))
        return OrderedProgress(*read.tolist())

    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that every resolve of this layout takes after the rows' results, in schema order."""
        return tuple(getattr(self, name) for name in State._fields)
