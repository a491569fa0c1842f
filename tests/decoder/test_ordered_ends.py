"""Where an output in any order ends: markers of several tokens, gaps before them, limits; and batches in fixed shapes.

The logits are scripted: the verifier says the token of a position's text, the drafter the same but at some positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import packed_ss
from packed_ss.layouts.ordered import OrderedCall
from packed_ss.ordered_state import OrderedState
from packed_ss.request import Request
from packed_ss.rows import Rows
from tests.decoder.test_ordered import outward, small

PROMPT = [1, 5, 2]
Order = str | Callable[[tuple[int, ...]], Sequence[int]]


class Scripted(packed_ss.Decoder):
    """``text[j - 1]`` is the verifier's token at output position j; the drafter says another one at ``misled``.

    A position in ``broken`` has NaN in the verifier's rows.
    """

    def script(self, text: Sequence[int], misled: Sequence[int] = (), broken: Sequence[int] = ()) -> Scripted:
        self.text, self.misled, self.broken = list(text), set(misled), set(broken)
        return self

    def forward(self, rows: Rows, slots: int, call: OrderedCall, request: Request) -> Tensor:
        first = rows.ids.shape[1] - call.head_rows
        logits = torch.zeros(1, call.head_rows, self.model.config.vocab_size, dtype=torch.float64)
        for r, position in enumerate(rows.positions[0, first:].tolist()):
            j = position - len(PROMPT) + 1
            if not 1 <= j <= len(self.text):
                continue
            verifies = call.verifies and r < call.window
            token = self.text[j - 1] if verifies or j not in self.misled else (self.text[j - 1] + 1) % 3
            logits[0, r, token] = 9 - 0.1 * (j % 4)
            if verifies and j in self.broken:
                logits[0, r] = torch.nan
        return logits


def decode(
    schedule: Any,
    W: int,
    order: Order,
    text: Sequence[int],
    L: int,
    misled: Sequence[int] = (),
    broken: Sequence[int] = (),
    **options: Any,
) -> tuple[list[int], str, list[int]]:
    decoder = Scripted(small(0), schedule, max_length=48, window=W, order=order).script(text, misled, broken)
    out = decoder.generate(PROMPT, L, **{"eos_token_id": [], **options})
    return out.tokens[0].tolist(), out.finish_reason[0], out.advances[0]


def backwards(window: tuple[int, ...]) -> tuple[int, ...]:
    return window[::-1]


def rotated(window: tuple[int, ...]) -> tuple[int, ...]:
    """The leftmost position last."""
    return (*window[1:], window[0])


TEXT = [0, 1, 2, 0, 7, 8, 1, 2, 9, 10, 0, 1, 2, 0, 1, 2, 0, 1]
SCHEDULES = ("autoregressive", "linear", "packed", "quadratic", packed_ss.Branched((0, 2)))


@pytest.mark.parametrize("order", ["left_to_right", "confidence", backwards, rotated], ids=lambda o: getattr(o, "__name__", o))
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_every_end(schedule: Any, order: Order) -> None:
    for W in (1, 3, 4, 12):
        for misled in ((), (6,), (4, 5), range(1, 19, 2)):
            if isinstance(schedule, packed_ss.Branched) and W < 3:
                continue
            # (L, stops, tokens of the text, why): of two markers the one that ends earliest, whichever is completed first;
            # a marker at the limit and one behind it; no marker
            for L, stops, length, why in (
                (18, [[9, 10], [7, 8]], 6, "stop"),
                (18, [[8, 1, 2], [7]], 5, "stop"),
                (6, [[7, 8]], 6, "stop"),
                (5, [[7, 8]], 5, "length"),
                (18, [], 18, "length"),
            ):
                tokens, reason, advances = decode(schedule, W, order, TEXT, L, misled, stop_sequences=stops)
                assert (tokens, reason) == (TEXT[:length], why)
                assert sum(advances) >= length and all(a >= 0 for a in advances)


def test_a_marker_split_over_two_calls_and_one_completed_by_the_correction() -> None:
    tokens, reason, advances = decode("packed", 2, "left_to_right", TEXT, 18, misled=range(1, 19), stop_sequences=[[7, 8]])
    assert (tokens, reason) == (TEXT[:6], "stop")
    assert advances == [0, 1, 1, 1, 1, 1, 1]  # no draft was right, so that the marker's halves come from different calls
    # the draft of 8 is wrong, and the verifier's own token completes the marker
    tokens, reason, advances = decode("packed", 6, "left_to_right", TEXT, 18, misled=[6], stop_sequences=[[7, 8]])
    assert (tokens, reason) == (TEXT[:6], "stop") and advances[-1] == 5  # d_2 ... d_5, then the correction


def test_a_marker_after_an_open_gap_leaves_the_gap_to_be_filled() -> None:
    """Right to left the marker at 5 and 6 stands first; what lies beyond it is dropped, and what is before it filled in."""
    seen: list[tuple[int, int, int]] = []

    class Watching(Scripted):
        def resolve(self, outputs: Any, rows: Rows, state: OrderedState, *rest: Any) -> None:
            super().resolve(outputs, rows, state, *rest)
            rightmost = state.cached[0, : int(state.cache_len[0])].max() + 1
            seen.append(tuple(int(t) - len(PROMPT) for t in (state.length[0], state.end[0], rightmost)))

    decoder = Watching(small(0), "packed", max_length=48, window=12, order=backwards).script(TEXT, misled=[9, 5, 2])
    out = decoder.generate(PROMPT, 18, eos_token_id=[], stop_sequences=[[7, 8]])
    assert out.tokens[0].tolist() == TEXT[:6] and out.finish_reason == ["stop"]
    shortened = [entry for entry in seen if entry[1] == 6]
    assert shortened[0][0] < 4  # open positions before the marker
    assert all(rightmost <= 6 for *_, rightmost in shortened) and max(rightmost for *_, rightmost in seen) == 12


@pytest.mark.parametrize("order", ["left_to_right", backwards], ids=["left_to_right", "backwards"])
def test_a_failed_row_ends_the_text_before_the_first_open_position(order: Order) -> None:
    for schedule in SCHEDULES:
        tokens, reason, _ = decode(schedule, 4, order, TEXT, 18, broken=[7])
        assert reason == "error"
        assert tokens == TEXT[: len(tokens)] and len(tokens) <= 6
        if order == "left_to_right":
            assert len(tokens) == 6
        # an end before the failed position comes first
        tokens, reason, _ = decode(schedule, 4, "left_to_right", TEXT, 18, broken=[7], stop_sequences=[[7, 8]])
        assert (tokens, reason) == (TEXT[:6], "stop")


def test_native_ends_as_the_others_do() -> None:
    for W in (1, 3, 6, 12):
        decoder = Scripted(small(0), "native", max_length=48, window=W).script(TEXT)
        out = decoder.generate(PROMPT, 18, eos_token_id=[], stop_sequences=[[7, 8], [9, 10]])
        assert (out.tokens[0].tolist(), out.finish_reason[0]) == (TEXT[:6], "stop")
        out = decoder.generate(PROMPT, 5, eos_token_id=[], stop_sequences=[[7, 8]])
        assert (out.tokens[0].tolist(), out.finish_reason[0]) == (TEXT[:5], "length")


class FullShape(packed_ss.Decoder):
    """Every row in every call and the whole cache in view, as on a GPU."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.layout.live = lambda progress, request, call: call

    def step(self, state: OrderedState, request: Request, call: OrderedCall, slots: int) -> None:
        super().step(state, request, call, self.cache.capacity)


@pytest.mark.parametrize("schedule", [*SCHEDULES, "native"], ids=str)
def test_batches_and_fixed_shapes_change_nothing(schedule: Any) -> None:
    prompts = [[1, 5, 2, 8], [4], [0, 7, 2, 9, 9, 1], [10, 2]]
    for seed, order in enumerate(("left_to_right",) if schedule == "native" else ("left_to_right", "confidence", outward)):
        model, settings = small(seed), {"window": 4, "order": order, "max_length": 40}
        options = {"eos_token_id": [3 + seed], "stop_sequences": [[2, 7], [5, 5, 0]]}
        alone = [packed_ss.Decoder(model, schedule, **settings).generate(p, 13, **options) for p in prompts]
        for kind in (packed_ss.Decoder, FullShape):
            decoder = kind(model, schedule, batch_size=5, **settings)
            decoder.cache.keys.fill_(torch.nan)  # what no row sees cannot reach a text
            decoder.cache.values.fill_(torch.nan)
            out = decoder.generate(prompts, 13, **options)
            for i, one in enumerate(alone):
                assert out.tokens[i].tolist() == one.tokens[0].tolist()
                assert (out.finish_reason[i], out.advances[i]) == (one.finish_reason[0], one.advances[0])
        if order == "left_to_right" and schedule != "native":
            for mode in ("coupled", "rejection", "match"):
                sampling = options | {"temperature": 0.9, "verification": mode, "top_k": 7}
                together = FullShape(model, schedule, batch_size=4, **settings).generate(prompts, 13, seed=5, **sampling)
                for i, p in enumerate(prompts):
                    one = packed_ss.Decoder(model, schedule, **settings).generate(p, 13, seed=5 + i, **sampling)
                    assert together.tokens[i].tolist() == one.tokens[0].tolist()
                    assert together.advances[i] == one.advances[0]
