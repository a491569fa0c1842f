"""advance_block and pack_block: verdict, commit and retention, with the row operators, against the reference in float64."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from packed_ss.layouts.block import BlockCall
from packed_ss.state import FINISH_REASONS

from .backends import BACKENDS, DTYPES, Backend
from .block_cases import advance, check, check_call, expected_rows, finish, one, pack, random_case, run, with_logits
from .row_cases import FILTERS, GREEDY, ROWS, Setting, adversarial

MODES = ("greedy", "coupled", "rejection")
PACKED = BlockCall(4, 4, (0,))
SHAPES = {
    "packed": PACKED,
    "quadratic": BlockCall(4, 4, (0, 1, 2, 3)),
    "verify": BlockCall(4, 4, ()),
    "propose": BlockCall(0, 4, (0,)),
    "first": BlockCall(1, 4, (0,), shift=1),
    "autoregressive": BlockCall(1, 4, ()),
    "fewer rows": BlockCall(2, 4, (0, 1)),
    "W = 1": BlockCall(2, 2, (0, 1)),
}
#: Calls whose rows are written: their draft in one column range, in several, and in none.
FOLLOWING = (BlockCall(4, 4, (0,)), BlockCall(3, 4, (0, 2)), BlockCall(0, 4, (0,)), BlockCall(4, 4, ()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_call_shape(backend: Backend, mode: str, shape: str) -> None:
    """With the rows of the next call; one sequence may have finished before."""
    call = SHAPES[shape]
    for seed in backend.some(range(8)):
        case = random_case(seed, vocab=11, call=call, mode=mode, n=4, settings=[Setting(0.7), Setting(0.7, 5, 0.9), GREEDY])
        if seed % 2:
            finish(case, 3, "length")
        following = FOLLOWING[(seed + list(SHAPES).index(shape)) % 4]
        check_call(backend, case, following if following.block_size == call.block_size else BlockCall(2, 2, (0, 1)))


@pytest.mark.parametrize("cuts", [(0, *rest) for k in range(4) for rest in itertools.combinations((1, 2, 3), k)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_branch_set(backend: Backend, mode: str, cuts: tuple[int, ...]) -> None:
    """Each with every draft length, some accepted and some not; the first |D| + 1 matches all occur."""
    lengths = set()
    for seed, drafts in backend.some(itertools.product(range(4), (3, 2, 1, 0))):
        case = random_case(seed, vocab=11, call=BlockCall(4, 4, cuts), mode=mode, drafts=drafts)
        lengths |= {result.advance for result in check_call(backend, case)}
    assert backend.slow or lengths >= {1, 2, 3, 4}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("mode", MODES)
def test_dtypes_and_filters(backend: Backend, mode: str, filters: str, dtype: torch.dtype) -> None:
    if mode == "greedy" and filters != "plain":
        pytest.skip("greedy has no filters")
    backend.skip_most(DTYPES.index(dtype) + list(FILTERS).index(filters), 3)
    for seed in backend.some(range(3)):
        settings = [FILTERS[filters]]
        check_call(
            backend, random_case(seed, vocab=111, call=SHAPES["quadratic"], mode=mode, dtype=dtype, n=2, settings=settings)
        )


PLACES = (0, 1, 3, 5, 6, 7)


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("mode", MODES)
def test_adversarial_rows(backend: Backend, mode: str, row: str, at: int) -> None:
    """In a verifier row that is consulted or not, and in a proposal row that is retained or not."""
    if backend.slow and at != PLACES[(ROWS.index(row) + MODES.index(mode)) % len(PLACES)]:
        pytest.skip("slow: each kind of row in one place")
    for dtype in backend.some((torch.float32, torch.bfloat16, torch.float64)):
        if dtype not in backend.dtypes:
            continue
        if (row, at > 3, mode) == ("denormal", True, "rejection") and dtype == torch.bfloat16:
            continue
        case = random_case(at, vocab=70, call=PACKED, mode=mode, dtype=dtype, agree=1.0, n=2, settings=[Setting(0.7)])
        case.logits[:, at] = adversarial(row, 70).to(dtype)
        check_call(backend, case)


def test_a_row_of_nan_ends_with_an_error_behind_the_accepted_tokens(backend: Backend) -> None:
    case = random_case(0, vocab=200, call=PACKED, dtype=torch.bfloat16, drafts=3, agree=1.0)
    case.state.limit += 9
    case.logits[:, 2, 150] = torch.nan
    assert [(result.finish_reason, result.advance) for result in check_call(backend, case)] == [("error", 2)] * 3


def test_a_proposal_row_of_nan_ends_the_draft(backend: Backend) -> None:
    """What stands behind it does not count: the rows of the next call say so."""
    case = random_case(0, vocab=200, call=PACKED, drafts=0)
    case.state.limit += 9
    case.logits[:, 6, 150:] = torch.nan
    check_call(backend, case, PACKED)
    after = run(backend, case)
    assert (after.draft >= 0).tolist() == [[False, True, False]] * 3
    assert all(predicts[1:4] == [-1, -1, -1] for predicts in pack(backend, after, PACKED)[3])


@pytest.mark.parametrize("mode", MODES)
def test_stops_anywhere(backend: Backend, mode: str) -> None:
    """A stop at every place of the accepted run, as an id and as a sequence that began up to three calls ago; each its own."""
    reached, tried = 0, 0
    for seed, length, at in backend.some(itertools.product(range(3), (1, 2, 4), range(4)), 4):
        case = random_case(seed, vocab=31, call=PACKED, mode=mode, drafts=3, agree=1.0, n=2)
        case.state.limit += 9
        case.state.prompt_length.fill_(1)
        free = check_call(backend, case)
        stops = [
            [result.tokens[: n + at + 1][-length:]] if n + at < len(result.tokens) else []
            for result, n in zip(free, case.state.length.tolist(), strict=True)
        ]
        if not any(stops):
            continue
        for distractors in backend.some(([[9] * 5, [case.state.tokens[0, 0].item(), 3]], [])):
            case.set_stops([[*mine, *distractors] for mine in stops])
            reached += sum(result.finish_reason == "stop" for result in check_call(backend, case))
            tried += sum(map(bool, stops))
        case.set_stops([[*stops[1]], []])  # another sequence's stop is none
        assert check_call(backend, case)[1].finish_reason == free[1].finish_reason
    assert reached >= 0.9 * tried > 0


def test_stops_do_not_reach_into_the_prompt(backend: Backend) -> None:
    case = random_case(1, vocab=31, call=PACKED, drafts=3, agree=1.0, n=1)
    case.state.limit += 9
    n = int(case.state.length[0])
    token = check_call(backend, case)[0].tokens[n]
    case.set_stops([[[int(case.state.tokens[0, n - 1]), token]]])
    case.state.prompt_length.fill_(n)
    assert check_call(backend, case)[0].finish_reason == "running"
    case.state.prompt_length.fill_(n - 1)
    assert check_call(backend, case)[0].finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_limits_anywhere(backend: Backend, mode: str, left: int) -> None:
    """Also together with a stop at the limit, and a row without an argmax before and after it."""
    for seed, bad in backend.some(itertools.product(range(3), (2, None, 0, 3))):
        case = random_case(seed, vocab=31, call=PACKED, mode=mode, drafts=3, agree=1.0, n=2)
        case.state.limit.copy_(case.state.length + left)
        if bad is not None:
            case.logits[:, bad] = torch.nan
        results = check_call(backend, case)
        case.set_stops([[[result.tokens[-1]]] for result in results])
        check_call(backend, case)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", ["packed", "propose", "verify"])
def test_finished_sequences_stay_as_they_are(backend: Backend, mode: str, shape: str) -> None:
    case = random_case(5, vocab=31, call=SHAPES[shape], mode=mode, n=5)
    for i, reason in ((0, "stop"), (2, "length"), (3, "error")):
        finish(case, i, reason)
        case.logits[i] = torch.nan
    check_call(backend, case, PACKED)
    after = run(backend, case)
    for name in ("tokens", "length", "cache_len", "order", "finish_reason", "nfe", "advances"):
        assert torch.equal(getattr(after, name)[[0, 2, 3]], getattr(case.state, name)[[0, 2, 3]]), name
    finish(case, 1, "stop")
    finish(case, 4, "stop")
    check_call(backend, case)


@pytest.mark.parametrize(
    "call", [PACKED, BlockCall(4, 4, (0, 1, 3)), BlockCall(0, 4, (0,)), BlockCall(1, 4, ()), BlockCall(2, 6, (0,))], ids=str
)
def test_pack_block(backend: Backend, call: BlockCall) -> None:
    """Entries that are yet to be drawn do not count."""
    for seed in backend.some(range(4)):
        case = random_case(seed, vocab=11, call=BlockCall(call.block_size, call.block_size, (0,)), n=5)
        finish(case, 2, FINISH_REASONS[1 + seed % 3])
        assert pack(backend, case.state, call) == expected_rows(case.state, call)


@pytest.mark.parametrize("mode", MODES)
def test_rows_may_be_strided(backend: Backend, mode: str) -> None:
    case = random_case(2, vocab=65, call=PACKED, mode=mode)
    n, rows, vocab = case.logits.shape
    larger = torch.full((n, rows + 1, 2, vocab + 3), torch.nan)
    larger[:, 1:, 1, 2 : vocab + 2] = case.logits
    check_call(backend, with_logits(case, larger[:, 1:, 1, 2 : vocab + 2]))


@pytest.mark.parametrize("mode", MODES)
def test_no_sequences(backend: Backend, mode: str) -> None:
    case = random_case(0, vocab=5, call=PACKED, mode=mode, n=1)
    for f in fields(case.state):
        setattr(case.state, f.name, getattr(case.state, f.name)[:0])
    case.logits = case.logits[:0]
    run(backend, case, PACKED)
    assert pack(backend, case.state, PACKED) == [[]] * 4


# The advance alone, by hand: what h, a, and the rows kept are.  The sequence is 10 ... 19.

WHOLE = [21, 22, 23, 24, *range(30, 34), *range(40, 44)]  # of a call with cuts 0 and 2
TWO = BlockCall(4, 4, (0, 2))


@pytest.mark.parametrize(
    ("draft", "ids", "settings", "tokens", "reason", "retained"),
    [
        ([], WHOLE, {}, [21], "running", [6, 7]),  # no draft: the region after the last token, less its first two rows
        ([5, 22, 23], WHOLE, {}, [21], "running", [6, 7]),  # the first is wrong
        ([21, 5, 23], WHOLE, {}, [21, 22], "running", [7]),  # h = 1: still the first region
        ([21, 22, 5], WHOLE, {}, [21, 22, 23], "running", [10, 11]),  # h = 2: the second one
        ([21, 22, 23], WHOLE, {}, [21, 22, 23, 24], "running", [11]),
        ([21, -1, 23], WHOLE, {}, [21, 22], "running", [7]),  # a draft ends at its first -1
        ([21, 22, 23], WHOLE, {"left": 3}, [21, 22, 23], "length", []),
        ([21, 22, 23], WHOLE, {"left": 1}, [21], "length", []),
        ([21, 22, 23], WHOLE, {"stops": [[22]]}, [21, 22], "stop", []),
        ([21, 22, 23], WHOLE, {"stops": [[22]], "left": 2}, [21, 22], "stop", []),  # a stop at the limit is a stop
        ([21, 22, 23], WHOLE, {"stops": [[23]], "left": 2}, [21, 22], "length", []),
        ([21, 22, 23], WHOLE, {"stops": [[18, 19, 21, 22]]}, [21, 22], "stop", []),  # begun two tokens ago
        ([21, 22, 23], WHOLE, {"stops": [[13, *range(14, 20), 21]]}, [21, 22, 23, 24], "running", [11]),  # 13 is the prompt's
        ([21, 22, 23], WHOLE, {"stops": [[14, *range(15, 20), 21]]}, [21], "stop", []),
        ([21, 22, 23], [21, 22, -1, *WHOLE[3:]], {}, [21, 22], "error", []),
        ([21, 22, 23], [21, 22, -1, *WHOLE[3:]], {"left": 2}, [21, 22], "length", []),
        ([21, 22, 23], [21, 22, -1, *WHOLE[3:]], {"stops": [[22]]}, [21, 22], "stop", []),
        ([21, 5, 23], [21, 22, -1, *WHOLE[3:]], {}, [21, 22], "running", [7]),  # not consulted
        ([21, 22, 23], [-1, *WHOLE[1:]], {}, [], "error", []),
        ([21, -1, 23], [21, -1, *WHOLE[2:]], {}, [21], "error", []),  # no draft is the draft of no token
    ],
)
def test_one_advance(
    backend: Backend,
    draft: list[int],
    ids: list[int],
    settings: dict[str, Any],
    tokens: list[int],
    reason: str,
    retained: list[int],
) -> None:
    a = len(tokens)
    for columns, accepts in ((12, False), (4, False), (4, True)):
        state = one(TWO, draft, **settings)
        given, accepted = torch.tensor([ids[:columns]], dtype=torch.int32), None
        if accepts:  # drafts are taken for what they are, and the token behind them alone is the verifier's
            same = [draft[j : j + 1] == [ids[j]] and ids[j] >= 0 for j in range(4)]
            h = (same + [False]).index(False)
            accepted = torch.tensor([[int(j < h) for j in range(4)]], dtype=torch.int32)
            given[0, :h] = 99
        advance(backend, state, TWO, given, accepted, BlockCall(4, 4, (0, 1)))
        n = 10 + a
        assert state.tokens[0, :n].tolist() == [*range(10, 20), *tokens]
        assert [state.length.item(), state.cache_len.item(), state.nfe.item(), state.advances[0, 0].item()] == [n, 9 + a, 1, a]
        assert FINISH_REASONS[state.finish_reason.item()] == reason
        assert state.order[0].tolist() == [n, n + 1, n + 2]
        kept = retained + [-1] * (3 - len(retained))
        drawn = [ids[row] for row in retained] + [-1] * (3 - len(retained))
        assert (state.draft[0].tolist(), state.retained[0].tolist()) == ((drawn, [-1] * 3) if columns == 12 else ([-1] * 3, kept))


@pytest.mark.parametrize("ids", [[40, 41, -1, 43], []])
def test_a_call_that_only_proposes(backend: Backend, ids: list[int]) -> None:
    """It counts as a call, appends nothing, and its draft replaces the one before."""
    state = one(SHAPES["propose"], [5, 6, 7])
    advance(backend, state, SHAPES["propose"], torch.tensor([ids], dtype=torch.int32), None, PACKED)
    assert [state.length.item(), state.cache_len.item(), state.nfe.item(), state.advances[0, 0].item()] == [10, 9, 1, 0]
    assert state.finish_reason.item() == 0
    assert state.draft[0].tolist() == ([41, -1, 43] if ids else [-1, -1, -1])
    assert state.retained[0].tolist() == ([-1, -1, -1] if ids else [1, 2, 3])


@pytest.mark.parametrize(("drafts", "column"), [(3, 0), (3, 3), (0, 0), (0, 7)])
def test_negative_control(drafts: int, column: int) -> None:
    """The comparison with the reference sees one wrong id in any of the rows that a call decides by."""
    case = random_case(3, vocab=11, call=PACKED, n=2, drafts=drafts, agree=1.0)
    case.state.limit += 9

    def find(name: str) -> Any:
        def operator(*arguments: Any) -> None:
            if name == "advance_block":
                arguments[0][1, column] = (arguments[0][1, column] + 1) % 11
            BACKENDS[0](name, *arguments)

        return operator

    wrong = replace(BACKENDS[0], find=find)
    with pytest.raises(AssertionError):
        check(case, run(wrong, case, all_rows=True))
