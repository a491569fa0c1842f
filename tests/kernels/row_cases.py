"""Calls of the row operators, with settings per sequence, and the same by the reference in float64, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packed_ss.reference.distributions import argmax, log_probabilities
from packed_ss.reference.ordered import top_probability
from packed_ss.reference.verification import GREEDY_BELOW, Draft, Rule, make_rule
from packed_ss.state import sampling_settings

from .backends import Backend

DRAFT, TARGET = 0, 2
#: What results hold beforehand: neither an id nor -1.
BEFORE = -7


class Setting(NamedTuple):
    """How a sequence samples."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        """Whether it takes the argmax; NaN does."""
        return not self.temperature >= GREEDY_BELOW

    def rule(self, seed: int) -> Rule:
        """The reference's; what filters nothing or all but the largest is put into its terms."""
        if self.greedy:
            return make_rule("greedy")
        return make_rule("rejection", seed, self.temperature, max(self.top_k, 0), min(max(self.top_p, 1e-300), 1.0))

    def log_p(self, row: Sequence[float]) -> list[float] | None:
        """Log of the processed distribution."""
        if self.greedy:
            best = argmax(row)
            return None if best is None else [0.0 if token == best else -torch.inf for token in range(len(row))]
        return log_probabilities(row, self.temperature, max(self.top_k, 0), min(max(self.top_p, 1e-300), 1.0))


FILTERS = {"plain": Setting(), "top-k": Setting(top_k=5), "top-p": Setting(top_p=0.7), "both": Setting(0.8, 20, 0.9)}
GREEDY = Setting(0.0, 3, 0.5)


def sampling(seeds: Sequence[int], settings: Sequence[Setting]) -> list[Tensor]:
    """The settings as row operators take them."""
    return list(sampling_settings(seeds, *zip(*settings, strict=True)).values())


def as_int(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def logits_of(seed: int, n: int, rows: int, vocab: int, dtype: torch.dtype = torch.float32, scale: float = 2.0) -> Tensor:
    return (torch.randn(n, rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def view(values: Tensor) -> Tensor:
    """The same values as some columns of a longer tensor, as operators often get them: an odd stride between sequences."""
    longer = torch.full((values.shape[0], values.shape[1] + 3), BEFORE, dtype=values.dtype)
    longer[:, 2:-1] = values
    return longer[:, 2:-1]


ROWS = (
    "all equal", "two tied", "zeros of both signs", "huge", "very negative", "one-hot", "one-hot of 1e30", "denormal",
    "one of -inf", "one of NaN", "one of -NaN", "one of inf", "all -inf", "all inf", "all NaN",
)  # fmt: skip


def adversarial(name: str, vocab: int) -> Tensor:
    """A row of `ROWS`."""
    row = torch.linspace(-2, 2, vocab)[torch.randperm(vocab, generator=torch.Generator().manual_seed(1))]
    nan, inf = torch.nan, torch.inf
    if name.startswith("one of"):
        row[vocab // 2] = {"NaN": nan, "-NaN": -nan, "inf": inf, "-inf": -inf}[name.split()[-1]]
    return {
        "all equal": torch.full((vocab,), 0.25),
        "two tied": torch.where(torch.arange(vocab) % 5 == 3, 7.0, row),
        "zeros of both signs": torch.where(torch.arange(vocab) % 2 == 0, -0.0, 0.0),
        "huge": row * 5e29,
        "very negative": row - 1e30,
        "one-hot": torch.where(torch.arange(vocab) == vocab - 2, 0.0, -inf),
        "one-hot of 1e30": torch.where(torch.arange(vocab) == vocab - 2, 1e30, -1e30),
        "all -inf": torch.full((vocab,), -inf),
        "all inf": torch.full((vocab,), inf),
        "all NaN": torch.full((vocab,), nan),
        "denormal": torch.arange(vocab) * 1e-45,
    }.get(name, row)


def entries(logits: Tensor, rows: Tensor | None, positions: Tensor | None, count: int) -> list[list[list[float] | None]]:
    """The row of each entry that is asked for, as lists [N][M]; None for others."""
    values = logits.tolist()

    def row(i: int, j: int) -> list[float] | None:
        k = j if rows is None else int(rows[i, j])
        asked = positions is None or int(positions[i, j]) >= 0
        return values[i][k] if asked and 0 <= k < logits.shape[1] else None

    return [[row(i, j) for j in range(count)] for i in range(len(values))]


def check_ids(ids: Tensor, want: Sequence[Sequence[int]], draft: Tensor | None) -> None:
    """Compare ids; behind the first whose token is not its draft they may be -1 too."""
    assert ids.dtype == torch.int32
    for i, tokens in enumerate(want):
        stopped = False
        for j, token in enumerate(tokens):
            assert int(ids[i, j]) in ({token, -1} if stopped else {token}), (i, j)
            stopped |= draft is not None and not (j < draft.shape[1] and 0 <= int(draft[i, j]) == token)


def check_argmax(
    backend: Backend,
    logits: Tensor,
    count: int | None = None,
    rows: Tensor | None = None,
    positions: Tensor | None = None,
    draft: Tensor | None = None,
) -> None:
    """Ids, alone and with their probabilities, which are right to a few units in the last place."""
    count = logits.shape[1] if count is None else count
    chosen = entries(logits, rows, positions, count)
    want = [[-1 if row is None or (token := argmax(row)) is None else token for row in one] for one in chosen]
    top = [[0.0 if row is None else top_probability(row) or 0.0 for row in one] for one in chosen]
    for probability in (None, torch.full((len(chosen), count), 9.0, dtype=wide(logits.dtype))):
        ids = torch.full((len(chosen), count), BEFORE, dtype=torch.int32)
        backend("argmax_rows", logits, rows, positions, draft, ids, probability)
        check_ids(ids, want, draft)
        if probability is not None:
            of = torch.tensor(top, dtype=torch.float64).view(ids.shape)
            given = torch.where(ids >= 0, of, 0) if draft is not None else of
            tolerance = 8 * torch.finfo(probability.dtype).eps
            torch.testing.assert_close(probability.double(), given, atol=0, rtol=tolerance)


def check_draws(
    backend: Backend,
    logits: Tensor,
    positions: Tensor,
    seeds: Sequence[int],
    settings: Sequence[Setting],
    stream: int,
    rows: Tensor | None = None,
    draft: Tensor | None = None,
    *,
    stores: bool = True,
    next_column: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Every entry that is asked for, and nothing in the place of others; returns ids and log Q."""
    n, count, vocab = len(positions), positions.shape[1], logits.shape[2]
    ids = torch.full((n, count), BEFORE, dtype=torch.int32)
    log_q = torch.full((n, count, vocab), 9.0, dtype=wide(logits.dtype)) if stores else None
    next_ids = None if next_column is None else torch.full((n, next_column + count + 2), BEFORE, dtype=torch.int32)
    backend(
        "draw_rows", logits, rows, positions, draft, *sampling(seeds, settings), stream, ids, log_q, next_ids, next_column or 0
    )  # fmt: skip
    want = []
    for i, chosen in enumerate(entries(logits, rows, positions, count)):
        rule = settings[i].rule(seeds[i])
        tokens = []
        for j, row in enumerate(chosen):
            if row is None:
                token = None
            elif stream == DRAFT:
                drawn = rule.draft(row, int(positions[i, j]))
                token = None if drawn is None else drawn.token
            else:
                token = rule.target(row, int(positions[i, j]))
            tokens.append(-1 if token is None else token)
            if log_q is not None and row is None:
                assert (log_q[i, j] == 9.0).all(), (i, j)
            elif log_q is not None and token is not None and draft is None:
                log_p = torch.tensor(settings[i].log_p(row), dtype=torch.float64)
                assert torch.equal(log_q[i, j].isinf(), log_p.isinf())
                tolerance = 1e-12 if log_q.dtype == torch.float64 else 4e-6
                torch.testing.assert_close(log_q[i, j].double(), log_p, atol=tolerance, rtol=tolerance)
        want.append(tokens)
    check_ids(ids, want, draft)
    if next_ids is not None:
        inside = next_ids[:, next_column : next_column + count]
        assert torch.equal(inside, torch.where(ids >= 0, ids, BEFORE))
        assert (next_ids[:, :next_column] == BEFORE).all() and (next_ids[:, next_column + count :] == BEFORE).all()
    return ids, log_q


def check_verdicts(
    backend: Backend,
    logits: Tensor,
    positions: Tensor,
    seeds: Sequence[int],
    settings: Sequence[Setting],
    draft: Tensor,
    log_q: Tensor,
) -> list[int]:
    """Returns the accepted drafts of every sequence."""
    n, count = positions.shape
    ids, accepted = (torch.full((n, count), BEFORE, dtype=torch.int32) for _ in range(2))
    backend("verify_rows", logits, positions, *sampling(seeds, settings), draft, log_q, ids, accepted)
    matches = []
    for i, chosen in enumerate(entries(logits, None, positions, count)):
        rule, want, yes = settings[i].rule(seeds[i]), [-1] * count, [0] * count
        for j, row in enumerate(chosen):
            if row is None:
                break
            d, position = int(draft[i, j]) if j < draft.shape[1] else -1, int(positions[i, j])
            if d < 0:
                token = rule.target(row, position)
                want[j] = -1 if token is None else token
                break
            verdict = rule.verify(row, Draft(d, log_q[i, j].tolist()), position)
            if verdict is None:
                break
            yes[j], want[j] = int(verdict[0]), verdict[1]
            if not verdict[0]:
                break
        assert ids[i].tolist() == want, i
        assert accepted[i].tolist() == yes, i
        matches.append(sum(yes))
    return matches


def drafted(
    logits: Tensor, width: int, settings: Sequence[Setting], agree: float, *, seed: int = 0, spread: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Drafts [N, width] and log Q: with ``agree`` 1 drawn from the distributions of the rows themselves."""
    n, _, vocab = logits.shape
    rng = torch.Generator().manual_seed(seed)
    log_q, draft = torch.zeros(n, width, vocab, dtype=wide(logits.dtype)), torch.zeros(n, width, dtype=torch.int32)
    for i, setting in enumerate(settings):
        for j in range(width):
            row = logits[i, min(j, logits.shape[1] - 1)].double()
            mixed = agree * row + (1 - agree) * torch.randn(vocab, generator=rng) * spread
            log_q[i, j] = torch.tensor(setting.log_p(mixed.tolist()), dtype=log_q.dtype)
            draft[i, j] = torch.multinomial(log_q[i, j].exp(), 1, generator=rng)[0]
    return draft, log_q


def log_probabilities_by_sorting(logits: Tensor, setting: Setting) -> Tensor:
    """float64 log p of long rows without ties."""
    x = logits.double() / setting.temperature
    order = x.sort(-1, descending=True)
    mass = order.values[..., : setting.top_k or None].softmax(-1)
    kept = torch.zeros_like(x, dtype=torch.bool)
    kept.scatter_(-1, order.indices[..., : mass.shape[-1]], mass.cumsum(-1) - mass < setting.top_p)
    return x.masked_fill(~kept, -torch.inf).log_softmax(-1)


def drawn_by_noise(log_p: Tensor, seeds: Sequence[int], positions: Tensor, stream: int) -> list[list[int]]:
    """argmax(log p + G) in float64 of long rows [N, M, V]."""
    u = torch.ops.packed_ss.uniform_noise(torch.tensor(seeds), positions.contiguous(), stream, log_p.shape[-1]).double()
    return (log_p - torch.log(-torch.log1p(-u))).argmax(-1).tolist()
