"""What can be watched of a decoder: times, traces and waits, without a subclass of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Observer:
    """Override what you want to see; a decoder calls it in the order in which things happen.

    A captured iteration calls forward and resolve methods while it is warmed up and captured (between `capture_begins` and
    `capture_ends`), not while it is replayed.  ``call`` is the shape of the call, a `BlockCall` or `OrderedCall`.
    """

    def generation_begins(self, state: Any, request: Any) -> None:
        """The state is there, nothing is decoded yet."""

    def forward_begins(self, call: Any) -> None:
        """The model's forward is next."""

    def forward_ends(self, call: Any) -> None:
        """The model's forward has been queued."""

    def resolve_begins(self, call: Any, outputs: Tensor, state: Any) -> None:
        """The call's outputs, logits [N, head rows, V] or ids [N, head rows], are about to advance the state."""

    def resolve_ends(self, call: Any, outputs: Tensor, state: Any) -> None:
        """They have."""

    def first_call_ends(self) -> None:
        """The prompt has been through the model."""

    def loop_begins(self) -> None:
        """From here on nothing waits for the device inside an iteration."""

    def call_ends(self, call: Any) -> None:
        """One call of the loop, made step by step, has been resolved."""

    def replay_ends(self) -> None:
        """One captured iteration has been queued."""

    def loop_ends(self) -> None:
        """Every sequence has finished, or the loop has failed."""

    def capture_begins(self) -> None:
        """An iteration is about to be warmed up and captured."""

    def capture_ends(self) -> None:
        """It has been, or the capture has failed."""
