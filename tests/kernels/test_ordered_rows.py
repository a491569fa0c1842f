"""argmax_rows, draw_rows and verify_rows: rows of logits to tokens, against the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.reference.distributions import argmax, log_probabilities
from packed_ss.reference.ordered import top_probability
from packed_ss.reference.verification import Draft, make_rule

from .backends import Backend
from .test_resolve import FILTERS, ROWS, _row

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TARGET, DRAFT = 2, 0


def logits_of(seed: int, n: int, rows: int, vocab: int, dtype: torch.dtype, scale: float = 2.0) -> Tensor:
    return (torch.randn(n, rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def need(backend: Backend, name: str, dtype: torch.dtype) -> None:
    backend.need(name)
    if dtype not in backend.dtypes:
        pytest.skip(f"{backend.name} has no {name} of {dtype}")


def as_int(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def check_argmax(backend: Backend, logits: Tensor) -> None:
    """Ids, and probabilities to a few units in the last place."""
    need(backend, "argmax_rows", logits.dtype)
    n, rows = logits.shape[:2]
    value = torch.promote_types(logits.dtype, torch.float32)
    want = [[argmax(row) for row in sequence] for sequence in logits.tolist()]
    top = [[top_probability(row) or 0.0 for row in sequence] for sequence in logits.tolist()]
    for asks in (True, False):
        ids, probability = backend.ops["argmax_rows"](logits.to(backend.device), asks)
        assert (ids.dtype, probability.dtype) == (torch.int32, value)
        assert ids.tolist() == [[-1 if token is None else token for token in tokens] for tokens in want]
        assert probability.shape == (n, rows if asks else 0)
        if asks:
            ulp = torch.finfo(value).eps
            expected = torch.tensor(top, dtype=torch.float64).view(n, rows)
            torch.testing.assert_close(probability.cpu().double(), expected, atol=0, rtol=8 * ulp)


@pytest.mark.parametrize("vocab", [1, 5, 37, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_argmax_and_its_probability(backend: Backend, dtype: torch.dtype, vocab: int) -> None:
    check_argmax(backend, logits_of(vocab, 2, 3, vocab, dtype))


@pytest.mark.parametrize("vocab", [32000, 151936])
def test_argmax_of_long_rows(backend: Backend, vocab: int) -> None:
    logits = logits_of(1, 1, 1 if backend.slow else 2, vocab, torch.bfloat16)
    logits[0, 0, [vocab // 3, vocab - 1]] = 30.0
    check_argmax(backend, logits)


@pytest.mark.parametrize("row", ROWS)
def test_argmax_of_adversarial_rows(backend: Backend, row: str) -> None:
    for dtype in backend.some((torch.float32, torch.bfloat16, torch.float64), 1):
        if dtype not in backend.dtypes:
            continue
        logits = logits_of(2, 2, 2, 70, dtype)
        logits[0, 1] = _row(row, 70).to(dtype)
        check_argmax(backend, logits)


def test_argmax_without_rows_and_of_strided_rows(backend: Backend) -> None:
    check_argmax(backend, torch.zeros(2, 0, 9))
    check_argmax(backend, torch.zeros(0, 3, 9))
    check_argmax(backend, logits_of(3, 4, 9, 21, torch.float32)[::2, 1::3, 2:19])


def draw(
    backend: Backend,
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    seeds: Tensor,
    stream: int,
    stores: bool,
    settings: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """ids and, where it is asked for, log_q."""
    need(backend, "draw_rows", logits.dtype)
    sampling = {"temperature": 0.8, "top_k": 0, "top_p": 1.0} | settings
    value = torch.promote_types(logits.dtype, torch.float32)
    ids = torch.full_like(positions, -7).to(backend.device)
    log_q = torch.full((*positions.shape, logits.shape[2]), 9.0, dtype=value).to(backend.device) if stores else None
    given = (t.to(backend.device) for t in (logits, rows, positions, seeds))
    backend.ops["draw_rows"](*given, *sampling.values(), stream, ids, log_q)
    return ids.cpu(), log_q.cpu() if log_q is not None else None


def check_draws(
    backend: Backend,
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    seeds: Tensor,
    stream: int,
    stores: bool,
    settings: dict[str, Any],
) -> None:
    """Every row that is named, and nothing in the place of others."""
    ids, log_q = draw(backend, logits, rows, positions, seeds, stream, stores, settings)
    sampling = {"temperature": 0.8, "top_k": 0, "top_p": 1.0} | settings
    for i, (first, count) in enumerate(rows.tolist()):
        rule = make_rule("rejection", int(seeds[i]), **sampling)
        for j in range(positions.shape[1]):
            if j >= count:
                assert int(ids[i, j]) == -1
                assert log_q is None or (log_q[i, j] == 9.0).all()
                continue
            row = logits[i, first + j].tolist()
            if stream == DRAFT:
                drawn = rule.draft(row, int(positions[i, j]))
                token = None if drawn is None else drawn.token
            else:
                token = rule.target(row, int(positions[i, j]))
            assert int(ids[i, j]) == (-1 if token is None else token), (i, j)
            if log_q is not None and token is not None:
                want = torch.tensor(log_probabilities(row, **sampling), dtype=torch.float64)
                tolerance = 1e-12 if log_q.dtype == torch.float64 else 4e-6
                torch.testing.assert_close(log_q[i, j].double(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab", [1, 5, 37, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_draws(backend: Backend, dtype: torch.dtype, vocab: int, filters: str) -> None:
    if backend.slow and (DTYPES.index(dtype) + (1, 5, 37, 1000).index(vocab) + list(FILTERS).index(filters)) % 4:
        pytest.skip("slow: a part of the combinations")
    logits = logits_of(vocab, 3, 7, vocab, dtype)
    rows, positions = as_int([[2, 3], [0, 0], [3, 4]]), as_int([[8, 9, 10, 11], [0, 1, 2, -1], [5, 3, 9, 4]])
    seeds = torch.tensor([3, -(2**63), 2**62 + 11])
    for stream, stores in ((DRAFT, True), (TARGET, False), (TARGET, True)):
        check_draws(backend, logits, rows, positions, seeds, stream, stores, FILTERS[filters])


@pytest.mark.parametrize("row", ROWS)
def test_draws_from_adversarial_rows(backend: Backend, row: str) -> None:
    for dtype in backend.some((torch.float32, torch.float64), 1):
        if dtype not in backend.dtypes:
            continue
        logits = logits_of(5, 1, 4, 70, dtype)
        logits[0, 2] = _row(row, 70).to(dtype)
        check_draws(backend, logits, as_int([[1, 3]]), as_int([[4, 5, 6]]), torch.tensor([7]), DRAFT, True, {})


def test_draws_from_strided_rows(backend: Backend) -> None:
    logits = logits_of(6, 4, 12, 30, torch.float32)[::2, ::3, 3:29]
    rows, positions = as_int([[1, 2], [0, 4]]), as_int([[4, 5, 6, 7], [9, 8, 7, 6]])
    check_draws(backend, logits, rows, positions, torch.tensor([7, 8]), TARGET, True, {"top_p": 0.9})


def test_draws_of_a_long_row(backend: Backend) -> None:
    logits = logits_of(8, 1, 2, 32000, torch.bfloat16, 1.0)
    u = torch.ops.packed_ss.uniform_noise(torch.tensor([5]), as_int([[12]]), TARGET, 32000).double()
    log_p = (logits[:, 1:].double() / 0.8).log_softmax(-1)
    ids, _ = draw(backend, logits, as_int([[1, 1]]), as_int([[12]]), torch.tensor([5]), TARGET, False, {})
    assert ids.tolist() == (log_p - torch.log(-torch.log1p(-u))).argmax(-1).tolist()


def check_verdicts(
    backend: Backend,
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    seeds: Tensor,
    draft: Tensor,
    log_q: Tensor,
    settings: dict[str, Any],
) -> list[int]:
    """Returns h of every sequence."""
    need(backend, "verify_rows", logits.dtype)
    sampling = {"temperature": 0.8, "top_k": 0, "top_p": 1.0} | settings
    given = (t.to(backend.device) for t in (logits, rows, positions, seeds))
    ids, accepted = backend.ops["verify_rows"](*given, *sampling.values(), draft.to(backend.device), log_q.to(backend.device))
    matches = []
    for i, (first, count) in enumerate(rows.tolist()):
        rule = make_rule("rejection", int(seeds[i]), **sampling)
        want, yes = [-1] * positions.shape[1], [0] * positions.shape[1]
        for j in range(min(count, positions.shape[1])):
            row, d = logits[i, first + j].tolist(), int(draft[i, j])
            if d < 0:
                token = rule.target(row, int(positions[i, j]))
                want[j] = -1 if token is None else token
                break
            verdict = rule.verify(row, Draft(d, log_q[i, j].tolist()), int(positions[i, j]))
            if verdict is None:
                break
            yes[j], want[j] = int(verdict[0]), verdict[1]
            if not verdict[0]:
                break
        assert ids[i].tolist() == want
        assert accepted[i].tolist() == yes
        matches.append(sum(yes))
    assert ids.dtype == accepted.dtype == torch.int32
    return matches


def drafted(logits: Tensor, rows: Tensor, width: int, agree: float, settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Drafts and log Q: with ``agree`` 1 those of the verifier's own distribution."""
    sampling = {"temperature": 0.8, "top_k": 0, "top_p": 1.0} | settings
    n, _, vocab = logits.shape
    rng = torch.Generator().manual_seed(n)
    value = torch.promote_types(logits.dtype, torch.float32)
    log_q, draft = torch.zeros(n, width, vocab, dtype=value), torch.zeros(n, width, dtype=torch.int32)
    for i in range(n):
        for j in range(width):
            row = logits[i, min(int(rows[i, 0]) + j, logits.shape[1] - 1)].float()
            mixed = (agree * row + (1 - agree) * torch.randn(vocab, generator=rng) * 2).tolist()
            log_q[i, j] = torch.tensor(log_probabilities(mixed, **sampling), dtype=value)
            draft[i, j] = torch.multinomial(log_q[i, j].exp(), 1, generator=rng)[0]
    return draft, log_q


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab", [1, 5, 37, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_verdicts(backend: Backend, dtype: torch.dtype, vocab: int, filters: str) -> None:
    if backend.slow and (DTYPES.index(dtype) + (1, 5, 37, 1000).index(vocab) + list(FILTERS).index(filters)) % 4:
        pytest.skip("slow: a part of the combinations")
    matches = set()
    for seed, agree in backend.some(((0, 0.8), (1, 0.95), (2, 0.5)), 1):
        logits = logits_of(seed + vocab, 4, 6, vocab, dtype)
        rows = as_int([[0, 4], [1, 0], [2, 3], [0, 1]])
        positions = as_int([[4, 5, 6, 7], [1, 2, 3, 4], [9, 7, 8, -1], [3, -1, -1, -1]])
        draft, log_q = drafted(logits, rows, 4, agree, FILTERS[filters])
        draft[0, 3] = draft[2, 2] = -1
        matches |= {
            *check_verdicts(
                backend, logits, rows, positions, torch.tensor([1, 2, 3, 4]) * 977 + seed, draft, log_q, FILTERS[filters]
            )
        }
    assert backend.slow or matches >= {0, 1}


def test_every_draft_accepted_and_the_first_token_where_there_is_none(backend: Backend) -> None:
    logits = logits_of(3, 2, 4, 9, torch.float32)
    rows, positions = as_int([[0, 4], [0, 3]]), as_int([[4, 5, 6, 7], [4, 5, 6, 7]])
    log_q = torch.full((2, 4, 9), -30.0)  # u < p / Q, whatever u
    draft = as_int([[1, 2, 3, 4], [5, -1, 6, 7]])
    seeds = torch.tensor([1, 2])
    assert check_verdicts(backend, logits, rows, positions, seeds, draft, log_q, {}) == [4, 1]


@pytest.mark.parametrize("row", ROWS)
def test_verdicts_on_adversarial_rows(backend: Backend, row: str) -> None:
    for place in backend.some(range(3), 1):
        logits = logits_of(place, 1, 4, 70, torch.float32)
        rows, positions = as_int([[0, 3]]), as_int([[4, 5, 6]])
        draft, log_q = drafted(logits, rows, 3, 1.0, {})
        logits[0, place] = _row(row, 70)
        check_verdicts(backend, logits, rows, positions, torch.tensor([9]), draft, log_q, {})


@pytest.mark.parametrize("token", [9, 2**31 - 1])
def test_a_draft_id_outside_the_vocabulary_is_never_accepted_nor_read(backend: Backend, token: int) -> None:
    if backend.name == "torch":
        pytest.skip("plain torch refuses such an index")
    need(backend, "verify_rows", torch.float32)
    logits = logits_of(1, 1, 3, 9, torch.float32)
    given = (logits, as_int([[0, 3]]), as_int([[4, 5, 6]]), torch.tensor([9]))
    rest = (as_int([[token, 1, 2]]), torch.full((1, 3, 9), -5.0))
    ids, accepted = backend.ops["verify_rows"](
        *(t.to(backend.device) for t in given), 1.0, 0, 1.0, *(t.to(backend.device) for t in rest)
    )
    assert accepted.tolist() == [[0, 0, 0]]
    assert 0 <= int(ids[0, 0]) < 9
    assert ids[0, 1:].tolist() == [-1, -1]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(backend: Backend, threads: int) -> None:
    """Rows in parallel, and, where they are few and long, the passes over each."""
    if backend.name != "cpu":
        pytest.skip("threads are the CPU's")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits = logits_of(9, 2, 6, 50000, torch.float32)
        rows, positions = as_int([[0, 4], [2, 3]]), as_int([[4, 5, 6, 7], [1, 2, 3, 4]])
        seeds = torch.tensor([5, 6])
        plain = torch.ops.packed_ss.argmax_rows(logits, True)
        assert plain[0].tolist() == logits.max(-1).indices.tolist()
        torch.testing.assert_close(plain[1], logits.softmax(-1).amax(-1), atol=0, rtol=1e-5)
        log_p = (logits.double() / 0.8).log_softmax(-1)
        for part in (slice(0, 1), slice(0, 2)):
            ids, log_q = draw(backend, logits[part], rows[part], positions[part], seeds[part], DRAFT, True, {})
            u = torch.ops.packed_ss.uniform_noise(seeds[part], positions[part], DRAFT, 50000).double()
            for i, (first, count) in enumerate(rows[part].tolist()):
                want = log_p[i, first : first + count]
                assert ids[i, :count].tolist() == (want - torch.log(-torch.log1p(-u[i, :count]))).argmax(-1).tolist()
                torch.testing.assert_close(log_q[i, :count].double(), want, atol=2e-5, rtol=0)
            ids = ids.clamp(min=0)
            verdict = torch.ops.packed_ss.verify_rows(
                logits[part], rows[part], positions[part], seeds[part], 0.8, 0, 1.0, ids, log_q
            )
            for i, (_, count) in enumerate(rows[part].tolist()):  # drafts of p itself: all are accepted
                assert verdict[0][i, :count].tolist() == ids[i, :count].tolist()
                assert verdict[1][i].tolist() == [1] * count + [0] * (4 - count)
    finally:
        torch.set_num_threads(before)
