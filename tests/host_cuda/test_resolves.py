"""The resolves by their CUDA sources, where tests/kernels does not look: rows in slices, any order of blocks and threads."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from packed_ss.layouts.block import BlockCall
from packed_ss.sampling import process
from packed_ss.state import DecodeState

from ..kernels.backends import BACKENDS
from ..kernels.resolve_cases import Case, random_case, run
from . import backend

ON_HOST = next(b for b in BACKENDS if b.name == "cuda-on-host")
TORCH = next(b for b in BACKENDS if b.name == "torch")
MODES = ("greedy", "coupled", "rejection")
CALLS = {"packed": BlockCall(3, 3, (0,)), "branched": BlockCall(3, 3, (0, 2)), "propose": BlockCall(0, 3, (0,)),
         "verify": BlockCall(3, 3, ())}  # fmt: skip
# More than one slice of 2048 ids at least, with and without 16-byte aligned rows, and ends inside a slice and inside a chunk.
VOCAB_SIZES = (4096, 5001, 6148)


def sliced_case(mode: str, call: BlockCall, vocab: int, dtype: torch.dtype = torch.bfloat16, **sampling: float) -> Case:
    """A call whose stored log Q is that of other logits, a few of whose draft tokens are likely."""
    case = random_case(
        vocab,
        vocab=vocab,
        call=call,
        mode="coupled" if mode == "rejection" else mode,
        n=2,
        dtype=dtype,
        drafts=min(2, max(0, call.verifier_rows - 1)),
        **sampling,
    )
    case.mode = mode
    case.state.limit += 9
    if mode == "rejection":
        noise = torch.randn(2, call.block_size - 1, vocab, generator=torch.Generator().manual_seed(vocab))
        case.state.draft_log_q = noise.mul(3).log_softmax(-1)
    return case


def assert_same(got: DecodeState, want: DecodeState) -> None:
    """Equal in everything that a later call looks at."""
    for name in ("length", "cache_len", "draft_len", "finish_reason", "nfe", "advances"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    for i, n in enumerate(want.length.tolist()):
        count = int(want.draft_len[i])
        assert torch.equal(got.tokens[i, :n], want.tokens[i, :n])
        assert torch.equal(got.draft[i, :count], want.draft[i, :count])
        if got.draft_log_q.numel():
            torch.testing.assert_close(got.draft_log_q[i, :count], want.draft_log_q[i, :count], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("vocab", VOCAB_SIZES)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", MODES)
def test_slices_equal_torch(mode: str, call: str, vocab: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        case = sliced_case(mode, CALLS[call], vocab, dtype)
        assert_same(run(ON_HOST, case)[0], run(TORCH, case)[0])


@pytest.mark.parametrize("filters", [{"top_k": 20}, {"top_p": 0.9}, {"top_k": 300, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("call", ["packed", "branched"])
@pytest.mark.parametrize("mode", MODES[1:])
def test_filtered_rows_equal_torch(mode: str, call: str, filters: dict[str, float]) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        case = sliced_case(mode, CALLS[call], 5001, dtype, **filters)
        assert_same(run(ON_HOST, case)[0], run(TORCH, case)[0])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("filters", [{}, {"top_k": 50, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_any_order(mode: str, filters: dict[str, float], seed: int) -> None:
    """No bit depends on which block or thread comes first."""
    for call in CALLS.values():
        case = sliced_case(mode, call, 5001, **filters)
        want = run(ON_HOST, case)[0]
        with backend.kernels().order(seed):
            got = run(ON_HOST, case)[0]
        for f in fields(want):
            assert torch.equal(getattr(got, f.name), getattr(want, f.name)), (f.name, call)


@pytest.mark.parametrize("filters", [{}, {"top_k": 50, "top_p": 0.9}], ids=str)
def test_a_correction_in_any_order(filters: dict[str, float]) -> None:
    """Where p's own draw is often not that of the residual: Q is above p at even ids, and below it at odd ones."""
    corrected = 0
    for seed in range(1, 9):
        case = sliced_case("rejection", CALLS["verify"], 5001, **filters)
        case.logits /= 8
        case.state.seed += seed
        log_p = process(case.logits[:, :2], case.temperature, case.top_k, case.top_p).log_softmax(-1)
        case.state.draft_log_q = log_p + 1 - 3 * (torch.arange(5001) % 2)
        case.state.draft.copy_(case.logits[:, :2, ::2].argmax(-1) * 2)
        want = run(TORCH, case)[0]
        with backend.kernels().order(seed):
            assert_same(run(ON_HOST, case)[0], want)
        corrected += sum(1 for i, n in enumerate(want.length.tolist()) if n - case.state.length[i] < 3)
    assert corrected > 5


@pytest.mark.parametrize("at", [0, 2047, 2048, 4095, 5000])
@pytest.mark.parametrize("mode", MODES)
def test_one_token_in_any_slice(mode: str, at: int) -> None:
    """All slices but one hold nothing but -inf; a row of nothing else fails."""
    case = sliced_case(mode, CALLS["packed"], 5001)
    case.logits.fill_(-torch.inf)
    case.logits[:, :, at] = -3.0
    case.state.draft.fill_(at)
    case.state.draft_log_q[...] = -1.0
    after = run(ON_HOST, case)[0]
    assert_same(after, run(TORCH, case)[0])
    assert (after.length - case.state.length).tolist() == [3, 3]
    assert after.tokens[0, case.state.length[0] : after.length[0]].tolist() == [at] * 3
    case.logits[:, 1, at] = -torch.inf
    after = run(ON_HOST, case)[0]
    assert after.finish_reason.tolist() == [3, 3]
    assert (after.length - case.state.length).tolist() == [1, 1]


@pytest.mark.parametrize("at", [3, 1101, 1670, 5000])
@pytest.mark.parametrize("filters", [{}, {"top_k": 50}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_nan_anywhere_is_seen(mode: str, filters: dict[str, float], at: int) -> None:
    """Also where a thread comes to it late, after larger scores."""
    case = sliced_case(mode, CALLS["packed"], 5001, torch.float32, **filters)
    case.logits[:, :, :64] += 50
    case.logits[:, 0, at] = torch.nan
    after = run(ON_HOST, case)[0]
    assert after.finish_reason.tolist() == [3, 3]
    assert torch.equal(after.length, case.state.length)


@pytest.mark.parametrize("filters", [{}, {"top_k": 50}], ids=str)
def test_a_thread_that_first_sees_nothing_but_minus_infinity(filters: dict[str, float]) -> None:
    case = sliced_case("rejection", CALLS["packed"], 5001, torch.float32, **filters)
    case.logits[:, :, :1100] = -torch.inf
    case.state.draft.clamp_(min=1100)
    assert_same(run(ON_HOST, case)[0], run(TORCH, case)[0])


@pytest.mark.parametrize("ids", [(0, 4000), (2047, 2048), (100, 5000)], ids=str)
def test_ties_across_slices_go_to_the_lowest_id(ids: tuple[int, int]) -> None:
    case = sliced_case("greedy", CALLS["packed"], 5001)
    case.state.draft_len.zero_()
    case.logits[:, :, list(ids)] = 50.0
    after = run(ON_HOST, case)[0]
    assert after.tokens[0, case.state.length[0]].item() == ids[0]
    assert after.draft[:, :1].tolist() == [[ids[0]]] * 2


@pytest.mark.parametrize("filters", [{}, {"top_k": 50}], ids=str)
def test_where_nothing_is_left_of_p_the_correction_comes_from_p(filters: dict[str, float]) -> None:
    """Q above p everywhere, as no distribution is: the draft can be rejected, and the residual is 0."""
    for seed in range(5):
        case = sliced_case("rejection", CALLS["packed"], 5001, **filters)
        case.state.seed += seed
        case.state.draft_log_q.fill_(30.0)
        after = run(ON_HOST, case)[0]
        assert (after.length - case.state.length).tolist() == [1, 1]
        assert_same(after, run(TORCH, case)[0])


@pytest.mark.parametrize("mode", MODES)
def test_a_draft_token_out_of_range_is_not_accepted(mode: str) -> None:
    for token in (-1, 5001, 2**31 - 1, -(2**31)):
        case = sliced_case(mode, CALLS["packed"], 5001)
        case.state.draft.fill_(token)
        after = run(ON_HOST, case)[0]
        assert (after.length - case.state.length).tolist() == [1, 1]
        assert 0 <= after.tokens[0, case.state.length[0]] < 5001


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_draw_does_not_depend_on_the_number_of_slices(mode: str) -> None:
    """One sequence in many slices, and the same one among others in few."""
    many, few = BlockCall(0, 2, (0,)), BlockCall(0, 9, (0,))
    for seed in range(3):
        case = random_case(seed, vocab=9000, call=few, mode=mode, n=30)
        alone = random_case(seed, vocab=9000, call=many, mode=mode, n=1)
        alone.logits[0, 1] = case.logits[7, 1]
        alone.state.seed[0], alone.state.length[0] = case.state.seed[7], case.state.length[7]
        assert run(ON_HOST, alone)[0].draft[0, 0] == run(ON_HOST, case)[0].draft[7, 0]
