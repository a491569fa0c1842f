"""The law of sampled text: exact, by chi-square against enumeration in float64, and seen to fail where sampling is broken.

The models are real ones with 3 to 11 tokens of vocabulary.  A false alarm has probability 1e-9 per case, and seeds are
fixed.  Verifier and drafter differ: about half of the drafts are accepted.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss import Branched, Decoder, GenerateOutput
from packed_ss.layouts.block import BlockCall
from packed_ss.models.transformer import Transformer
from packed_ss.ops import row_operators
from packed_ss.reference import process as processed
from packed_ss.request import Request
from packed_ss.rows import Rows
from packed_ss.sampling import Stream, gumbel, process, residual
from packed_ss.state import BlockState
from tests.decoder.models import Dense, small_model
from tests.support.enumeration import chi_square_ok, exact_law

PROMPT, LENGTH = [0, 2], 3
SAMPLES, BATCH = 100_000, 4_000


def model(vocab_size: int, dtype: torch.dtype = torch.float32) -> Transformer:
    """The smallest transformer that tells rows apart, of a seed whose drafter and verifier differ enough."""
    sizes = {"num_layers": 1, "hidden_size": 8, "intermediate_size": 8, "head_dim": 4}
    return small_model({4: 76, 5: 12, 11: 1}[vocab_size], vocab_size, 1.2, dtype, **sizes)


@dataclass(frozen=True)
class Settings:
    """How to sample: what `generate` is given, and what `exact_law` is."""

    name: str
    vocab_size: int
    options: dict[str, Any]
    stops: list[int] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)

    def generate(self, decoder: Decoder, seed: int, new: int = LENGTH, n: int = BATCH, **more: Any) -> GenerateOutput:
        return decoder.generate(
            [PROMPT] * n, new, seed=seed, eos_token_id=self.stops, stop_sequences=self.sequences, **self.options, **more
        )

    def law(self) -> dict[tuple[int, ...], float]:
        dense = Dense(model(self.vocab_size, torch.float64))
        return exact_law(dense.verifier, PROMPT, LENGTH, self.stops, **self.options, stop_sequences=self.sequences)


SETTINGS = [
    Settings("temperature", 4, {"temperature": 0.75}),
    Settings("top-k", 5, {"temperature": 1.3, "top_k": 3}),
    Settings("top-p, stops", 11, {"temperature": 1.6, "top_k": 9, "top_p": 0.85}, [1], [[0, 2], [4, 4]]),
]


def schedule_at(name: str, b: int) -> str | Branched:
    return Branched((0, b - 1)) if name == "branched" else name


#: A schedule, the block sizes that share its samples, and how it samples.
CASES = [
    ("autoregressive", (2,), SETTINGS[2]),
    *(("packed", (b,), SETTINGS[b % 3]) for b in (2, 3, 4)),
    ("linear", (2, 3, 4), SETTINGS[2]),
    ("quadratic", (2, 3, 4), SETTINGS[1]),
    ("branched", (2, 3, 4), SETTINGS[2]),
]


def texts(out: GenerateOutput) -> list[tuple[int, ...]]:
    return [tuple(tokens[:LENGTH].tolist()) for tokens in out.tokens]


def acceptance(out: GenerateOutput) -> float:
    """The fraction of sequences whose second call, the first with a draft, appended more than one token."""
    second = [advances[1] for advances in out.advances if len(advances) > 1]
    return sum(a > 1 for a in second) / len(second)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{schedule}-{bs}-{s.name}" for schedule, bs, s in CASES])
def test_rejection_has_the_law_of_autoregressive_sampling(number: int) -> None:
    schedule, block_sizes, settings = CASES[number]
    law, seed = settings.law(), 10**7 * (number + 1)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)
    counts: Counter[tuple[int, ...]] = Counter()
    for b in block_sizes:
        decoder = Decoder(model(settings.vocab_size), schedule_at(schedule, b), b, max_length=8, batch_size=BATCH)
        share: Counter[tuple[int, ...]] = Counter()
        while share.total() < SAMPLES / len(block_sizes):
            out = settings.generate(decoder, seed, LENGTH + (b == 4))  # at B = 4 the run goes on behind what is counted
            share.update(texts(out))
            seed += BATCH
        assert chi_square_ok(share, law), b
        assert schedule == "autoregressive" or 0.25 < acceptance(out) < 0.9
        counts += share
    assert counts.total() >= SAMPLES and chi_square_ok(counts, law)


def test_coupled_has_the_law_of_autoregressive_sampling_and_the_same_texts() -> None:
    """The law over seeds in plain decoding; then, for every schedule and B, the very texts of some of those seeds."""
    settings, first = SETTINGS[2], 2**40
    decoder = Decoder(model(settings.vocab_size), "autoregressive", 2, max_length=8, batch_size=BATCH)
    of_seed: list[tuple[int, ...]] = []
    while len(of_seed) < SAMPLES:
        of_seed += texts(settings.generate(decoder, first + len(of_seed), verification="coupled"))
    assert chi_square_ok(Counter(of_seed), settings.law())
    begin, n, rates = 0, 1_000, []
    for name in ("linear", "packed", "quadratic", "branched"):
        for b in (2, 3, 4):
            decoder = Decoder(model(settings.vocab_size), schedule_at(name, b), b, max_length=8, batch_size=n)
            out = settings.generate(decoder, first + begin, n=n, verification="coupled")
            assert texts(out) == of_seed[begin : begin + n]
            begin += n
            rates.append(acceptance(out))
    assert min(rates) > 0.15 and max(rates) < 0.9


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=lambda s: s.name)
def test_drafts_are_accepted_as_often_as_p_and_q_overlap(settings: Settings) -> None:
    """P(h >= 1) and P(h >= 2) of a draft of two: the sum over tokens of min(p, Q), Q the processed proposal of the prompt."""
    block_size, n, batches = 3, 5_000, 2
    dense = Dense(model(settings.vocab_size, torch.float64), block_size)
    q = [processed(row, **settings.options) for row in dense.drafter(PROMPT, block_size)]

    def p(*text: int) -> list[float]:
        return processed(dense.verifier([*PROMPT, *text], [])[0], **settings.options)

    tokens = range(settings.vocab_size)
    one = sum(p()[x] * min(p(x)[d], q[1][d]) for x in tokens for d in tokens)
    two = sum(p()[x] * min(p(x)[d], q[1][d]) * min(p(x, d)[e], q[2][e]) for x in tokens for d in tokens for e in tokens)
    assert 0.3 < one < 0.9 and two < 0.8 * one
    for schedule in ("linear", "packed", "quadratic"):
        decoder = Decoder(model(settings.vocab_size), schedule, block_size, max_length=8, batch_size=n)
        h: list[int] = []
        for batch in range(batches):  # a limit of 4: the second call has room for both drafts and the bonus
            out = settings.generate(decoder, 3 * 10**9 + batch * n, 4, n)
            h += [advances[1] - 1 for advances in out.advances]
        for least, expected in ((1, one), (2, two)):
            rate = sum(x >= least for x in h) / len(h)
            assert abs(rate - expected) < 6.2 * math.sqrt(expected * (1 - expected) / len(h)), (schedule, least)


class Kernel(Decoder):
    """A decoder with a place before and after what resolves its calls, so that what that reads and leaves can be broken."""

    def resolve(
        self,
        outputs: Tensor,
        rows: Rows,
        state: BlockState,
        request: Request,
        call: BlockCall,
        following: BlockCall | None = None,
    ) -> None:
        self.before(outputs, state, request, call)
        super().resolve(outputs, rows, state, request, call, following)
        self.after(outputs, state, request, call)

    def before(self, logits: Tensor, state: BlockState, request: Request, call: BlockCall) -> None:
        """Nothing."""

    def after(self, logits: Tensor, state: BlockState, request: Request, call: BlockCall) -> None:
        """Nothing."""


class RawQ(Kernel):
    """Stores the drafter's raw softmax, though the draw was from the processed one."""

    def after(self, logits: Tensor, state: BlockState, request: Request, call: BlockCall) -> None:
        raw = logits[:, call.verifier_rows :].log_softmax(-1)
        same = process(logits[:, call.verifier_rows :], *state.sampling[1:]).log_softmax(-1)
        which = (same.unsqueeze(1) == state.draft_log_q.unsqueeze(2)).all(-1).int().argmax(-1)
        state.draft_log_q.copy_(raw.gather(1, which.unsqueeze(-1).expand(-1, -1, raw.shape[-1])))


class DoubleAcceptance(Kernel):
    """Accepts a draft that equals the target's own draw, and tosses the coin only for the others."""

    def before(self, logits: Tensor, state: BlockState, request: Request, call: BlockCall) -> None:
        width = max(call.verifier_rows - 1, 0)
        log_p = process(logits[:, :width], *state.sampling[1:]).log_softmax(-1)
        positions = (state.length.unsqueeze(1) + torch.arange(width)).int()
        own = (log_p + gumbel(state.seed, positions, Stream.TARGET, log_p.shape[-1])).argmax(-1)
        same = (own == state.draft[:, :width]).unsqueeze(-1)
        state.draft_log_q[:, :width] = torch.where(same, -1e30, state.draft_log_q[:, :width])


class Unverified(Kernel):
    """Commits the first draft token as it stands."""

    def before(self, logits: Tensor, state: BlockState, request: Request, call: BlockCall) -> None:
        state.draft_log_q[:, 0] = -1e30


class NeighboursRow(Kernel):
    """Draws the correction from the logits row after the right one."""

    def before(self, logits: Tensor, state: BlockState, request: Request, call: BlockCall) -> None:
        rows = process(logits[:, : call.verifier_rows], *state.sampling[1:]).log_softmax(-1)
        which = torch.arange(rows.shape[0])

        def neighbours(log_p: Tensor, log_q: Tensor) -> Tensor:
            at = (rows == log_p).all(-1).int().argmax(1)
            return residual(rows[which, (at + 1).clamp(max=rows.shape[1] - 1)].unsqueeze(1), log_q)

        row_operators.residual = neighbours


def streams(**changed: int) -> Any:
    """`Stream` with other numbers for some purposes."""

    class Changed:
        DRAFT, ACCEPT, TARGET = (changed.get(name, number) for number, name in enumerate(("DRAFT", "ACCEPT", "TARGET")))

        def __new__(cls, number: int) -> int:
            return (cls.DRAFT, cls.ACCEPT, cls.TARGET)[number]

    return Changed


def without_log1p(log_p: Tensor, log_q: Tensor) -> Tensor:
    return torch.where(log_q < log_p, log_p, -torch.inf)


def softmax_of_difference(log_p: Tensor, log_q: Tensor) -> Tensor:
    drafted = (log_q > -torch.inf).any(-1, keepdim=True)
    return torch.where(drafted, (log_p.exp() - log_q.exp()).clamp(min=0), log_p)


def bonus_instead(log_p: Tensor, log_q: Tensor) -> Tensor:
    return log_p


#: What is broken: by which decoder, or by which name of the kernel's module; and the samples that show it.
BROKEN: dict[str, tuple[type[Kernel], str, Any, int]] = {
    "nothing": (Kernel, "", None, 28_000),
    "noise shared by draft and coin": (Kernel, "Stream", streams(ACCEPT=0), 12_000),
    "noise shared by coin and correction": (Kernel, "Stream", streams(ACCEPT=2), 28_000),
    "noise shared by draft and correction": (Kernel, "Stream", streams(TARGET=0), 28_000),
    "raw Q stored": (RawQ, "", None, 28_000),
    "no log1p term": (Kernel, "residual", without_log1p, 12_000),
    "softmax residual": (Kernel, "residual", softmax_of_difference, 12_000),
    "bonus drawn after a rejection": (Kernel, "residual", bonus_instead, 12_000),
    "same token accepted before the coin": (DoubleAcceptance, "", None, 12_000),
    "first draft unverified": (Unverified, "", None, 12_000),
    "correction from the neighbour's row": (NeighboursRow, "residual", residual, 12_000),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_same_test_catches_broken_sampling(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    kind, name, value, samples = BROKEN[fault]
    for operator in ("verify_rows", "draw_rows"):  # the plain-torch kernels themselves
        monkeypatch.setattr(torch.ops.packed_ss, operator, getattr(row_operators, operator))
    if name:
        monkeypatch.setattr(row_operators, name, value)
    settings = SETTINGS[0]
    decoder = kind(model(settings.vocab_size), "packed", 3, max_length=8, batch_size=BATCH)
    counts: Counter[tuple[int, ...]] = Counter()
    while counts.total() < samples:
        counts.update(texts(settings.generate(decoder, 5 * 10**9 + counts.total())))
    assert chi_square_ok(counts, settings.law()) == (fault == "nothing")
