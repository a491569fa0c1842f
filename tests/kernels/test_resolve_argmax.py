"""resolve_argmax does from each row's argmax what resolve_greedy does from the logits."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from packed_ss.layouts.block import BlockCall

from .backends import Backend
from .resolve_cases import Case, check, expected_rows, finish, moved, operands, random_case
from .test_resolve import ROWS, SHAPES, _row


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """best [N, R] float32 and ids [N, R] int32, as `linear_argmax` has them."""
    best, ids = logits.float().max(-1)
    return best, ids.int()


def check_argmax(backend: Backend, case: Case, following: BlockCall | None = None) -> None:
    """Runs resolve_argmax and compares the state, and the next rows where their shape is given, with the reference."""
    if "resolve_argmax" not in backend.ops:
        pytest.skip(f"{backend.name} has no resolve_argmax")
    state = moved(case.state, backend.device)
    rows: list[Tensor] = []
    if following is not None:
        shape = (len(case.state.length), following.rows)
        rows = [torch.full(shape, -5, dtype=torch.int32, device=backend.device) for _ in range(3)]
    results = (t.to(backend.device) for t in argmax(case.logits))
    backend.ops["resolve_argmax"](*results, *operands(case, state, (following, rows) if following is not None else None))
    after = moved(state, "cpu")
    check(case, after)
    if following is not None:
        assert [buffer.tolist() for buffer in rows] == expected_rows(after, following)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_call_shape(backend: Backend, shape: str) -> None:
    for seed in backend.some(range(8), 2):
        check_argmax(backend, random_case(seed, vocab=11, call=SHAPES[shape]))


def test_a_few_branches(backend: Backend) -> None:
    for seed, drafts in backend.some(itertools.product(range(4), (3, 2, 1, 0)), 4):
        check_argmax(backend, random_case(seed, vocab=11, call=BlockCall(4, 4, (0, 2, 3)), drafts=drafts))


@pytest.mark.parametrize("place", [0, 1, 3, 6])
@pytest.mark.parametrize("row", ROWS)
def test_adversarial_rows(backend: Backend, row: str, place: int) -> None:
    """A row whose best is not finite has no argmax, wherever it is."""
    if backend.slow and place != (0, 1, 3, 6)[ROWS.index(row) % 4]:
        pytest.skip("slow: each kind of row in one place")
    case = random_case(place, vocab=70, call=SHAPES["packed"], agree=1.0, n=2)
    case.logits[:, place] = _row(row, 70)
    check_argmax(backend, case)


@pytest.mark.parametrize("shape", ["packed", "propose", "verify", "quadratic"])
def test_stops_finished_sequences_and_next_rows(backend: Backend, shape: str) -> None:
    for seed in backend.some(range(6), 1):
        case = random_case(seed, vocab=31, call=SHAPES[shape], n=4, agree=0.9)
        case.set_stops([[int(case.logits[0, 0].argmax())], [3, 4], [int(case.logits[1, 1].argmax())]])
        finish(case, 2, "length")
        check_argmax(backend, case, BlockCall(3, 4, (0, 2)))


def test_results_may_be_part_of_a_larger_tensor(backend: Backend) -> None:
    if "resolve_argmax" not in backend.ops:
        pytest.skip(f"{backend.name} has no resolve_argmax")
    case = random_case(1, vocab=11, call=SHAPES["packed"])
    best, ids = argmax(case.logits)
    wide = torch.full((3, 20), torch.nan)
    wide[:, 5:13] = best
    state = moved(case.state, backend.device)
    backend.ops["resolve_argmax"](wide.to(backend.device)[:, 5:13], ids.to(backend.device), *operands(case, state))
    check(case, moved(state, "cpu"))


@pytest.mark.parametrize("with_next_rows", [False, True])
def test_operator_contract(with_next_rows: bool) -> None:
    call = BlockCall(3, 3, (0,))
    case = random_case(1, vocab=11, call=call, n=2)
    rows = (call, [torch.zeros(2, 6, dtype=torch.int32) for _ in range(3)]) if with_next_rows else None
    torch.library.opcheck(torch.ops.packed_ss.resolve_argmax.default, (*argmax(case.logits), *operands(case, case.state, rows)))
