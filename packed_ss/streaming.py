"""Handing new tokens to a streamer while they are decoded."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Streamer(Protocol):
    """What a streamer must have: transformers' `TextStreamer` and its kin do."""

    def put(self, value: Tensor) -> None:
        """Receives the prompt first, then each call's new tokens: int64, 1-D, on the CPU."""

    def end(self) -> None:
        """Called once, after the last token."""


class Stream:
    """Hands each call's new tokens of one sequence to a streamer, the prompt first."""

    def __init__(self, streamer: Streamer | None, prompt: list[int]) -> None:
        self.streamer, self.seen = streamer, len(prompt)
        if streamer is not None:
            streamer.put(torch.tensor(prompt))

    def advance(self, lengths: Tensor, tokens: Tensor | None) -> None:
        """Hand over what is new in tokens [N, T] up to lengths [N]."""
        if self.streamer is None or tokens is None:
            return
        length = int(lengths[0])
        if length > self.seen:
            self.streamer.put(tokens[0, self.seen : length].cpu().long())
            self.seen = length

    def end(self) -> None:
        """Say that there is no more."""
        if self.streamer is not None:
            self.streamer.end()
