"""Small verifiers and drafters for the tests: hash tables, and the synthetic drafter of Assumption 3.1."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache

from packed_ss.reference.ordered import Accepted, Pair


@cache
def _hashed_row(key: tuple[object, ...], vocab_size: int, levels: int) -> tuple[float, ...]:
    """Logits in [-2, 2] on a grid of ``levels`` values (few levels: many ties), a fixed function of ``key``."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=2 * vocab_size).digest()
    words = [int.from_bytes(digest[2 * i : 2 * i + 2], "little") for i in range(vocab_size)]
    return tuple(4.0 * (word % levels) / (levels - 1) - 2.0 for word in words)


class TableModel:
    """A verifier whose logits are a hash of the last three tokens, and a drafter that is sometimes as good.

    Drafter row j is, for a fraction ``agreement`` of (P, j), the verifier's row along its own greedy continuation of P, else
    another hash.  It is a function of P and j alone.
    """

    def __init__(self, seed: int, vocab_size: int = 5, agreement: float = 0.7, levels: int = 4096) -> None:
        self.seed, self.vocab_size, self.agreement, self.levels = seed, vocab_size, agreement, levels

    def row(self, prefix: Sequence[int]) -> tuple[float, ...]:
        """Verifier logits of the token after ``prefix``."""
        return _hashed_row((self.seed, "p", *prefix[-3:]), self.vocab_size, self.levels)

    def verifier(self, P: Sequence[int], D: Sequence[int]) -> list[tuple[float, ...]]:
        return [self.row([*P, *D[:i]]) for i in range(len(D) + 1)]

    def drafter(self, P: Sequence[int], m: int) -> list[tuple[float, ...]]:
        rows, continuation = [], list(P)
        for j in range(m):
            key = (self.seed, "q", *P[-3:], j)
            own = self.row(continuation)
            continuation.append(max(range(self.vocab_size), key=own.__getitem__))
            copies = _hashed_row((*key, "coin"), 1, 1024)[0] < 4.0 * self.agreement - 2.0
            rows.append(own if copies else _hashed_row(key, self.vocab_size, self.levels))
        return rows


class ThresholdModel:
    """Assumption 3.1: the draft of output position k (from 1) is right iff the context holds c*_k or more output tokens.

    ``thresholds[k - 1]`` is c*_k; positions beyond the list are never right.  Output tokens are ``text(k)``; the wrong one is 4.
    """

    vocab_size = 5

    def __init__(self, thresholds: Sequence[int], prompt_length: int) -> None:
        self.thresholds, self.prompt_length = list(thresholds), prompt_length

    def text(self, k: int) -> int:
        return (k * k + k // 3) % 4

    def threshold(self, k: int) -> int:
        return min(k, self.thresholds[k - 1]) if k <= len(self.thresholds) else k

    def _one_hot(self, token: int) -> list[float]:
        return [float(v == token) for v in range(self.vocab_size)]

    def verifier(self, P: Sequence[int], D: Sequence[int]) -> list[list[float]]:
        c = len(P) - self.prompt_length
        return [self._one_hot(self.text(c + i + 1)) for i in range(len(D) + 1)]

    def drafter(self, P: Sequence[int], m: int) -> list[list[float]]:
        c = len(P) - self.prompt_length
        return [self._one_hot(self.text(k) if c >= self.threshold(k) else 4) for k in range(c + 1, c + m + 1)]


class AnyOrderModel:
    """A model in any order: for a share ``plain`` of (position, context) its logits know the position only, else all of both.

    The context is everything a row can see: the pairs, their order, and what each of their rows has seen.  Two contexts agree on
    a position's token, as draft and verification must now and then, mostly where both are plain.
    """

    def __init__(self, seed: int, vocab_size: int = 5, plain: float = 0.8, levels: int = 4096) -> None:
        self.seed, self.vocab_size, self.plain, self.levels = seed, vocab_size, plain, levels
        self._digests: dict[Accepted, str] = {}

    def digest(self, accepted: Accepted) -> str:
        """A name for an accepted pair and all that its row depends on."""
        if accepted not in self._digests:
            self._digests[accepted] = self._name(accepted.position, accepted.token, [self.digest(a) for a in accepted.seen])
        return self._digests[accepted]

    def _name(self, position: int, token: int, seen: Sequence[str]) -> str:
        return hashlib.blake2b(repr((position, token, *seen)).encode(), digest_size=8).hexdigest()

    def __call__(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[tuple[float, ...]]:
        names = [self.digest(a) for a in P]
        for position, token in K:
            names.append(self._name(position, token, names))
        context = tuple(names)
        rows = []
        for j in U:
            plain = _hashed_row((self.seed, "coin", j, context), 1, 1024)[0] < 4.0 * self.plain - 2.0
            rows.append(_hashed_row((self.seed, "row", j, () if plain else context), self.vocab_size, self.levels))
        return rows


class FixedText:
    """A verifier that gives ``text`` whatever the context (one-hot logits), and drafters for it.

    Output position j (from 1) has the token ``text[j - 1]``, the last one from there on.
    """

    def __init__(self, text: Sequence[int], vocab_size: int = 10) -> None:
        self.text, self.vocab_size = list(text), vocab_size

    def row(self, token: int, weight: float = 1.0) -> list[float]:
        """Logits whose largest entry, ``weight``, is a token's."""
        return [weight * (v == token) for v in range(self.vocab_size)]

    def __call__(self, P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
        return [self.row(self.text[min(j, len(self.text)) - 1]) for j in U]

    def wrong_at(self, *positions: int) -> Callable[[Sequence[Accepted], Sequence[Pair], Sequence[int]], list[list[float]]]:
        """A drafter that is right everywhere but at some positions, where it gives the last token of the vocabulary."""

        def drafter(P: Sequence[Accepted], K: Sequence[Pair], U: Sequence[int]) -> list[list[float]]:
            return [self.row(self.vocab_size - 1) if j in positions else row for j, row in zip(U, self(P, K, U), strict=True)]

        return drafter
