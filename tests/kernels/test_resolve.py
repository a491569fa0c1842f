"""resolve_greedy, resolve_coupled, resolve_rejection: verdict, commit and retention, against the reference in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields

import pytest
import torch

from packed_ss.layouts.block import BlockCall

from .backends import Backend
from .resolve_cases import Case, check, expected_rows, finish, random_case, run, with_logits

MODES = ("greedy", "coupled", "rejection")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
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
FILTERS = {"plain": {}, "top-k": {"top_k": 5}, "top-p": {"top_p": 0.7}, "both": {"top_k": 20, "top_p": 0.9}}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_call_shape(backend: Backend, mode: str, shape: str) -> None:
    for seed in backend.some(range(8), 1):
        case = random_case(seed, vocab=11, call=SHAPES[shape], mode=mode, temperature=0.7)
        check(case, run(backend, case)[0])


@pytest.mark.parametrize("cuts", [(0, *rest) for k in range(4) for rest in itertools.combinations((1, 2, 3), k)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_every_branch_set(backend: Backend, mode: str, cuts: tuple[int, ...]) -> None:
    """Each with every draft length, some accepted and some not; the first |D| + 1 matches all occur."""
    lengths = set()
    for seed, drafts in backend.some(itertools.product(range(4), (3, 2, 1, 0)), 1):
        case = random_case(seed, vocab=11, call=BlockCall(4, 4, cuts), mode=mode, drafts=drafts)
        lengths |= {result.advance for result in check(case, run(backend, case)[0])}
    assert backend.slow or lengths >= {1, 2, 3, 4}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("mode", MODES)
def test_dtypes_and_filters(backend: Backend, mode: str, filters: str, dtype: torch.dtype) -> None:
    if mode == "greedy" and filters != "plain":
        pytest.skip("greedy has no filters")
    for seed in backend.some(range(3), 1):
        case = random_case(seed, vocab=111, call=SHAPES["quadratic"], mode=mode, dtype=dtype, n=2, **FILTERS[filters])
        check(case, run(backend, case)[0])


@pytest.mark.parametrize("vocab", [1, 2, 7, 64, 65, 111, 1023, 1025])
@pytest.mark.parametrize("mode", MODES)
def test_vocabulary_sizes(backend: Backend, mode: str, vocab: int) -> None:
    filters = {"top_k": 3, "top_p": 0.95} if vocab % 2 else {}
    for dtype in backend.some(backend.dtypes[: 4 if vocab < 1000 else 2], 1):
        case = random_case(vocab, vocab=vocab, call=BlockCall(2, 2, (0, 1)), mode=mode, dtype=dtype, n=2, **filters)
        check(case, run(backend, case)[0])


@pytest.mark.parametrize("vocab", [32000, 131072, 151936, 262144])
def test_long_vocabulary_greedy(backend: Backend, vocab: int) -> None:
    """The largest entry at both ends, and a tie across the row."""
    case = random_case(0, vocab=vocab, call=BlockCall(2, 2, (0,)), n=1, dtype=torch.bfloat16)
    for ids in backend.some(([vocab // 3, vocab - 5], [0], [vocab - 1]), 1):
        logits = case.logits.clone()
        logits[:, :, ids] = 100.0
        changed = with_logits(case, logits)
        assert check(changed, run(backend, changed)[0])[0].tokens[-1] == ids[0]


def _log_probabilities(logits: torch.Tensor, case: Case) -> torch.Tensor:
    """float64 log p of rows under temperature, top-k and top-p without ties, by sorting."""
    x = logits.double() / case.temperature
    order = x.sort(-1, descending=True)
    mass = order.values[..., : case.top_k or None].softmax(-1)
    kept = torch.zeros_like(x, dtype=torch.bool)
    kept.scatter_(-1, order.indices[..., : mass.shape[-1]], mass.cumsum(-1) - mass < case.top_p)
    return x.masked_fill(~kept, -torch.inf).log_softmax(-1)


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("vocab", [32000, 151936])
def test_long_vocabulary_draws(backend: Backend, vocab: int, filters: str) -> None:
    """Draws over long rows: the argmax of log p + G by brute force in float64, and the stored log Q."""
    if backend.slow and (vocab, filters) in ((151936, "top-p"), (151936, "both")):
        pytest.skip("slow: many tokens in question of a long row")
    case = random_case(3, vocab=vocab, call=BlockCall(0, 3, (0,)), mode="coupled", n=1, scale=1.0, **FILTERS[filters])
    log_p = _log_probabilities(case.logits[:, 1:], case)
    position = case.state.length[:, None] + torch.arange(2, dtype=torch.int32)
    for mode, stream in backend.some((("rejection", 0), ("coupled", 2)), 1):
        case.mode = mode
        case.state.draft_log_q = torch.zeros(1, 2, vocab)
        u = torch.ops.packed_ss.uniform_noise(case.state.seed, position, stream, vocab).double()
        after = run(backend, case)[0]
        assert after.draft.tolist() == (log_p - torch.log(-torch.log1p(-u))).argmax(-1).tolist()
        if mode == "rejection":
            torch.testing.assert_close(after.draft_log_q.double(), log_p, atol=2e-5, rtol=0)


@pytest.mark.parametrize("filters", FILTERS)
def test_the_correction_is_drawn_from_p_where_nothing_is_left(backend: Backend, filters: str) -> None:
    """Of [p - Q]+ for Q = e^9 p: no coin here is below e^-9, so the first draft token of each sequence is rejected."""
    n = 2 if backend.slow else 8
    case = random_case(4, vocab=111, call=PACKED, mode="rejection", n=n, drafts=3, scale=1.0, **FILTERS[filters])
    case.state.limit += 9
    log_p = _log_probabilities(case.logits[:, :3], case)
    case.state.draft_log_q = (log_p + 9).float()
    after = run(backend, case)[0]
    assert (after.length - case.state.length).tolist() == [1] * n
    place = case.state.length.unsqueeze(1)
    u = torch.ops.packed_ss.uniform_noise(case.state.seed, place, 2, 111).double()
    drawn = (log_p[:, :1] - torch.log(-torch.log1p(-u))).argmax(-1)
    assert after.tokens.gather(1, place.long()).tolist() == drawn.tolist()


def _row(name: str, vocab: int) -> torch.Tensor:
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


ROWS = (
    "all equal",
    "two tied",
    "zeros of both signs",
    "huge",
    "very negative",
    "one-hot",
    "one-hot of 1e30",
    "denormal",
    "one of -inf",
    "one of NaN",
    "one of -NaN",
    "one of inf",
    "all -inf",
    "all inf",
    "all NaN",
)


PLACES = (0, 1, 3, 5, 6, 7)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("mode", MODES)
def test_adversarial_rows(backend: Backend, mode: str, row: str, place: int) -> None:
    """In a verifier row that is consulted or not, and in a proposal row that is retained or not."""
    if backend.slow and place != PLACES[(ROWS.index(row) + MODES.index(mode)) % len(PLACES)]:
        pytest.skip("slow: each kind of row in one place")
    for dtype in backend.some((torch.float32, torch.bfloat16, torch.float64), 1):
        if dtype not in backend.dtypes:
            continue
        if (row, place > 3, mode) == ("denormal", True, "rejection") and dtype == torch.bfloat16:
            continue
        case = random_case(place, vocab=70, call=PACKED, mode=mode, dtype=dtype, agree=1.0, temperature=0.7, n=2)
        case.logits[:, place] = _row(row, 70).to(dtype)
        check(case, run(backend, case)[0])


@pytest.mark.parametrize("bits", [0x7FC0, 0xFFC0, 0x7F81, 0xFF81, 0xFFFF, 0x7FFF])
def test_nan_of_any_sign_and_payload_ends_with_an_error(backend: Backend, bits: int) -> None:
    case = random_case(0, vocab=200, call=PACKED, dtype=torch.bfloat16, drafts=3, agree=1.0)
    case.state.limit += 9
    case.logits[:, 2, 150] = torch.tensor([bits], dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    after = run(backend, case)[0]
    assert [result.finish_reason for result in check(case, after)] == ["error"] * 3
    assert (after.length - case.state.length).tolist() == [2, 2, 2]


def test_a_proposal_row_of_nan_is_a_valid_draft_of_greedy(backend: Backend) -> None:
    """It is verified like any other; its token is in range."""
    case = random_case(0, vocab=200, call=PACKED, drafts=0)
    case.state.limit += 9
    case.logits[:, 4:, 150:] = torch.nan
    after = run(backend, case)[0]
    assert after.draft_len.tolist() == [2, 2, 2]
    assert after.draft[:, :2].tolist() == [[150, 150]] * 3


@pytest.mark.parametrize("mode", MODES)
def test_stops_anywhere(backend: Backend, mode: str) -> None:
    """A stop at every place of the accepted run, as an id and as a sequence that began up to three calls ago."""
    reached, tried = 0, 0
    for seed, length, at in backend.some(itertools.product(range(3), (1, 2, 4), range(4)), 4):
        case = random_case(seed, vocab=31, call=PACKED, mode=mode, drafts=3, agree=1.0, n=2)
        case.state.limit += 9
        case.state.prompt_length.fill_(1)
        free = check(case, run(backend, case)[0])
        stops = [
            result.tokens[: n + at + 1][-length:]
            for result, n in zip(free, case.state.length.tolist(), strict=True)
            if n + at < len(result.tokens)
        ]
        if not stops:
            continue
        for distractors in backend.some(([[9] * 5, [case.state.tokens[0, 0].item(), 3]], []), 1):
            case.set_stops(stops + distractors)
            reached += sum(result.finish_reason == "stop" for result in check(case, run(backend, case)[0]))
            tried += 1
    assert reached > 0.7 * tried


def test_stops_do_not_reach_into_the_prompt(backend: Backend) -> None:
    case = random_case(1, vocab=31, call=PACKED, drafts=3, agree=1.0, n=1)
    case.state.limit += 9
    n = int(case.state.length[0])
    token = check(case, run(backend, case)[0])[0].tokens[n]
    case.set_stops([[int(case.state.tokens[0, n - 1]), token]])
    case.state.prompt_length.fill_(n)
    assert check(case, run(backend, case)[0])[0].finish_reason == "running"
    case.state.prompt_length.fill_(n - 1)
    assert check(case, run(backend, case)[0])[0].finish_reason == "stop"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("left", [1, 2, 3, 4, 5])
def test_limits_anywhere(backend: Backend, mode: str, left: int) -> None:
    """Also together with a stop at the limit, and a row without an argmax before and after it."""
    for seed, bad in backend.some(itertools.product(range(3), (2, None, 0, 3)), 1):
        case = random_case(seed, vocab=31, call=PACKED, mode=mode, drafts=3, agree=1.0, n=2)
        case.state.limit.copy_(case.state.length + left)
        if bad is not None:
            case.logits[:, bad] = torch.nan
        results = check(case, run(backend, case)[0])
        case.set_stops([[result.tokens[-1]] for result in results])
        check(case, run(backend, case)[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", ["packed", "propose", "verify"])
def test_finished_sequences_stay_as_they_are(backend: Backend, mode: str, shape: str) -> None:
    case = random_case(5, vocab=31, call=SHAPES[shape], mode=mode, n=5)
    for i, reason in ((0, "stop"), (2, "length"), (3, "error")):
        finish(case, i, reason)
        case.logits[i] = torch.nan
    after = run(backend, case)[0]
    check(case, after)
    assert after.draft_len[[0, 2, 3]].tolist() == [0, 0, 0]
    finish(case, 1, "stop")
    finish(case, 4, "stop")
    check(case, run(backend, case)[0])


@pytest.mark.parametrize("mode", MODES)
def test_next_rows(backend: Backend, mode: str) -> None:
    """The resolve writes what pack_block would, for the call after it."""
    following = BlockCall(3, 4, (0, 2))
    for seed, shape in itertools.product(backend.some(range(4), 1), ("packed", "propose", "verify", "first")):
        case = random_case(seed, vocab=11, call=SHAPES[shape], mode=mode, n=4)
        finish(case, 3, "length")
        after, rows = run(backend, case, following)
        check(case, after)
        assert [buffer.tolist() for buffer in rows] == expected_rows(after, following)


@pytest.mark.parametrize(
    "call", [PACKED, BlockCall(4, 4, (0, 1, 3)), BlockCall(0, 4, (0,)), BlockCall(1, 4, ()), BlockCall(2, 6, (0,))], ids=str
)
def test_pack_block(backend: Backend, call: BlockCall) -> None:
    for seed in backend.some(range(4), 1):
        state = random_case(seed, vocab=11, call=BlockCall(call.block_size, call.block_size, (0,)), n=5).state
        rows = [torch.full((5, call.rows), -5, dtype=torch.int32, device=backend.device) for _ in range(3)]
        inputs = [t.to(backend.device) for t in (state.tokens, state.length, state.cache_len, state.draft, state.draft_len)]
        backend.ops["pack_block"](*inputs, 77, call.verifier_rows, call.block_size, list(call.cuts), *rows)
        assert [buffer.tolist() for buffer in rows] == expected_rows(state, call)


@pytest.mark.parametrize("mode", MODES)
def test_rows_may_be_strided(backend: Backend, mode: str) -> None:
    case = random_case(2, vocab=65, call=PACKED, mode=mode)
    n, rows, vocab = case.logits.shape
    wide = torch.full((n, rows + 1, 2, vocab + 3), torch.nan)
    wide[:, 1:, 1, 2 : vocab + 2] = case.logits
    strided = with_logits(case, wide[:, 1:, 1, 2 : vocab + 2])
    if backend.device == "cpu":
        assert not strided.logits.is_contiguous()
    check(strided, run(backend, strided)[0])


@pytest.mark.parametrize("mode", MODES)
def test_no_sequences(backend: Backend, mode: str) -> None:
    case = random_case(0, vocab=5, call=PACKED, mode=mode, n=1)
    for f in fields(case.state):
        if f.name != "stops":
            setattr(case.state, f.name, getattr(case.state, f.name)[:0])
    case.logits = case.logits[:0]
    run(backend, case)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "vocab", "call"), [(3, 2000, SHAPES["quadratic"]), (1, 70000, BlockCall(1, 3, (0,)))])
def test_any_number_of_threads(
    backend: Backend, threads: Callable[[int], None], mode: str, n: int, vocab: int, call: BlockCall
) -> None:
    """Rows go to threads, or long rows are split; the outcome is the same."""
    if backend.device != "cpu" or backend.name in ("torch", "triton"):
        pytest.skip("this backend has no threads of its own")
    case = random_case(7, vocab=vocab, call=call, mode="greedy", n=n)
    case.mode, case.top_p = mode, 0.99
    case.state.draft_log_q = torch.randn(n, call.block_size - 1, vocab).log_softmax(-1)
    alone = run(backend, case)[0]
    for count in (2, 3, 16):
        threads(count)
        shared = run(backend, case)[0]
        for name in ("tokens", "length", "draft_len", "finish_reason"):
            assert torch.equal(getattr(shared, name), getattr(alone, name)), (name, count)
        for i, length in enumerate(alone.draft_len.tolist()):
            assert torch.equal(shared.draft[i, :length], alone.draft[i, :length])
