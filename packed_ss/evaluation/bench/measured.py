"""What one decoded response is, whoever decoded it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Measured:
    """Tokens and cost of a response, with the fields of `packed_ss.evaluation.bench.run_records.Response`."""

    tokens: list[int]
    nfe: int
    advances: list[int] | None
    seconds: float
    finish_reason: str
    model_seconds: float | None = None
    first_model_seconds: float | None = None


class Engine(Protocol):
    """One candidate, ready to decode.  ``rows``: the most input rows of a call after the first, None where it has no such number.
    ``separate``: whether `generate` measures no model time, and `generate_timed` does, in a response of its own."""

    rows: int | None
    separate: bool

    def generate(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured: ...

    def generate_timed(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured: ...
