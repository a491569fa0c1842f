"""The CUDA sources on the CPU, where tests/kernels does not look: rows in splits, any order of blocks, replays, memory around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.ops import advance_block as plain_block
from packed_ss.ops import advance_ordered as plain_ordered
from packed_ss.ops import pack as plain_pack
from packed_ss.ops import pack_ordered as plain_pack_ordered
from packed_ss.ops import row_operators as plain
from packed_ss.ordered_state import OrderedState
from packed_ss.rows import BLOCK_ROWS
from packed_ss.sampling import process
from packed_ss.state import BLOCK_STATE, BlockState, sampling_settings, stops_tensor

from . import backend, operators

# More than one split of 2048 ids at least, with and without 16-byte aligned rows, and ends inside a split and inside a chunk.
VOCAB_SIZES = (4096, 5001, 6148)
#: Temperature, top-k and top-p of three sequences.
PLAIN, FILTERED, GREEDY = (0.8, 0, 1.0), (0.9, 50, 0.9), (0.0, 3, 0.5)
SETTINGS: dict[str, Sequence[tuple[float, int, float]]] = {
    "plain": [PLAIN] * 3,
    "top-k": [(0.8, 20, 1.0), (0.8, 1, 1.0), (2.0, 5000, 1.0)],
    "top-p": [(0.8, 0, 0.9)] * 3,
    "both": [(0.8, 300, 0.9)] * 3,
    "greedy": [GREEDY] * 3,
    "mixed": [PLAIN, GREEDY, FILTERED],
    "mixed otherwise": [FILTERED, PLAIN, (float("nan"), 0, 1.0)],
}
SEEDS = (5, -1, 2**40 + 3)
#: Of four entries out of nine rows: the row, and the position, a view with gaps between sequences.
ROWS = torch.tensor([[2, 3, 4, 5], [-1, 9, 0, 8], [6, 7, 8, 1]], dtype=torch.int32)
POSITIONS = torch.tensor([[0, 7, 8, 9, 4], [0, 3, 4, 5, -1], [0, 2**31 - 1, 0, -1, 6]], dtype=torch.int32)[:, 1:]
#: Of rows 0 to 3, as verify_rows has them.
VERIFIED = torch.tensor([[7, 8, 9, 10, 11], [3, 4, -1, 6, 7], [2**31 - 1, 0, 6, 9, -1]], dtype=torch.int32)[:, :4]


def sampling(settings: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(sampling_settings(SEEDS, *zip(*SETTINGS[settings], strict=True)).values())


def logits_of(vocab: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[3, 9, V], neighbouring rows apart from each other; what lies between them would show wherever it is read."""
    scores = torch.randn(3, 9, vocab + 3, generator=torch.Generator().manual_seed(vocab)) * 3
    scores[..., vocab:] = torch.inf
    return scores.to(dtype)[..., :vocab]


class Memory:
    """Tensors for results, between marks that nothing may overwrite."""

    MARGIN = 64

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def full(self, shape: Sequence[int], fill: float, dtype: torch.dtype = torch.int32) -> Tensor:
        size = torch.Size(shape).numel()
        buffer = torch.full((size + 2 * self.MARGIN,), -77, dtype=dtype)
        self._buffers.append(buffer)
        return buffer[self.MARGIN : self.MARGIN + size].fill_(fill).view(*shape)

    def like(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [self.full(one.shape, 0, one.dtype).copy_(one) for one in tensors]

    def check(self) -> None:
        for buffer in self._buffers:
            assert (buffer[: self.MARGIN] == -77).all() and (buffer[-self.MARGIN :] == -77).all()


def argmax(by: Any, logits: Tensor, rows: Tensor | None = ROWS, positions: Tensor | None = POSITIONS) -> tuple[Tensor, Tensor]:
    """Ids and probability by a module that has the operators; those without probability must be the same."""
    memory = Memory()
    count = logits.shape[1] if rows is None else rows.shape[1]
    ids, again = (memory.full((logits.shape[0], count), -7) for _ in range(2))
    probability = memory.full(ids.shape, 9, torch.float32)
    by.argmax_rows(logits, rows, positions, None, ids, probability)
    by.argmax_rows(logits, rows, positions, None, again, None)
    memory.check()
    assert torch.equal(again, ids)
    return ids, probability


def draw(
    by: Any,
    logits: Tensor,
    settings: str,
    *,
    stores: bool = True,
    rows: Tensor | None = ROWS,
    positions: Tensor = POSITIONS,
) -> tuple[Tensor, ...]:
    """Ids, the next ids, and log Q where it is stored."""
    memory = Memory()
    ids, next_ids = memory.full(positions.shape, -7), memory.full((3, 7), -7)
    log_q = memory.full((*positions.shape, logits.shape[2]), 9, torch.float32) if stores else None
    stream = 0 if stores else 2
    by.draw_rows(logits, rows, positions, None, *sampling(settings), stream, ids, log_q, next_ids, 2)
    memory.check()
    return (ids, next_ids) if log_q is None else (ids, next_ids, log_q)


def verify(by: Any, logits: Tensor, settings: str, draft: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    memory = Memory()
    ids, accepted = memory.full(VERIFIED.shape, -7), memory.full(VERIFIED.shape, -7)
    by.verify_rows(logits, VERIFIED, *sampling(settings), draft, log_q, ids, accepted)
    memory.check()
    return ids, accepted


def drafted(logits: Tensor, agree: float, settings: str, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Draft and log Q of three entries, of logits that agree more or less with the verifier's."""
    rng = torch.Generator().manual_seed(seed)
    near = logits[:, :3].float()
    near = near + (1 - agree) * torch.randn(near.shape, generator=rng) * 3
    log_q = process(near, *sampling(settings)[1:]).log_softmax(-1)
    draft = torch.multinomial(log_q.exp().flatten(0, 1), 1, generator=rng).view(3, 3).int()
    # No draft, whatever log Q says: a draw from the residual would be token 7.
    draft[0, 2], log_q[0, 2], log_q[0, 2, 7] = -1, 30.0, -30.0
    wide = torch.full((3, 5), -7, dtype=torch.int32)
    wide[:, 1:4] = draft
    return wide[:, 1:4], log_q.contiguous()


def assert_same(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Equal, floats nearly."""
    for one, other in zip(got, want, strict=True):
        if one.dtype.is_floating_point:
            torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)
        else:
            assert torch.equal(one, other)


# ---- Rows in splits -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("vocab", VOCAB_SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_argmax_of_splits(vocab: int, dtype: torch.dtype) -> None:
    logits = logits_of(vocab, dtype)
    logits[0, 2, [100, vocab - 1]] = 50.0
    logits[0, 3] = -torch.inf
    logits[0, 4, vocab - 1] = torch.nan
    logits[0, 5, 2100] = torch.inf
    logits[2, 6, : vocab - 1] = -torch.inf
    assert_same(argmax(operators, logits), argmax(plain, logits))
    ids, _ = argmax(operators, logits, None, None)
    assert_same(argmax(operators, logits, None, None), argmax(plain, logits, None, None))
    assert ids[0, 2:6].tolist() == [100, -1, -1, -1]
    assert ids[2, 6] == vocab - 1


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocab", VOCAB_SIZES)
def test_draws_of_splits(vocab: int, settings: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits = logits_of(vocab, dtype)
        logits[2, 7] = -torch.inf
        for stores in (False, True):
            got, want = (draw(by, logits, settings, stores=stores) for by in (operators, plain))
            if stores:
                got[2][2, 1] = want[2][2, 1] = 0  # of a row without a finite maximum
            assert_same(got, want)
            assert got[0][1, [0, 1, 3]].tolist() == [-1] * 3
            assert got[0][2, 1:3].tolist() == [-1] * 2


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("vocab", VOCAB_SIZES)
def test_verdicts_on_splits(vocab: int, settings: str) -> None:
    matches = set()
    for dtype in (torch.float32, torch.bfloat16):
        logits = logits_of(vocab, dtype)
        for agree in (0.0, 0.5, 0.8, 1.0):
            arguments = logits, settings, *drafted(logits, agree, settings)
            got = verify(operators, *arguments)
            assert_same(got, verify(plain, *arguments))
            matches.update(got[1].sum(1).tolist())
    assert {0, 3} <= matches  # nothing accepted, and all of a sequence's three


def test_a_verdict_on_a_row_without_a_finite_maximum() -> None:
    logits = logits_of(5001)
    draft, log_q = drafted(logits, 1.0, "plain")
    logits[0, 1, 3000] = torch.nan
    logits[2, 3] = -torch.inf
    log_q -= 20  # whatever can be accepted is
    ids, accepted = verify(operators, logits, "plain", draft, log_q)
    assert accepted.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert ids.tolist() == [[draft[0, 0], -1, -1, -1], [*draft[1, :2].tolist(), -1, -1], [*draft[2, :3].tolist(), -1]]


@pytest.mark.parametrize("settings", ["plain", "both", "mixed"])
def test_a_correction_in_any_order(settings: str) -> None:
    """Where p's own draw is often not that of the residual: Q is above p at even ids, and below it at odd ones."""
    corrected = 0
    for seed in range(1, 9):
        logits = logits_of(5001, torch.bfloat16).roll(seed, 2) / 8
        log_p = process(logits[:, :3], *sampling(settings)[1:]).log_softmax(-1)
        log_q = log_p + 1 - 3 * (torch.arange(5001) % 2)
        draft = (logits[:, :3, ::2].argmax(-1) * 2).int()
        want = verify(plain, logits, settings, draft, log_q)
        with backend.kernels().order(seed):
            got = verify(operators, logits, settings, draft, log_q)
        assert_same(got, want)
        corrected += int((got[1].sum(1) < 2).sum())
    assert corrected > 5


@pytest.mark.parametrize("settings", ["plain", "both"])
def test_where_nothing_is_left_of_p_the_correction_comes_from_p(settings: str) -> None:
    """Q above p everywhere, as no distribution is: the draft can be rejected, and the residual is 0."""
    logits = logits_of(5001)
    draft, log_q = drafted(logits, 0.0, settings)
    arguments = logits, settings, draft, torch.full_like(log_q, 30.0)
    ids, accepted = verify(operators, *arguments)
    assert_same((ids, accepted), verify(plain, *arguments))
    assert not accepted.any()
    assert (ids[:, 0] >= 0).all()


@pytest.mark.parametrize("settings", ["plain", "both", "greedy"])
def test_a_draft_token_out_of_range_is_not_accepted(settings: str) -> None:
    logits = logits_of(5001)
    _, log_q = drafted(logits, 1.0, settings)
    for token in (-1, 5001, 2**31 - 1, -(2**31)):
        draft = torch.full((3, 3), token, dtype=torch.int32)
        ids, accepted = verify(operators, logits, settings, draft, log_q)
        assert not accepted.any()
        assert ((ids[:, 0] >= 0) & (ids[:, 0] < 5001)).all()
        assert (ids[:, 1:] == -1).all()


@pytest.mark.parametrize("at", [0, 2047, 2048, 4095, 5000])
@pytest.mark.parametrize("settings", ["plain", "both", "greedy"])
def test_one_token_in_any_split(settings: str, at: int) -> None:
    """All splits but one hold nothing but -inf; a row of nothing else fails."""
    logits = torch.full((3, 9, 5001), -torch.inf)
    logits[..., at] = -3.0
    draft, log_q = torch.full((3, 3), at, dtype=torch.int32), torch.full((3, 3, 5001), -1.0)
    assert_same(argmax(operators, logits), argmax(plain, logits))
    assert_same(draw(operators, logits, settings), draw(plain, logits, settings))
    ids, accepted = verify(operators, logits, settings, draft, log_q)
    assert_same((ids, accepted), verify(plain, logits, settings, draft, log_q))
    assert accepted.sum(1).tolist() == [3, 2, 3]
    logits.fill_(-torch.inf)
    assert (argmax(operators, logits)[0] == -1).all()
    assert (draw(operators, logits, settings)[0] == -1).all()
    assert (verify(operators, logits, settings, draft, log_q)[0] == -1).all()


@pytest.mark.parametrize("at", [3, 1101, 1670, 5000])
@pytest.mark.parametrize("settings", ["plain", "top-k", "greedy"])
def test_a_nan_anywhere_is_seen(settings: str, at: int) -> None:
    """Also where a thread comes to it late, after larger scores."""
    logits = logits_of(5001)
    logits[..., :64] += 50
    logits[..., at] = torch.nan
    draft, log_q = torch.full((3, 3), 5, dtype=torch.int32), torch.full((3, 3, 5001), -90.0)
    assert (argmax(operators, logits)[0] == -1).all()
    assert (draw(operators, logits, settings)[0] == -1).all()
    assert (verify(operators, logits, settings, draft, log_q)[0] == -1).all()


def test_a_nan_of_either_sign_is_above_everything() -> None:
    for dtype, bits in ((torch.int32, -(1 << 22)), (torch.int16, -64)):
        logits = logits_of(5001, torch.float32 if dtype == torch.int32 else torch.bfloat16)
        for sign in (bits, bits & torch.iinfo(dtype).max):
            logits.view(dtype)[..., 4000] = sign
            assert logits[0, 0, 4000].isnan()
            assert (argmax(operators, logits)[0] == -1).all()


@pytest.mark.parametrize("settings", ["plain", "top-k", "greedy"])
def test_a_thread_that_first_sees_nothing_but_minus_infinity(settings: str) -> None:
    logits = logits_of(5001)
    logits[..., :1100] = -torch.inf
    assert_same(argmax(operators, logits), argmax(plain, logits))
    assert_same(draw(operators, logits, settings), draw(plain, logits, settings))


@pytest.mark.parametrize("ids", [(0, 4000), (2047, 2048), (100, 5000), (200, 201)], ids=str)
def test_ties_across_splits_go_to_the_lowest_id(ids: tuple[int, int]) -> None:
    logits = logits_of(5001)
    logits[:, :, list(ids)] = 50.0
    assert (argmax(operators, logits, None, None)[0] == ids[0]).all()
    tokens, _, log_q = draw(operators, logits, "greedy")
    assert set(tokens.flatten().tolist()) == {-1, ids[0]}
    assert log_q[0, 0].isfinite().nonzero().flatten().tolist() == [ids[0]]
    draft = torch.full((3, 3), ids[1], dtype=torch.int32)
    assert verify(operators, logits, "greedy", draft, torch.zeros(3, 3, 5001))[0][:, 0].tolist() == [ids[0]] * 3


@pytest.mark.parametrize("settings", ["plain", "both"])
def test_a_draw_does_not_depend_on_the_number_of_splits(settings: str) -> None:
    """One entry in many splits, and the same one among others in few."""
    seed, *rest = (one[:1] for one in sampling(settings))
    for n in range(1, 4):
        logits = logits_of(9000).roll(n, 2)
        few, alone = torch.full((30, 9), -7, dtype=torch.int32), torch.full((1, 1), -7, dtype=torch.int32)
        position = torch.arange(9, dtype=torch.int32)[None]
        repeated = [one.expand(30).contiguous() for one in (seed, *rest)]
        operators.draw_rows(logits[:1].expand(30, -1, -1), None, position.expand(30, -1), None, *repeated, 0, few, None, None, 0)
        operators.draw_rows(logits[:1, 4:5], None, position[:, 4:5], None, seed, *rest, 0, alone, None, None, 0)
        assert few[7, 4] == alone[0, 0]


def test_settings_that_no_request_has() -> None:
    """Nothing is read or written where it should not be, and the largest stays."""
    logits = logits_of(5001)
    nan, inf = float("nan"), float("inf")
    strange = [(0.8, -5, -1.0), (inf, 2**62, nan), (-3.0, -(2**62), inf), (1e-5, 1, 0.0), (1e300, 7, -inf), (nan, 0, nan)]
    for some in (strange[:3], strange[3:]):
        settings = tuple(sampling_settings(SEEDS, *zip(*some, strict=True)).values())
        memory = Memory()
        ids, log_q = memory.full(POSITIONS.shape, -7), memory.full((3, 4, 5001), 9, torch.float32)
        operators.draw_rows(logits, ROWS, POSITIONS, None, *settings, 0, ids, log_q, None, 0)
        verified, accepted = memory.full(VERIFIED.shape, -7), memory.full(VERIFIED.shape, -7)
        draft, log_draft = drafted(logits, 0.5, "plain")
        operators.verify_rows(logits, VERIFIED, *settings, draft, log_draft, verified, accepted)
        memory.check()
        assert ((ids >= -1) & (ids < 5001) & (verified >= -1) & (verified < 5001)).all()
        if some[0][2] == -1.0:
            assert ids[0].tolist() == argmax(plain, logits)[0][0].tolist()


# ---- The block layout -----------------------------------------------------------------------------------------------------
MASK = 50
BLOCK_CALLS = {"packed": (4, 5, (0,), 0), "branched": (5, 5, (0, 2, 4), 0), "propose": (0, 5, (0,), 0), "verify": (3, 5, (), 0),
               "first": (1, 5, (0,), 1), "wide": (100, 100, (0, 40), 0)}  # fmt: skip


def block_state(seed: int, block_size: int) -> BlockState:
    """Four sequences in the middle of a generation, the last one finished, of a vocabulary of three."""
    rng = torch.Generator().manual_seed(seed)
    width, prompts = block_size - 1, [[1, 2]] * 4
    state = BlockState.start(
        prompts, max_new_tokens=3 * block_size, block_size=block_size, capacity=2 + 3 * block_size,
        sampling=sampling_settings([0] * 4, [0.0] * 4, [0] * 4, [1.0] * 4),
        stops=stops_tensor([[[2, 2, 1]], [], [[0, 0]], [[1]]]), device=torch.device("cpu"), calls=9,
    )  # fmt: skip
    state.length += torch.randint(0, 2 * block_size, (4,), generator=rng).int()
    state.tokens[:, 2:] = torch.randint(0, 3, state.tokens[:, 2:].shape, generator=rng).int()
    state.cache_len.copy_(state.length - 1)
    there = torch.randint(0, width + 1, (4, 1), generator=rng)
    draft = torch.randint(0, 3, (4, width), generator=rng).int()
    state.draft.copy_(torch.where(torch.arange(width) < there, draft, -1))
    state.nfe += torch.randint(0, 9, (4,), generator=rng).int()
    state.limit.copy_(state.length + torch.randint(0, block_size + 1, (4,), generator=rng).int())
    state.finish_reason[3] = 1
    return state


def advance_blocks(by: Any, pack: Any, call: str, seed: int) -> list[Tensor]:
    """The state and the next rows after three kinds of tokens, and the rows that pack_block writes before."""
    rng = torch.Generator().manual_seed(seed)
    v, block_size, cuts, shift = BLOCK_CALLS[call]
    rows = v + len(cuts) * block_size
    results: list[Tensor] = []
    for accepts, columns in ((False, rows), (True, v), (False, v)):
        if columns == 0:
            continue
        memory = Memory()
        state = memory.like(block_state(seed, block_size).operands())
        ids = torch.randint(-1, 3, (4, columns), generator=rng).int()
        if v and seed % 2:
            ids[:, : min(v, block_size) - 1] = state[3][:, : v - 1]  # the draft is right
        accepted = torch.randint(0, 3, (4, v), generator=rng).int().clamp(max=1) if accepts else None
        before = [memory.full((4, rows), -7) for _ in range(4)]
        after = [memory.full((4, 4 + 2 * block_size), -7) for _ in range(4)]
        pack.pack_block(state, MASK, v, block_size, cuts, before)
        by.advance_block(ids, accepted, state, v, block_size, cuts, shift, MASK, 4, (0, 3), after)
        memory.check()
        results += [*state, *before, *after]
    return results


class PlainBlock:
    advance_block = staticmethod(plain_block.advance_block)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("call", BLOCK_CALLS)
def test_block_states_in_any_order(call: str, seed: int) -> None:
    """By teams of a warp, and of more."""
    want = advance_blocks(PlainBlock, plain_pack, call, seed)
    for order in (0, 1, 2):
        with backend.kernels().order(order):
            got = advance_blocks(operators, operators, call, seed)
        for index, (one, other) in enumerate(zip(got, want, strict=True)):
            if index % (len(BLOCK_STATE) + 2 * len(BLOCK_ROWS)) == 0:  # tokens: those behind the end mean nothing
                keep = torch.arange(one.shape[1]) < want[index + 1][:, None]
                one, other = one.where(keep, -1), other.where(keep, -1)
            assert torch.equal(one, other), index


def test_stops_do_not_reach_into_the_prompt() -> None:
    """Of either layout: [2, 1] would end what starts with 1 behind the prompt [..., 2]."""
    for prompt, stop, finish in (([1, 2], [2, 1], 0), ([1], [1, 1], 0), ([2], [1, 0], 1)):
        settings = sampling_settings([0], [0.0], [0], [1.0])
        options = {"max_new_tokens": 9, "capacity": 20, "sampling": settings, "stops": stops_tensor([[stop]])}
        for state in (
            BlockState.start([prompt], block_size=3, device=torch.device("cpu"), **options),
            OrderedState.start([prompt], window=2, waiting=1, device=torch.device("cpu"), **options),
        ):
            state.draft.copy_(torch.tensor([[1, 0]]))
            tokens = torch.tensor([[1, 0, 1]], dtype=torch.int32)
            if isinstance(state, BlockState):
                operators.advance_block(tokens, None, state.operands(), 3, 3, (), 0, MASK, 1, (0,), [])
            else:
                following = MASK, 9, 1, 2, False, False, (0,), []
                operators.advance_ordered(
                    tokens[:, :2].contiguous(), None, None, state.operands(), 1, 2, True, (), False, *following
                )
            assert state.finish_reason.tolist() == [finish], (type(state), prompt)


# ---- The ordered layout ---------------------------------------------------------------------------------------------------
#: waiting rows, drafts, verifies, cuts, whether the next draft is drawn later, by confidence.
ORDERED_CALLS: dict[str, tuple[int, bool, bool, Callable[[int], tuple[int, ...]], bool, bool]] = {
    "packed": (1, True, True, lambda w: (0,), False, True),
    "branched": (1, True, True, lambda w: (0, 1, w // 2), True, False),
    "verify": (1, True, True, lambda w: (), False, False),
    "propose": (3, False, False, lambda w: (0,), False, False),
    "propose later": (3, False, False, lambda w: (0,), True, False),
    "native": (70, False, True, lambda w: (), False, False),
}


def following(window: int, memory: Memory) -> tuple[Any, ...]:
    """The rows of the call after, and room for them."""
    cuts = (0, window // 2)
    rows = 2 + 4 * window
    buffers = [memory.full((3, rows), -7) for _ in range(4)]
    return MASK, 500, 2, window, True, True, cuts, [*buffers, memory.full((3, rows, (rows + 31) // 32), -7)]


def generation(call: str, window: int, seed: int) -> Iterator[tuple[OrderedState, Tensor, Tensor, Tensor | None]]:
    """States that calls of a kind lead to, each with the tokens, probabilities and verdicts of the next."""
    rng = torch.Generator().manual_seed(seed)
    _, _, verifies, cuts_of, later, _ = ORDERED_CALLS[call]
    state = OrderedState.start(
        [[1, 2], [2], [0, 1, 2]], max_new_tokens=2 * window, window=window, waiting=window, capacity=3 + 2 * window,
        sampling=sampling_settings([0] * 3, [0.0] * 3, [0] * 3, [1.0] * 3),
        stops=stops_tensor([[[2, 2, 2, 1], [9]], [], [[0, 1, 0, 2, 0]]]), device=torch.device("cpu"),
    )  # fmt: skip
    columns = window * verifies if later or call == "native" else (verifies + len(cuts_of(window))) * window
    for step in range(6):
        ids = torch.randint(0, 3, (3, columns), generator=rng).int()
        ids[torch.rand(ids.shape, generator=rng) < 0.02] = -1
        if verifies and call != "native" and step % 3:
            agree = torch.rand(3, window, generator=rng) < 0.9
            ids[:, :window] = torch.where(agree & (state.draft >= 0), state.draft, ids[:, :window])
        probability = torch.rand(ids.shape, generator=rng).mul_(8).round_().div_(8)
        accepted = torch.randint(0, 4, (3, window), generator=rng).int().clamp(max=1) if later and verifies else None
        yield state, ids, probability, accepted
        advance(plain_ordered, state.operands(), call, ids, probability, accepted, (MASK, 0, 0, window, False, False, (0,), []))
        if later:  # what draw_rows would fill in
            tokens = torch.randint(0, 3, state.draft.shape, generator=rng).int()
            state.draft.copy_(torch.where(state.retained >= 0, tokens, -1))


def advance(
    by: Any,
    state: list[Tensor],
    call: str,
    ids: Tensor,
    probability: Tensor,
    accepted: Tensor | None,
    following: tuple[Any, ...],
) -> None:
    waiting, _, verifies, cuts_of, _, by_confidence = ORDERED_CALLS[call]
    window = state[10].shape[1]
    if call == "native":
        by.advance_native(ids, probability, state, window, 0.75, *following)
    else:
        scores = probability if by_confidence else None
        by.advance_ordered(ids, scores, accepted, state, waiting, window, verifies, cuts_of(window), by_confidence, *following)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("call", ORDERED_CALLS)
@pytest.mark.parametrize("window", [5, 70])
def test_ordered_states_in_any_order(window: int, call: str, wide: bool) -> None:
    """By teams of a warp, and of more."""
    waiting, drafts, verifies, cuts_of, _, _ = ORDERED_CALLS[call]
    waiting = min(waiting, window)
    for step, (state, ids, probability, accepted) in enumerate(generation(call, window, seed=window)):
        results = []
        for advances, packs, order in (
            (plain_ordered, plain_pack_ordered, 0),
            (operators, operators, 0),
            (operators, operators, step + 1),
        ):
            memory = Memory()
            tensors = memory.like(state.operands())
            rows = waiting + (drafts + verifies + len(cuts_of(window))) * window
            before = [memory.full((3, rows), -7) for _ in range(4)]
            before.append(memory.full((3, rows, (rows + 31) // 32), -7))
            after = following(window, memory)
            with backend.kernels().order(order):
                packs.pack_ordered(tensors, MASK, 500, waiting, window, drafts, verifies, cuts_of(window), before)
                advance(advances, tensors, call, ids, probability.double() if wide else probability, accepted, after)
            memory.check()
            results.append([*tensors, *before, *after[-1]])
        want, *others = results
        for got in others:
            for index, (one, other) in enumerate(zip(got, want, strict=True)):
                if index == 14:  # moved_from: of slots that move alone
                    slot = torch.arange(one.shape[1])
                    moves = (slot >= want[15][:, None]) & (slot < want[2][:, None])
                    one, other = one.where(moves, -1), other.where(moves, -1)
                if index == 13:  # cached: of pairs that are there
                    one, other = (t.where(torch.arange(t.shape[1]) < want[2][:, None], -1) for t in (one, other))
                assert torch.equal(one, other), (index, step)


def _counted(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape).remainder(30011).to(torch.int16)


CACHES: dict[str, Callable[[], Tensor]] = {
    "16 bytes, two blocks a slot": lambda: _counted(2, 3, 20, 3, 400),
    "4 bytes": lambda: _counted(2, 3, 20, 3, 2),
    "odd": lambda: _counted(2, 3, 20, 3, 5),
    "off by one": lambda: _counted(1 + 2 * 3 * 20 * 3 * 8)[1:].view(2, 3, 20, 3, 8),
}


@pytest.mark.parametrize("cache", CACHES)
def test_pairs_move_whatever_their_size_and_alignment(cache: str) -> None:
    """More slots than a thread reads at once, others that are written to as well, and a sequence of which nothing moves."""
    keys, values = CACHES[cache](), CACHES[cache]() + 1
    cache_len, first_moved = torch.tensor([14, 3, 19]).int(), torch.tensor([1, 3, 18]).int()
    moved_from = torch.zeros(3, 30, dtype=torch.int32)
    moved_from[0, 1:14] = torch.tensor([2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 16, 18, 19])
    moved_from[2, 18] = 19
    plain_ordered.compact_cache(keys, values, cache_len, first_moved, moved_from)
    for seed in (0, 1):
        got = CACHES[cache](), CACHES[cache]().add_(1)
        with backend.kernels().order(seed):
            operators.compact_cache(*got, cache_len, first_moved, moved_from)
        assert_same(got, (keys, values))


# ---- All operators --------------------------------------------------------------------------------------------------------
def everything(settings: str) -> list[Tensor]:
    """Row operators on rows in several splits."""
    logits = logits_of(5001, torch.bfloat16)
    arguments = logits, settings, *drafted(logits, 0.5, settings)
    return [
        *argmax(operators, logits),
        *draw(operators, logits, settings),
        *draw(operators, logits, settings, stores=False),
        *verify(operators, *arguments),
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("settings", ["plain", "both", "greedy", "mixed"])
def test_rows_in_any_order(settings: str, seed: int) -> None:
    """No bit depends on which block or thread comes first."""
    want = everything(settings)
    with backend.kernels().order(seed):
        assert all(map(torch.equal, everything(settings), want))


@pytest.mark.parametrize("poison", [0, 0x7F, 0xFF])
def test_replays_with_one_workspace(poison: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it holds at first, and whatever calls with other settings leave in it, as replays of a graph do."""
    want = {settings: everything(settings) for settings in ("plain", "mixed", "greedy")}
    kept: dict[int, Tensor] = {}

    def workspace(size: int) -> Tensor:
        return kept.setdefault(size, torch.full((size,), poison, dtype=torch.uint8))

    monkeypatch.setattr(operators, "workspace", workspace)
    for settings in ("mixed", "plain", "greedy", "mixed", "mixed", "plain"):
        assert all(map(torch.equal, everything(settings), want[settings])), settings


def test_workspaces_are_written_within_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    monkeypatch.setattr(operators, "workspace", lambda size: memory.full((size // 8,), 0, torch.int64))
    for settings in ("plain", "both", "mixed"):
        everything(settings)
    memory.check()


def launches(call: Callable[[], Any]) -> int:
    before = backend.kernels().launches()
    call()
    return backend.kernels().launches() - before


@pytest.mark.parametrize("settings", SETTINGS)
def test_launches_of_row_operators(settings: str) -> None:
    """The same number whatever the settings."""
    logits = logits_of(5001)
    ids, accepted = torch.zeros(3, 4, dtype=torch.int32), torch.zeros(3, 4, dtype=torch.int32)
    draft, log_q = drafted(logits, 0.5, settings)
    drawn = torch.zeros(3, 4, 5001)
    assert launches(lambda: operators.argmax_rows(logits, ROWS, POSITIONS, None, ids, None)) == 2
    for stored in (None, drawn):
        arguments = logits, ROWS, POSITIONS, None, *sampling(settings), 0, ids, stored, None, 0
        assert launches(lambda arguments=arguments: operators.draw_rows(*arguments)) == 2
    assert launches(lambda: operators.verify_rows(logits, VERIFIED, *sampling(settings), draft, log_q, ids, accepted)) == 2


def test_launches_of_the_others() -> None:
    memory = Memory()
    state, rows = block_state(0, 5), [memory.full((4, 9), -7) for _ in range(4)]
    assert launches(lambda: operators.pack_block(state.operands(), MASK, 4, 5, (0,), rows)) == 1
    ids = torch.zeros(4, 9, dtype=torch.int32)
    for after in ([], rows):
        arguments = ids, None, state.operands(), 4, 5, (0,), 0, MASK, 4, (0,), after
        assert launches(lambda arguments=arguments: operators.advance_block(*arguments)) == 1
    for call in ORDERED_CALLS:
        state, *results = next(generation(call, 5, 0))
        assert launches(lambda: advance(operators, state.operands(), call, *results, following(5, memory))) == 1  # noqa: B023
    *packed, buffers = following(5, memory)
    assert launches(lambda: operators.pack_ordered(state.operands(), *packed, buffers)) == 1
    numbers = torch.tensor([3]).int(), torch.tensor([1]).int(), torch.tensor([[0, 2, 3, 0]]).int()
    assert launches(lambda: operators.compact_cache(torch.zeros(1, 1, 4, 1, 4), torch.zeros(1, 1, 4, 1, 4), *numbers)) == 1


def test_without_sequences() -> None:
    """Nothing is launched."""
    state = [one[:0] for one in OrderedState.operands(next(generation("packed", 3, 0))[0])]
    block = [one[:0] for one in block_state(0, 3).operands()]
    ids, logits = torch.zeros(0, 4, dtype=torch.int32), torch.zeros(0, 4, 7)
    settings = tuple(one[:0] for one in sampling("plain"))
    none = [ids] * 4

    def call_all() -> None:
        operators.argmax_rows(logits, None, None, None, ids, None)
        operators.draw_rows(logits, None, ids, None, *settings, 0, ids, None, None, 0)
        operators.verify_rows(logits, ids, *settings, ids, torch.zeros(0, 4, 7), ids, ids)
        operators.pack_block(block, MASK, 1, 3, (0,), none)
        operators.advance_block(ids, None, block, 1, 3, (0,), 0, MASK, 1, (0,), none)
        operators.pack_ordered(state, MASK, 9, 1, 3, False, False, (0,), [*none, torch.zeros(0, 4, 1).int()])
        operators.advance_ordered(ids, None, None, state, 1, 3, False, (0,), False, MASK, 9, 1, 3, False, False, (0,), [])

    assert launches(call_all) == 0
