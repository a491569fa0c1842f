"""[N | O | M | R] in one call gives the logits of serial duplicate-mask decoding, to 1e-6 in float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import packed_ss
from packed_ss.layouts.ordered import OrderedCall
from packed_ss.ordered_state import OrderedState
from packed_ss.reference.ordered import Accepted, Pair
from packed_ss.request import Request
from packed_ss.rows import Rows
from packed_ss.state import sampling_settings
from tests.decoder.test_ordered import PROMPTS, small
from tests.support.ordered import OrderedDense


class Checked(packed_ss.Decoder):
    """Compares every verifier and proposal row of its first sequence with a full recomputation, and spoils drafts at random."""

    def generate(self, prompt: Any, *arguments: Any, **options: Any) -> packed_ss.GenerateOutput:
        self.dense, self.begin = OrderedDense(self.model, prompt), len(prompt)
        self.P: list[Accepted] = []  # as the cache holds them
        self.random, self.worst, self.compared, self.dropped = random.Random(len(prompt)), 0.0, set(), 0
        return super().generate(prompt, *arguments, **options)

    def step(self, state: OrderedState, request: Request, call: OrderedCall, slots: int) -> None:
        if call.drafts:  # missing drafts and wrong ones, anywhere
            for r in range(call.window):
                if self.random.random() < 0.4:
                    state.draft[0, r] = self.random.choice((-1, -1, self.random.randrange(11)))
        super().step(state, request, call, slots)

    def resolve(
        self, outputs: Tensor, rows: Rows, state: OrderedState, request: Request, call: OrderedCall, following: Any = None
    ) -> None:
        if call is not self.layout.first:
            self._compare(outputs[0], state, call)
        cached = int(state.cache_len[0])
        super().resolve(outputs, rows, state, request, call, following)
        if call is not self.layout.first:
            self._advance(state, cached, call)

    def _pairs(self, state: OrderedState, positions: list[int]) -> list[Pair]:
        return [(j - self.begin + 1, int(state.tokens[0, j])) for j in positions]

    def _compare(self, logits: Tensor, state: OrderedState, call: OrderedCall) -> None:
        waiting = [j for j in state.waiting[0].tolist() if j >= 0]
        for j, token in self._pairs(state, waiting):
            self.P.append(Accepted(j, token, tuple(self.P)))
        pi = [j - self.begin + 1 for j in state.order[0].tolist() if j >= 0]
        D = {j: token for j, token in zip(pi, state.draft[0].tolist(), strict=False) if token >= 0}
        K = [[(j, D[j]) for j in pi[:r] if j in D] for r in range(len(pi) + 1)]
        expected = [self.dense(self.P, K[r], [pi[r]])[0] for r in range(len(pi))] if call.verifies else []
        rows = list(range(len(pi))) if call.verifies else []
        for k, cut in enumerate(call.cuts):
            expected += self.dense(self.P, K[cut], pi)
            rows += [(call.verifies + k) * call.window + r for r in range(len(pi))]
        self.group = K[len(pi)] if call.drafts else []
        got, want = logits[rows].clone(), torch.tensor(expected, dtype=torch.float64)
        got[:, list(self.model.config.excluded_token_ids)] = -torch.inf
        self.worst = max(self.worst, float((got - want).nan_to_num(0.0).abs().max()))
        self.compared.add((len(waiting), len(pi), len(D) < len(pi)))

    def _advance(self, state: OrderedState, cached: int, call: OrderedCall) -> None:
        """P in the order of the cache, what the call has added included, and without what it has dropped."""
        positions = [j - self.begin + 1 for j in state.cached[0, self.begin : int(state.cache_len[0])].tolist()]
        last = max((r for r, (j, _) in enumerate(self.group) if j in positions), default=-1)
        for j, token in self.group[: last + 1]:  # accepted, and seen by those after it even if a stop has dropped it since
            self.P.append(Accepted(j, token, tuple(self.P)))
        kept = [a for a in self.P if a.position <= int(state.end[0]) - self.begin]
        self.dropped += len(self.P) - len(kept)
        self.P = kept
        assert [a.position for a in self.P] == positions


SCHEDULES = ("autoregressive", "linear", "packed", "quadratic", packed_ss.Branched((0, 2)), "native")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_one_call_gives_the_logits_of_serial_decoding(schedule: Any) -> None:
    compared: set[tuple[int, int, bool]] = set()
    dropped = 0
    for seed in range(12):
        r = random.Random(seed)

        def shuffled(window: tuple[int, ...], r: random.Random = r) -> list[int]:
            return r.sample(window, len(window))

        order = "left_to_right" if schedule == "native" else (shuffled, "confidence", "left_to_right")[seed % 3]
        decoder = Checked(small(seed % 4), schedule, max_length=40, window=r.choice((3, 4, 7)), order=order)
        decoder.generate(PROMPTS[seed % 4], 14, eos_token_id=[], stop_sequences=[])
        # stops that drop some of what is cached
        decoder = Checked(small(seed % 4, 1.0), schedule, max_length=40, window=9, order=order)
        decoder.generate(PROMPTS[seed % 4], 14, eos_token_id=[], stop_sequences=[[token] for token in r.sample(range(11), 3)])
        assert decoder.worst < 1e-6
        compared |= decoder.compared
        dropped += decoder.dropped
    if schedule in ("packed", "quadratic"):
        assert dropped > 2
        assert {waiting for waiting, _, _ in compared} == {0, 1} and {missing for _, _, missing in compared} == {False, True}


def test_the_packed_mask_is_the_layouts() -> None:
    """pack_ordered's bits, slot by slot, are `OrderedCall.visibility` at the rows' tail slots."""
    seen = 0
    for seed in range(60):
        r = random.Random(seed)
        W, P = r.choice((1, 3, 8, 16)), r.choice((1, 3))
        u, p = r.randint(0, W), r.randint(0, P)
        call = OrderedCall(
            r.choice((0, P)),
            r.randint(max(u, 1), W),
            r.random() < 0.7,
            r.random() < 0.7,
            tuple(sorted({0, *r.choices(range(max(u, 1)), k=r.randint(0, 4))})) if r.random() < 0.8 else (),
        )
        p = min(p, call.waiting_rows)
        if not call.rows:
            continue
        state = OrderedState.start(
            [[0] * 20], max_new_tokens=W, window=W, waiting=P, capacity=100, stops=torch.zeros(1, 0, 1, dtype=torch.int32),
            sampling=sampling_settings([0], [0.0], [0], [1.0]), device=torch.device("cpu"),
        )  # fmt: skip
        state.order.fill_(-1)
        state.order[0, :u] = torch.tensor(r.sample(range(20, 20 + W), u))
        draft = torch.where(torch.rand(1, W, generator=torch.Generator().manual_seed(seed)) < 0.6, 5, -1).int()
        state.draft.copy_(draft)
        state.waiting[0, :p] = torch.arange(15, 15 + p)
        state.cache_len.fill_(9)
        words = -(-call.rows // 32)
        rows = Rows.empty(1, call.rows, state.cache_len, torch.zeros(1, call.rows, words, dtype=torch.int32))
        shape = (call.waiting_rows, call.window, call.drafts, call.verifies, call.cuts)
        torch.ops.packed_ss.pack_ordered(state.operands(), 77, 999, *shape, rows.operands(5))
        mask, slots = rows.tail_mask, rows.slots
        want = call.visibility(p, (draft[0, :u] >= 0).tolist())
        bits = np.unpackbits(mask[0].numpy().view(np.uint8), axis=1, bitorder="little")[:, : 32 * words].astype(bool)
        tail = (slots[0] - 9).tolist()
        there = [row for row in range(call.rows) if tail[row] != 990]
        assert sorted(tail[row] for row in there) == [tail[row] for row in there]
        for row in range(call.rows):
            visible = {tail[s] for s in range(call.rows) if want[row, s]}
            assert set(np.flatnonzero(bits[row])) == visible, (seed, row)
            assert 990 not in visible
        seen += want.sum()
    assert seen > 1000
