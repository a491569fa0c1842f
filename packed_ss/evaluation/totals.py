"""What one schedule made of a set of prompts: yield, cost, speed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Totals:
    """One schedule over all prompts.  Rates are of totals: tokens / seconds = (tokens / NFE) / (seconds / NFE).

    ``equal``: outputs equal to the first schedule's, of how many; None where outputs are random.  ``correct``: share of
    right final answers.
    """

    schedule: str
    prompts: int
    tokens: int
    nfe: int
    seconds: float
    correct: float
    equal: int | None

    @property
    def tokens_per_nfe(self) -> float:
        return self.tokens / max(self.nfe, 1)

    @property
    def ms_per_nfe(self) -> float:
        return 1e3 * self.seconds / max(self.nfe, 1)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-12)

    def as_dict(self) -> dict[str, Any]:
        """Return every field and rate, for JSON."""
        rates = ("tokens_per_nfe", "ms_per_nfe", "tokens_per_second")
        return asdict(self) | {name: getattr(self, name) for name in rates}
