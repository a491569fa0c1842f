"""Two small operations on lists that the algorithms share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import TypeVar

T = TypeVar("T")


def leading(accepted: Iterable[bool]) -> int:
    """Return the number of entries before the first False."""
    return sum(1 for _ in takewhile(bool, accepted))


def present(values: Iterable[T | None]) -> list[T]:
    """Return the entries before the first None."""
    head: list[T] = []
    for value in values:
        if value is None:
            break
        head.append(value)
    return head
