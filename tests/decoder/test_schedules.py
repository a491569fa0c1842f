"""What the schedules are: rows and visibility of a call, drafts retained, the reference's steps, and Theorem 3.2."""

from __future__ import annotations

import math
import random
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_ss import Branched, GenerateOutput
from packed_ss.layouts.block import BlockCall, tables
from packed_ss.reference import make_rule
from packed_ss.request import Request
from packed_ss.rows import Rows, pack_bits
from packed_ss.schedules import block_schedule
from packed_ss.state import BlockState, sampling_settings
from tests.decoder.models import Dense, FullShape, Scripted, new_decoder, reference, schedules, small_model
from tests.reference.toy_models import TableModel, ThresholdModel

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"temperature": 0.8, "top_k": 4, "verification": "coupled"},
    "rejection": {"temperature": 1.2, "top_p": 0.95, "verification": "rejection"},
}


@pytest.mark.parametrize("b", [2, 4, 32])
def test_rows_per_call_are_those_of_the_design(b: int) -> None:
    def rows(schedule: str | Branched) -> list[int]:
        return [call.rows for call in block_schedule(schedule, b).cycle]

    assert rows("autoregressive") == [1]
    assert rows("linear") == [b, b]
    assert rows("packed") == [2 * b] == rows(Branched((0,)))
    assert rows("quadratic") == [b * (b + 1)] == rows(Branched(range(b)))
    for cuts in ((0, 1), (b - 1, 0)):
        assert rows(Branched(cuts)) == [3 * b]
    assert block_schedule(Branched((b - 1, 0)), b).cycle[0].cuts == (0, b - 1)


def test_the_decoder_sends_those_rows_and_fewer_where_they_are_dead() -> None:
    b, sent = 4, []

    class Spy(FullShape):
        def forward(self, rows: Rows, slots: int, call: BlockCall, request: Request) -> torch.Tensor:
            sent.append((rows.ids.shape[1], call.head_rows))
            return super().forward(rows, slots, call, request)

    for schedule, counts in (
        ("autoregressive", [1]),
        ("linear", [b, b]),
        ("packed", [2 * b]),
        ("quadratic", [b * (b + 1)]),
        (Branched((0, 2)), [3 * b]),
    ):
        for two_call_start in (False, True):
            sent.clear()
            decoder = Spy(small_model(1), schedule, b, max_length=40, two_call_start=two_call_start)
            out = decoder.generate([0, 2, 4], 9, eos_token_id=[])
            assert out.nfe == [len(sent)]
            masks = 0 if schedule == "autoregressive" or two_call_start else b
            assert sent[0] == (3 + masks, 1 + masks)
            if schedule != "autoregressive" and two_call_start:
                assert sent.pop(1) == (b, b) and out.advances[0][:2] == [1, 0]
            assert sent[1:] == [(rows, rows) for rows in (counts * 9)[: len(sent) - 1]]


def test_visibility_of_a_small_call() -> None:
    call = BlockCall(3, 2, (0, 2))
    expected = ["1......", "11.....", "111....", "...11..", "...11..", "11...11", "11...11"]
    assert ["".join(".1"[seen] for seen in row) for row in call.visibility().astype(int)] == expected
    words = tables(3, 2, (0, 2), torch.device("cpu")).tail_mask
    assert words.dtype == torch.int32 and words.tolist() == [[[1], [3], [7], [24], [24], [99], [99]]]
    propose = BlockCall(0, 3, (0,))
    assert propose.visibility().all() and propose.rows == 3


def test_bits_are_packed_by_words_of_32() -> None:
    for size in (1, 31, 32, 33, 64, 65):
        seen = np.random.default_rng(size).random((3, size)) < 0.5
        words = pack_bits(seen)
        assert words.dtype == np.int32 and words.shape == (3, -(-size // 32))
        assert all(bool(words[r, s // 32] >> (s % 32) & 1) == seen[r, s] for r in range(3) for s in range(size))
        assert not any(words[r, s // 32] >> (s % 32) & 1 for r in range(3) for s in range(size, 32 * words.shape[1]))


def test_pack_writes_tokens_positions_and_slots_of_every_row() -> None:
    """Two sequences at different lengths, one draft of two tokens and one of none; MASK 9, B = 3, cuts 0 and 2."""

    def ints(*values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    cache_len = ints(2, 0)
    state = BlockState.start(
        [[5, 6, 7], [8]], max_new_tokens=9, block_size=3, capacity=9, stops=torch.zeros(2, 0, 1, dtype=torch.int32),
        sampling=sampling_settings([0, 0], [0.0, 0.0], [0, 0], [1.0, 1.0]), device=torch.device("cpu"),
    )  # fmt: skip
    state.cache_len.copy_(cache_len)
    state.draft.copy_(ints([1, 2], [-1, -1]))
    rows = Rows.empty(2, 9, cache_len, torch.zeros(1, 9, 1, dtype=torch.int32))
    torch.ops.packed_ss.pack_block(state.operands(), 9, 3, 3, [0, 2], rows.operands(4))
    assert rows.predicts.tolist() == [[3, 4, 5, -1, -1, 4, -1, -1, 6], [1, -1, -1, -1, -1, 2, -1, -1, -1]]
    assert rows.ids.tolist() == [[7, 1, 2, 7, 9, 9, 2, 9, 9], [8, 9, 9, 8, 9, 9, 9, 9, 9]]
    assert rows.positions.tolist() == [[2, 3, 4, 2, 3, 4, 4, 5, 6], [0, 1, 2, 0, 1, 2, 2, 3, 4]]
    assert rows.slots.tolist() == [list(range(2, 11)), list(range(9))]


@pytest.mark.parametrize("two_call_start", [False, True], ids=["one call", "two calls"])
def test_the_retained_draft_has_the_papers_length(two_call_start: bool) -> None:
    W, matches = 5, set()
    for schedule in ("packed", "quadratic", Branched((0, 2, 3)), Branched((0, 4)), "linear"):
        for seed in range(12):
            model = TableModel(seed, 4, 0.85)
            decoder = Scripted(model.verifier, model.drafter, 4, schedule, W + 1, two_call_start=two_call_start)
            out = decoder.generate([1, 2], 30, eos_token_id=[])
            assert [after for _, _, after in decoder.calls[: 1 + two_call_start]] == [0, W][1 - two_call_start :]
            for (call, before, after), a in list(zip(decoder.calls, out.advances[0], strict=True))[1 + two_call_start : -1]:
                h = a - 1
                if schedule == "linear":
                    assert (before, after) == ((0, W) if call.cuts else (W, 0))
                    continue
                matches.add(h)
                cut = (
                    {"packed": 0, "quadratic": h}[schedule]
                    if isinstance(schedule, str)
                    else max(c for c in schedule.cuts if c <= h)
                )
                assert 0 <= h <= before
                assert after == max(0, W - 1 - (h - cut))
                assert after == max(0, W - a) if schedule == "packed" else schedule != "quadratic" or after == W - 1
    assert matches == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("mode", SAMPLING)
@pytest.mark.parametrize("two_call_start", [False, True], ids=["one call", "two calls"])
def test_every_call_does_what_the_reference_does(mode: str, two_call_start: bool) -> None:
    """The same tokens, advances and number of calls, on a real model seen by the reference through dense passes."""
    stops = {"stop_ids": [1], "stop_sequences": [[0, 2], [4, 4, 2]]}
    accepted = 0
    for block_size in (2, 4, 6):
        dense = Dense(small_model(block_size), block_size)
        for name, schedule in schedules(block_size).items():
            decoder = new_decoder(dense.model, schedule, block_size, two_call_start=two_call_start)
            for prompt, seed, ends in (([0, 2, 4], 11, stops), ([2], 5, {}), ([4, 3, 1, 0, 0, 2], 8, {})):
                rule = make_rule(mode, seed, *_settings(mode))
                want = reference(dense, schedule, prompt, 14, rule, two_call_start=two_call_start, **ends)
                out = decoder.generate(
                    prompt,
                    14,
                    seed=seed,
                    eos_token_id=ends.get("stop_ids", []),
                    stop_sequences=ends.get("stop_sequences", ()),
                    **SAMPLING[mode],
                )
                assert out.tokens[0].tolist() == want.tokens, (name, prompt)
                assert (out.advances, out.nfe, out.finish_reason) == ([want.advances], [want.nfe], [want.finish_reason])
                accepted += sum(a > 1 for a in want.advances)
    assert accepted > 20


def _settings(mode: str) -> tuple[float, int, float]:
    given = SAMPLING[mode]
    return given.get("temperature", 0.0), given.get("top_k", 0), given.get("top_p", 1.0)


@pytest.mark.parametrize("mode", SAMPLING)
def test_every_call_does_what_the_reference_does_on_agreeing_drafters(mode: str) -> None:
    """Long accepted runs, ties (few levels) and limits of any length; rows without a use are NaN."""
    runs = 0
    for seed in range(12):
        rng = random.Random(seed)
        block_size, L = rng.randint(2, 7), rng.randint(1, 24)
        model = TableModel(seed, 5, 0.8, levels=rng.choice([3, 4096]))
        dense = _TwoModes(model, block_size)
        two_call_start = rng.random() < 0.5
        prompt = [rng.randrange(5) for _ in range(rng.randint(1, 4))]
        stops = {"stop_sequences": [[rng.randrange(5) for _ in range(rng.randint(1, 3))]]}
        for name, schedule in schedules(block_size).items():
            rule = make_rule(mode, seed, *_settings(mode))
            want = reference(dense, schedule, prompt, L, rule, two_call_start=two_call_start, **stops)
            decoder = Scripted(model.verifier, model.drafter, 5, schedule, block_size, two_call_start=two_call_start)
            out = decoder.generate(prompt, L, seed=seed, eos_token_id=[], **stops, **SAMPLING[mode])
            assert out.tokens[0].tolist() == want.tokens, (seed, name)
            assert (out.advances, out.finish_reason) == ([want.advances], [want.finish_reason]), (seed, name)
            runs += sum(a > 2 for a in want.advances)
    assert runs > 15


class _TwoModes:
    """A toy model under the names of `Dense`."""

    def __init__(self, model: TableModel, block_size: int) -> None:
        self.verifier, self.drafter, self.block_size = model.verifier, model.drafter, block_size


def calls_to_reach(out: GenerateOutput, L: int) -> int:
    """NFE(L): calls made when L tokens are there.  Truncation changes no call before."""
    return next(t for t, length in enumerate(accumulate(out.advances[0]), start=1) if length >= L)


thresholds = st.lists(st.one_of(st.integers(0, 24), st.integers(0, 3)), min_size=24, max_size=24)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(thresholds, st.integers(1, 6), st.integers(1, 24), st.sets(st.integers(0, 3), max_size=1), st.booleans())
def test_packed_needs_no_more_calls_than_linear(c_star: list[int], W: int, L: int, eos: set[int], two_call_start: bool) -> None:
    """Theorem 3.2: drafts of position k are right iff c*_k output tokens are in their context."""
    model = ThresholdModel(c_star, 2)

    def run(schedule: str, L: int, eos: set[int]) -> GenerateOutput:
        decoder = Scripted(model.verifier, model.drafter, 5, schedule, W + 1, two_call_start=two_call_start)
        return decoder.generate([3, 1], L, eos_token_id=list(eos))

    ours, theirs = run("packed", 24, set()), run("linear", 24, set())
    assert ours.tokens[0].tolist() == theirs.tokens[0].tolist() == [model.text(k) for k in range(1, 25)]
    for length in range(1, 25):
        assert calls_to_reach(ours, length) <= calls_to_reach(theirs, length)
    lengths = list(accumulate(ours.advances[0]))
    for t, length in enumerate(accumulate(theirs.advances[0]), start=1):
        assert lengths[min(t, len(lengths)) - 1] >= length
    assert run("packed", L, set()).nfe[0] == calls_to_reach(ours, L)
    ours, theirs = run("packed", L, eos), run("linear", L, eos)
    assert ours.tokens[0].tolist() == theirs.tokens[0].tolist() and ours.finish_reason == theirs.finish_reason
    assert ours.nfe[0] <= theirs.nfe[0]


@pytest.mark.parametrize("mode", SAMPLING)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_without_a_finite_maximum_ends_the_text_before_it(mode: str, value: float) -> None:
    for broken_at in (0, 1, 2, 5):
        for seed, block_size in ((0, 5), (1, 3))[: 1 + broken_at % 2]:
            model = TableModel(seed, 5, 0.9)

            def verifier(P: Any, D: Any, model: TableModel = model, after: int = broken_at) -> list[Any]:
                rows = [list(row) for row in model.verifier(P, D)]
                for i, row in enumerate(rows):
                    if len(P) + i == 1 + after:
                        row[:] = [value] * 5 if value < 0 else [row[0], value, *row[2:]]
                return rows

            for schedule in schedules(block_size).values():
                out = Scripted(verifier, model.drafter, 5, schedule, block_size).generate(
                    [1], 16, seed=seed, eos_token_id=[], **SAMPLING[mode]
                )
                clean = Scripted(model.verifier, model.drafter, 5, schedule, block_size).generate(
                    [1], 16, seed=seed, eos_token_id=[], **SAMPLING[mode]
                )
                assert out.finish_reason == ["error"]
                assert out.tokens[0].tolist() == clean.tokens[0][:broken_at].tolist()
                assert sum(out.advances[0]) == broken_at and len(out.advances[0]) == out.nfe[0]
                limited = Scripted(verifier, model.drafter, 5, schedule, block_size).generate(
                    [1], max(broken_at, 1), seed=seed, eos_token_id=[], **SAMPLING[mode]
                )
                assert limited.finish_reason == ["length" if broken_at else "error"]


@pytest.mark.parametrize("mode", SAMPLING)
def test_a_failed_proposal_row_changes_no_token(mode: str) -> None:
    """Coupled and greedy text stays the autoregressive one; rejection drafts nothing from that row on."""
    for seed in range(3):
        model = TableModel(seed, 5, 0.9)

        def drafter(P: Any, m: int, model: TableModel = model) -> list[Any]:
            return [[math.nan] * 5 if (len(P) + j) % 3 == 0 else row for j, row in enumerate(model.drafter(P, m))]

        for schedule in schedules(6).values():
            decoder = Scripted(model.verifier, drafter, 5, schedule, 6)
            out = decoder.generate([1], 16, seed=seed, eos_token_id=[], **SAMPLING[mode])
            rule = make_rule(mode, seed, *_settings(mode))
            dense = _TwoModes(model, 6)
            dense.drafter = drafter
            want = reference(dense, schedule if mode == "rejection" else "autoregressive", [1], 16, rule)
            assert out.tokens[0].tolist() == want.tokens and out.finish_reason == ["length"]
            if mode == "rejection":
                assert out.advances == [want.advances]
                assert all(after < 3 for _, _, after in decoder.calls)
