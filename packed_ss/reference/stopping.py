"""Where an accepted run ends, and the record of a generation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Generation:
    """The new tokens of one sequence, why it ended, and the tokens that each counted model call appended (prefill first)."""

    tokens: list[int]
    finish_reason: FinishReason
    advances: list[int]

    @property
    def nfe(self) -> int:
        """Model calls, prefill included."""
        return len(self.advances)


class Stops:
    """Stop ids and stop sequences (lists of ids); both are matched against generated tokens only, never the prompt."""

    def __init__(self, ids: Collection[int] = (), sequences: Sequence[Sequence[int]] = ()) -> None:
        if any(len(sequence) == 0 for sequence in sequences):
            raise ValueError("a stop sequence of no tokens was given; one token at least is accepted")
        self.ids = frozenset(ids)
        self.sequences = [list(sequence) for sequence in sequences]

    def first(self, generated: Sequence[int], C: Sequence[int]) -> int | None:
        """Return the smallest i >= 1 such that C[1..i] ends with a stop, or None.

        A sequence may have begun in ``generated``, the tokens of earlier calls.
        """
        for i in range(1, len(C) + 1):
            text = [*generated, *C[:i]]
            if text[-1] in self.ids or any(text[-len(sequence) :] == sequence for sequence in self.sequences):
                return i
        return None


def ending(
    generated: Sequence[int], C: Sequence[int], L: int, stops: Stops, failed: bool = False
) -> tuple[int, FinishReason | None]:
    """Return the advance a = min(A, tokens left to L, first stop in C) and the reason if the generation ends there.

    A stop that is also the L-th token is a "stop".  ``failed``: the verifier row after C had no finite maximum; that is an
    "error" only if neither a stop nor the limit comes first.
    """
    left = L - len(generated)
    stop = stops.first(generated, C)
    if stop is not None and stop <= left:
        return stop, "stop"
    if len(C) >= left:
        return left, "length"
    return len(C), "error" if failed else None
