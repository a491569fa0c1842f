"""The ordered layout's CUDA sources, where tests/kernels does not look: rows in slices, any order of blocks and threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import islice

import pytest
import torch
from torch import Tensor

from packed_ss.ops import rows as plain
from packed_ss.sampling import process

from ..kernels.backends import BACKENDS
from ..kernels.ordered_cases import expected_cache, generation, moved_to, pack, resolve
from . import backend, ordered

ON_HOST = next(b for b in BACKENDS if b.name == "cuda-on-host")
# More than one slice of 2048 ids at least, with and without 16-byte aligned rows, and ends inside a slice and inside a chunk.
VOCAB_SIZES = (4096, 5001, 6148)
FILTERS = ({}, {"top_k": 20}, {"top_p": 0.9}, {"top_k": 300, "top_p": 0.9})
#: The first row of each sequence and how many, out of R = 9 and W = 4.
ROWS = torch.tensor([[2, 4], [5, 0], [6, 3]], dtype=torch.int32)
POSITIONS = torch.tensor([[7, 8, 9, 10], [3, 4, 5, -1], [2**31 - 1, 0, 6, -1]], dtype=torch.int32)
SEED = torch.tensor([5, -1, 2**40 + 3])


def logits_of(vocab: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[3, 9, V], neighbouring rows apart from each other."""
    scores = torch.randn(3, 9, vocab + 3, generator=torch.Generator().manual_seed(vocab)) * 3
    return scores.to(dtype)[..., :vocab]


def sampling(top_k: int = 0, top_p: float = 1.0) -> tuple[Tensor, float, int, float]:
    return SEED, 0.8, top_k, top_p


def verified(logits: Tensor, agree: float, *chosen: float) -> tuple[Tensor, Tensor]:
    """Draft [N, W] and log Q, of logits that agree more or less with the verifier's."""
    rng = torch.Generator().manual_seed(1)
    index = (ROWS[:, :1] + torch.arange(4)).clamp(max=8).long()
    near = logits.float().gather(1, index.unsqueeze(-1).expand(-1, -1, logits.shape[2]))
    log_q = process(near + (1 - agree) * torch.randn(near.shape, generator=rng) * 3, 0.8, *chosen).log_softmax(-1)
    draft = torch.multinomial(log_q.exp().flatten(0, 1), 1, generator=rng).view(3, 4).int()
    # No draft, whatever log Q says: a draw from the residual would be token 7.
    draft[0, 3], log_q[0, 3], log_q[0, 3, 7] = -1, 30.0, -30.0
    return draft, log_q.contiguous()


@pytest.mark.parametrize("vocab", VOCAB_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_argmax_of_slices(vocab: int, dtype: torch.dtype) -> None:
    logits = logits_of(vocab, dtype)
    logits[0, 0, [100, vocab - 1]] = 50.0
    logits[0, 1] = -torch.inf
    logits[0, 2, vocab - 1] = torch.nan
    logits[0, 3, 2100] = torch.inf
    logits[0, 4, : vocab - 1] = -torch.inf
    for wanted in (False, True):
        (ids, p), (want_ids, want_p) = ordered.argmax_rows(logits, wanted), plain.argmax_rows(logits, wanted)
        assert torch.equal(ids, want_ids)
        assert p.dtype == want_p.dtype
        torch.testing.assert_close(p, want_p, atol=0, rtol=2e-5)
    assert ids[0, :5].tolist() == [100, -1, -1, -1, vocab - 1]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", VOCAB_SIZES)
def test_draws_of_slices(vocab: int, filters: dict[str, float]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = logits_of(vocab, dtype)
        logits[2, 7] = -torch.inf
        for stores in (False, True):
            results = []
            for operator in (ordered.draw_rows, plain.draw_rows):
                ids = torch.full((3, 4), -7, dtype=torch.int32)
                log_q = torch.full((3, 4, vocab), 9.0) if stores else None
                operator(logits, ROWS, POSITIONS, *sampling(**filters), 0 if stores else 2, ids, log_q)
                results.append((ids, log_q))
            (ids, log_q), (want_ids, want_log_q) = results
            assert torch.equal(ids, want_ids)
            assert ids[1].tolist() == [-1] * 4
            assert ids[2, 1] == -1
            if stores:
                log_q[2, 1] = want_log_q[2, 1] = 0  # of a row without a finite maximum
                torch.testing.assert_close(log_q, want_log_q, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", VOCAB_SIZES)
def test_verdicts_on_slices(vocab: int, filters: dict[str, float]) -> None:
    logits = logits_of(vocab)
    matches = set()
    for agree in (0.0, 0.5, 0.8, 1.0):
        draft, log_q = verified(logits, agree, filters.get("top_k", 0), filters.get("top_p", 1.0))
        arguments = (logits, ROWS, POSITIONS, *sampling(**filters), draft, log_q)
        (ids, accepted), (want_ids, want_accepted) = ordered.verify_rows(*arguments), plain.verify_rows(*arguments)
        assert torch.equal(ids, want_ids)
        assert torch.equal(accepted, want_accepted)
        matches.update(accepted.sum(1).tolist())
    assert {0, 3} <= matches  # nothing accepted, and all of a sequence's three


def test_a_verdict_on_a_row_without_a_finite_maximum() -> None:
    logits = logits_of(5001)
    draft, log_q = verified(logits, 1.0, 0, 1.0)
    logits[0, 4, 3000] = torch.nan
    log_q -= 20  # whatever can be accepted is
    ids, accepted = ordered.verify_rows(logits, ROWS, POSITIONS, *sampling(), draft, log_q)
    assert accepted.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert ids.tolist() == [[*draft[0, :2].tolist(), -1, -1], [-1] * 4, [*draft[2, :3].tolist(), -1]]


def test_where_nothing_is_left_of_p_the_correction_comes_from_p() -> None:
    logits = logits_of(5001)
    draft, _ = verified(logits, 0.0, 0, 1.0)
    arguments = (logits, ROWS, POSITIONS, *sampling(), draft, torch.full((3, 4, 5001), 30.0))
    (ids, accepted), (want_ids, _) = ordered.verify_rows(*arguments), plain.verify_rows(*arguments)
    assert not accepted.any()
    assert torch.equal(ids, want_ids)
    assert (ids[[0, 2], 0] >= 0).all()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("filters", [{}, {"top_k": 50, "top_p": 0.9}], ids=str)
def test_rows_in_any_order(filters: dict[str, float], seed: int) -> None:
    """No bit depends on which block or thread comes first."""
    logits = logits_of(5001, torch.bfloat16)
    chosen = filters.get("top_k", 0), filters.get("top_p", 1.0)

    def everything() -> list[Tensor]:
        ids, log_q = torch.full((3, 4), -7, dtype=torch.int32), torch.zeros(3, 4, 5001)
        ordered.draw_rows(logits, ROWS, POSITIONS, *sampling(**filters), 0, ids, log_q)
        verdict = ordered.verify_rows(logits, ROWS, POSITIONS, *sampling(**filters), *verified(logits, 0.5, *chosen))
        return [*ordered.argmax_rows(logits, True), ids, log_q, *verdict]

    want = everything()
    with backend.kernels().order(seed):
        assert all(map(torch.equal, everything(), want))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("schedule", "order"), [("packed", "confidence"), ("branched", "shuffled"), ("native", "left_to_right")])
@pytest.mark.parametrize("W", [5, 70])
def test_resolves_and_rows_in_any_order(W: int, schedule: str, order: str, seed: int) -> None:
    """By teams of a warp, and of more."""
    for step in islice(generation(seed, schedule, W, order, n=2, most=2 * W, vocab=30 if W > 9 else 3), 4):
        want = resolve(ON_HOST, step), pack(ON_HOST, step.state, step.call)
        with backend.kernels().order(seed):
            got = resolve(ON_HOST, step), pack(ON_HOST, step.state, step.call)
        for f in fields(want[0]):
            assert torch.equal(getattr(got[0], f.name), getattr(want[0], f.name)), f.name
        assert all(map(torch.equal, got[1], want[1]))


def _whole(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape).remainder(30011).to(torch.int16)


CACHES: dict[str, Callable[[], Tensor]] = {
    "16 bytes, two blocks a slot": lambda: _whole(2, 3, 20, 3, 400),
    "4 bytes": lambda: _whole(2, 3, 20, 3, 2),
    "odd": lambda: _whole(2, 3, 20, 3, 5),
    "off by one": lambda: _whole(1 + 2 * 3 * 20 * 3 * 8)[1:].view(2, 3, 20, 3, 8),
}


@pytest.mark.parametrize("cache", CACHES)
def test_pairs_move_whatever_their_size_and_alignment(cache: str) -> None:
    """More slots than a thread reads at once, sources that other slots are written to, and a sequence of which nothing moves."""
    keys, values = CACHES[cache](), CACHES[cache]() + 1
    cache_len, moved = torch.tensor([14, 3, 19]), torch.tensor([1, 3, 18])
    source = torch.zeros(3, 30, dtype=torch.int32)
    source[0, 1:14] = torch.tensor([2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 16, 18, 19])
    source[2, 18] = 19
    want = [expected_cache(t, cache_len.tolist(), source.tolist(), moved.tolist()) for t in (keys, values)]
    for seed in (0, 1):
        got = [CACHES[cache](), CACHES[cache]().add_(1)]
        with backend.kernels().order(seed):
            ordered.compact_cache(*got, cache_len.int(), source, moved.int())
        assert all(map(torch.equal, got, want))


def test_a_state_without_sequences() -> None:
    step = next(iter(generation(0, "packed", 3, n=1)))
    state = moved_to(step.state, "cpu")
    for f in fields(state):
        if f.name != "stops":
            setattr(state, f.name, getattr(state, f.name)[:0])
    call = step.call
    ordered.resolve_ordered(
        step.ids[:0], None, None, *state.operands(), call.waiting_rows, call.window, call.verifies, call.cuts, False
    )
    assert [t.shape[0] for t in pack(ON_HOST, state, call)] == [0] * 5
    assert ordered.argmax_rows(torch.zeros(0, 3, 7), True)[0].shape == (0, 3)
