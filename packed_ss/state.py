"""What a generation remembers between calls, on the device, in static shapes; here what layouts share, and the block layout's."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from .operands import Operand, Shape, operands_of
from .rows import Rows

#: finish_reason codes, in the order of their numbers.
FINISH_REASONS = ("running", "stop", "length", "error")
RUNNING, STOP, LENGTH, ERROR = range(4)
#: No token has this id, so a stop made of it never matches.
_NEVER = 2**31 - 1


class Progress(NamedTuple):
    """How far each sequence is, read from the device, as lists of N numbers."""

    finish_reason: list[int]
    length: list[int]
    cache_len: list[int]
    draft_len: list[int]
    limit: list[int]


class State:
    """What the states of both layouts do; their fields are tensors of N sequences (N first) and no others.

    Besides the operands of their operators: seed [N] int64, temperature [N] float64, top_k [N] int64 and top_p [N] float64, the
    settings by which rows are drawn from, and draft_log_q [N, W, V], log Q of the draft, float32 or better (rejection only,
    else empty).
    """

    draft: Tensor
    order: Tensor
    retained: Tensor
    seed: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    draft_log_q: Tensor

    def __post_init__(self) -> None:
        #: The input buffers of this state's calls, by their shape.
        self.rows: dict[Any, Rows] = {}

    def operands(self) -> list[Tensor]:
        """The tensors that operators take as the state, in order."""
        return list(_getter(type(self))(self))  # type: ignore[arg-type]  # a class is hashable

    @property
    def sampling(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The settings, as row operators take them."""
        return self.seed, self.temperature, self.top_k, self.top_p

    def load(self, other: State) -> None:
        """Takes over another state of the same shapes, from any device, in place; draft_log_q stays, for there is no draft."""
        for f in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            if f.name != "draft_log_q":
                getattr(self, f.name).copy_(getattr(other, f.name))


@dataclass
class BlockState(State):
    """State of N sequences in the block layout, W = B - 1.  Operands are int32.

    tokens [N, max_length + B]: prompt and output.  length [N]: n.  cache_len [N]: n - 1 between iterations.
    draft [N, W]: D, -1 behind its end.  retained [N, W]: rows of the last call from which entries of the draft are yet to be
    drawn, -1 for none.  order [N, W]: the positions that entries of the draft are for, n, n + 1 ...
    finish_reason [N]: index into `FINISH_REASONS`.  nfe [N]: model calls.  advances [N, calls]: tokens appended by each.
    limit, prompt_length [N]: the length at which output must end, and where it starts.
    stops [N, S, M]: stop ids and stop sequences, right-aligned, padded with -1.
    """

    tokens: Annotated[Tensor, Shape("N T")]
    length: Annotated[Tensor, Shape("N")]
    cache_len: Annotated[Tensor, Shape("N")]
    draft: Annotated[Tensor, Shape("N W")]
    retained: Annotated[Tensor, Shape("N W")]
    order: Annotated[Tensor, Shape("N W")]
    finish_reason: Annotated[Tensor, Shape("N")]
    nfe: Annotated[Tensor, Shape("N")]
    advances: Annotated[Tensor, Shape("N calls")]
    limit: Annotated[Tensor, Shape("N", written=False)]
    prompt_length: Annotated[Tensor, Shape("N", written=False)]
    stops: Annotated[Tensor, Shape("N S M", written=False)]
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
        block_size: int,
        capacity: int,
        sampling: dict[str, Tensor],
        stops: Tensor,
        device: torch.device,
        calls: int | None = None,
        log_q: tuple[int, torch.dtype] | None = None,
    ) -> BlockState:
        """State before the first call: the prompts, no draft, nothing cached.

        ``capacity``: the tokens that prompt and output may take; ``sampling`` and ``stops``: of `sampling_settings` and
        `stops_tensor`; ``calls``: the most model calls, None for what max_new_tokens can need; ``log_q``: vocabulary size and
        dtype of the stored proposal distributions, None where no mode needs them.
        """
        n, width = len(prompts), block_size - 1
        lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32, device=device)

        def filled(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        return cls(
            tokens=prompt_tokens(prompts, capacity + block_size, 0).to(device),
            length=lengths,
            cache_len=filled(n),
            draft=filled(n, width, value=-1),
            retained=filled(n, width, value=-1),
            order=lengths[:, None] + torch.arange(width, dtype=torch.int32, device=device),
            finish_reason=filled(n),
            nfe=filled(n),
            advances=filled(n, calls or most_calls(max_new_tokens)),
            limit=lengths + max_new_tokens,
            prompt_length=lengths.clone(),
            stops=stops.to(device),
            draft_log_q=stored_log_q(n, width, log_q, device),
            **{name: values.to(device) for name, values in sampling.items()},
        )

    def progress(self) -> Progress:
        """Reads what a loop on the host decides by, in one copy."""
        drafts = (self.draft >= 0).sum(1, dtype=torch.int32)
        read = torch.stack((self.finish_reason, self.length, self.cache_len, drafts, self.limit))
        return Progress(*read.tolist())


@functools.cache
def _getter(state: Hashable) -> Callable[[State], tuple[Tensor, ...]]:
    return operator.attrgetter(*(one.name for one in operands_of(state)))


#: The operands of advance_block and pack_block.
BLOCK_STATE: tuple[Operand, ...] = operands_of(BlockState)


def prompt_tokens(prompts: Sequence[Sequence[int]], width: int, fill: int) -> Tensor:
    """[N, width] int32: each prompt, and ``fill`` behind it."""
    tokens = torch.full((len(prompts), width), fill, dtype=torch.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
    return tokens


def most_calls(max_new_tokens: int) -> int:
    """Model calls that so many tokens can take: two for each, and the first."""
    return 2 * max_new_tokens + 3


def stored_log_q(n: int, width: int, log_q: tuple[int, torch.dtype] | None, device: torch.device) -> Tensor:
    """Room for log Q of the draft, [N, W, V]; empty without ``log_q``, the vocabulary size and dtype."""
    vocab, dtype = log_q or (0, torch.float32)
    return torch.zeros((n, width if vocab else 0, vocab), dtype=dtype, device=device)


def sampling_settings(
    seeds: Sequence[int], temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float]
) -> dict[str, Tensor]:
    """The settings of N sequences as a state's tensors."""
    return {
        "seed": torch.tensor(seeds, dtype=torch.int64),
        "temperature": torch.tensor(temperature, dtype=torch.float64),
        "top_k": torch.tensor(top_k, dtype=torch.int64),
        "top_p": torch.tensor(top_p, dtype=torch.float64),
    }


def stops_tensor(stops: Sequence[Sequence[Sequence[int]]], shape: tuple[int, int] | None = None) -> Tensor:
    """[N, S, M] int32 of each sequence's stops, token id lists; what is left of ``shape`` never matches."""
    count, longest = shape or stops_shape(stops)
    room = torch.full((len(stops), count, longest), -1, dtype=torch.int32)
    room[:, :, -1] = _NEVER
    for mine, given in zip(room, stops, strict=True):
        for row, stop in zip(mine, given, strict=False):
            row[longest - len(stop) :] = torch.tensor(stop, dtype=torch.int32)
    return room


def stops_shape(stops: Sequence[Sequence[Sequence[int]]]) -> tuple[int, int]:
    """(S, M): the most stops of a sequence, and the tokens of the longest."""
    return max(map(len, stops)), max((len(stop) for one in stops for stop in one), default=1)
