"""DecodeState: everything a generation remembers between calls, on the device, in static shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from .layouts.block import BlockCall
from .rows import Rows

#: finish_reason codes, in the order of their numbers.
FINISH_REASONS = ("running", "stop", "length", "error")


class Progress(NamedTuple):
    """How far each sequence is, read from the device: `DecodeState`'s tensors of these names as lists of N numbers."""

    finish_reason: list[int]
    length: list[int]
    cache_len: list[int]
    draft_len: list[int]
    limit: list[int]


@dataclass
class DecodeState:
    """State of N sequences.  All int32 but ``seed`` (int64) and ``draft_log_q`` (float32 or better).

    tokens [N, max_length + B]: prompt and output.  length [N]: n.  prompt_length, limit [N]: where output starts and the
    length at which it must end.  cache_len [N]: n - 1 between iterations.  draft [N, W], draft_len [N]: D.
    finish_reason [N]: index into `FINISH_REASONS`.  nfe [N]: model calls.  advances [N, calls]: tokens appended by each.
    stops [S, M]: stop ids and stop sequences, right-aligned, padded with -1.  draft_log_q [N, W, V]: log Q of the draft
    (rejection only, else empty).
    """

    tokens: Tensor
    length: Tensor
    cache_len: Tensor
    draft: Tensor
    draft_len: Tensor
    finish_reason: Tensor
    nfe: Tensor
    advances: Tensor
    limit: Tensor
    prompt_length: Tensor
    stops: Tensor
    seed: Tensor
    draft_log_q: Tensor

    def __post_init__(self) -> None:
        #: The input buffers of this state's calls, by their shape.
        self.rows: dict[BlockCall, Rows] = {}

    @classmethod
    def start(
        cls,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        block_size: int,
        capacity: int,
        stops: Sequence[Sequence[int]],
        seeds: Sequence[int],
        device: torch.device,
        calls: int | None = None,
        log_q: tuple[int, torch.dtype] | None = None,
    ) -> DecodeState:
        """State before the first call: the prompts, no draft, nothing cached.

        ``capacity`` is the number of tokens that prompt and output may take; ``calls`` the most model calls, None for what
        max_new_tokens can need; ``log_q`` the vocabulary size and dtype of the stored proposal distributions, None where no
        mode needs them.
        """
        n, width = len(prompts), block_size - 1

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        def known(values: Sequence) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        tokens = torch.zeros((n, capacity + block_size), dtype=torch.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        lengths = [len(prompt) for prompt in prompts]
        longest = max((len(stop) for stop in stops), default=1)
        vocab, dtype = log_q or (0, torch.float32)
        return cls(
            tokens=tokens.to(device),
            length=known(lengths),
            cache_len=whole(n),
            draft=whole(n, width),
            draft_len=whole(n),
            finish_reason=whole(n),
            nfe=whole(n),
            advances=whole(n, calls or 2 * max_new_tokens + 3),
            limit=known([length + max_new_tokens for length in lengths]),
            prompt_length=known(lengths),
            stops=known([[-1] * (longest - len(stop)) + list(stop) for stop in stops]).view(len(stops), longest),
            seed=torch.tensor(seeds, dtype=torch.int64, device=device),
            draft_log_q=torch.zeros((n, width if vocab else 0, vocab), dtype=dtype, device=device),
        )

    def load(self, other: DecodeState) -> None:
        """Takes over another state of the same shapes, from any device, in place; draft_log_q stays, for there is no draft."""
        for f in fields(self):
            if f.name != "draft_log_q":
                getattr(self, f.name).copy_(getattr(other, f.name))

    def progress(self) -> Progress:
        """Reads what a loop on the host decides by, in one copy."""
        return Progress(*torch.stack([getattr(self, name) for name in Progress._fields]).tolist())

    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that every resolve takes after the logits, in schema order."""
        return (
            self.tokens,
            self.length,
            self.cache_len,
            self.draft,
            self.draft_len,
            self.finish_reason,
            self.nfe,
            self.advances,
            self.limit,
            self.prompt_length,
            self.stops,
        )
