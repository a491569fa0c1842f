"""What the resolves and pack_block refuse, and their contract with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from packed_ss.layouts.block import BlockCall

from .backends import Backend
from .resolve_cases import Case, moved, operands, random_case, run

CALL = BlockCall(3, 3, (0, 2))
MODES = ("greedy", "coupled", "rejection")


def new_case(mode: str = "rejection") -> Case:
    return random_case(0, vocab=9, call=CALL, mode=mode, n=2)


def _set(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Case], None]:
    """Changes a tensor of the state."""
    return lambda case: setattr(case.state, name, change(getattr(case.state, name)))


def _call(**changes: Any) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        case.call = BlockCall(**({"verifier_rows": 3, "block_size": 3, "cuts": (0, 2)} | changes))

    return change


def _logits(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Case], None]:
    return lambda case: setattr(case, "logits", change(case.logits))


def _sampling(**changes: float) -> Callable[[Case], None]:
    return lambda case: [setattr(case, name, value) for name, value in changes.items()] and None


REFUSED: list[tuple[Callable[[Case], None], str]] = [
    (_logits(lambda t: t.int()), "logits must be [Ff]loat"),
    (_logits(lambda t: t[0]), "logits must be .N, rows, V."),
    (_logits(lambda t: t[:, :, :0]), "logits must be .N, rows, V. with V in 1"),
    (_logits(lambda t: t[:, :-1]), "logits must have verifier_rows"),
    (_logits(lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)), "logits must be contiguous along the vocabulary"),
    (_call(cuts=(0,)), "logits must have verifier_rows"),
    (_call(cuts=(2, 0)), "cuts must ascend"),
    (_call(cuts=(1, 2)), "cuts must ascend"),
    (_call(cuts=(0, 0)), "cuts must ascend"),
    (_call(cuts=(0, 3)), "cuts must ascend"),
    (_call(verifier_rows=0, cuts=()), "cuts must ascend"),
    (_call(verifier_rows=4), "verifier_rows must be in"),
    (_call(verifier_rows=-1), "verifier_rows must be in"),
    (_call(block_size=0), "block_size must be in"),
    (_call(shift=2), "shift must be 0 or 1"),
    (_set("tokens", lambda t: t.long()), "tokens must be"),
    (_set("tokens", lambda t: t[:1]), "tokens must be"),
    (_set("tokens", lambda t: t[:, ::2]), "tokens must be .* non-contiguous"),
    (_set("tokens", lambda t: t[:, :0]), "tokens must be"),
    (_set("draft", lambda t: t[:, :1]), "draft must be"),
    (_set("draft", lambda t: t.t().contiguous().t()), "draft must be .* non-contiguous"),
    (_set("advances", lambda t: t[:, 0]), "advances must be"),
    (_set("stops", lambda t: t.long()), "stops must be"),
    (_set("stops", lambda t: t.view(-1)), "stops must be"),
    *(
        (_set(name, lambda t: t.long()), f"{name} must be")
        for name in ("length", "cache_len", "draft_len", "finish_reason", "nfe", "limit", "prompt_length")
    ),
    *(
        (_set(name, lambda t: t[:1]), f"{name} must be")
        for name in ("length", "cache_len", "draft_len", "finish_reason", "nfe", "limit", "prompt_length", "seed")
    ),
    (_set("seed", lambda t: t.int()), "seed must be"),
    (_set("draft_log_q", lambda t: t.double()), "draft_log_q must be"),
    (_set("draft_log_q", lambda t: t[:, :, 1:].contiguous()), "draft_log_q must be"),
    (_set("draft_log_q", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)), "draft_log_q must be .* non-contiguous"),
    (_sampling(temperature=0.0), "temperature must be"),
    (_sampling(temperature=float("nan")), "temperature must be"),
    (_sampling(temperature=float("inf")), "temperature must be"),
    (_sampling(temperature=1e-50), "temperature must be"),
    (_sampling(temperature=1e39), "temperature must be"),
    (_sampling(top_k=-1), "top_k must be"),
    (_sampling(top_p=0.0), "top_p must be"),
    (_sampling(top_p=1.5), "top_p must be"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[f"{k} {message}" for k, (_, message) in enumerate(REFUSED)])
def test_refuses(backend: Backend, change: Callable[[Case], None], message: str) -> None:
    if not backend.checks or backend.device != "cpu":
        pytest.skip("these checks are tested where the tensors are on the CPU, of a backend that has them")
    case = new_case()
    change(case)
    kept = [t.clone() for t in case.state.operands() if t.device.type == "cpu"]
    with pytest.raises(ValueError, match=f"^resolve_rejection: {message}") as error:
        backend.ops["resolve_rejection"](case.logits, *operands(case, case.state))
    assert str(error.value).count("\n") == 0
    left = [t for t in case.state.operands() if t.device.type == "cpu"]
    assert all(torch.equal(*pair) for pair in zip(left, kept, strict=True))


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[f"{k} {message}" for k, (_, message) in enumerate(REFUSED)])
def test_tensors_without_data_are_refused_alike(change: Callable[[Case], None], message: str) -> None:
    """The operators' Meta kernels, which tracing asks."""
    case = new_case()
    case.logits, case.state = case.logits.to("meta"), moved(case.state, "meta")
    change(case)
    with pytest.raises(ValueError, match=f"^resolve_rejection: {message}"):
        torch.ops.packed_ss.resolve_rejection(case.logits, *operands(case, case.state))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"best": torch.zeros(2, 9, dtype=torch.bfloat16)}, "best must be float32"),
        ({"best": torch.zeros(18)}, "best must be float32"),
        ({"best": torch.zeros(2, 8), "ids": torch.zeros(2, 8, dtype=torch.int32)}, "best must have verifier_rows"),
        ({"ids": torch.zeros(2, 9, dtype=torch.int64)}, "ids must be"),
        ({"ids": torch.zeros(2, 8, dtype=torch.int32)}, "ids must be"),
        ({"best": torch.zeros(3, 9), "ids": torch.zeros(3, 9, dtype=torch.int32)}, "tokens must be"),
    ],
)
def test_resolve_argmax_refuses(change: dict[str, torch.Tensor], message: str) -> None:
    case = new_case("greedy")
    results = {"best": torch.zeros(2, 9), "ids": torch.zeros(2, 9, dtype=torch.int32)} | change
    with pytest.raises(ValueError, match=f"^resolve_argmax: {message}"):
        torch.ops.packed_ss.resolve_argmax(*results.values(), *operands(case, case.state))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([None, True, True], "must be given together"),
        ([True, None, True], "must be given together"),
        ([True, True, None], "must be given together"),
        ([torch.zeros(2, 5, dtype=torch.int32), True, True], "next_ids must be"),
        ([True, torch.zeros(2, 6), True], "next_positions must be"),
        ([True, True, torch.zeros(12, 2, dtype=torch.int32).t()[:, :6]], "next_slots must be"),
    ],
)
def test_refuses_next_rows(backend: Backend, rows: list[Any], message: str) -> None:
    if not backend.checks or backend.device != "cpu":
        pytest.skip("these checks are tested where the tensors are on the CPU, of a backend that has them")
    case = new_case("greedy")
    buffers = [torch.zeros(2, 6, dtype=torch.int32) if row is True else row for row in rows]
    with pytest.raises(ValueError, match=message):
        backend.ops["resolve_greedy"](case.logits, *operands(case, case.state, (BlockCall(3, 3, (0,)), buffers)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(2, 9)}, "tokens must be"),
        ({"length": torch.zeros(3, dtype=torch.int32)}, "length must be"),
        ({"draft": torch.zeros(2, 3, dtype=torch.int32)}, "draft must be"),
        ({"mask_token_id": -1}, "mask_token_id must be"),
        ({"verifier_rows": 4}, "verifier_rows must be"),
        ({"cuts": [1]}, "cuts must ascend"),
        ({"ids": torch.zeros(2, 5, dtype=torch.int32)}, "ids must be"),
        ({"positions": torch.zeros(2, 6, dtype=torch.int64)}, "positions must be"),
        ({"slots": torch.zeros(1, 6, dtype=torch.int32)}, "slots must be"),
    ],
)
def test_pack_block_refuses(backend: Backend, change: dict[str, Any], message: str) -> None:
    if not backend.checks or backend.device != "cpu":
        pytest.skip("these checks are tested where the tensors are on the CPU, of a backend that has them")
    one = torch.ones(2, dtype=torch.int32)
    rows = {name: torch.zeros(2, 6, dtype=torch.int32) for name in ("ids", "positions", "slots")}
    arguments = {
        "tokens": torch.zeros(2, 9, dtype=torch.int32),
        "length": one,
        "cache_len": one,
        "draft": torch.zeros(2, 2, dtype=torch.int32),
        "draft_len": one,
        "mask_token_id": 7,
        "verifier_rows": 3,
        "block_size": 3,
        "cuts": [0],
        **rows,
    }
    with pytest.raises(ValueError, match=f"^pack_block: {message}"):
        backend.ops["pack_block"](*(arguments | change).values())


@pytest.mark.parametrize("token", [-1, 9, 2**31 - 1])
def test_a_draft_id_outside_the_vocabulary_is_never_accepted_nor_read(backend: Backend, token: int) -> None:
    if backend.name == "torch":
        pytest.skip("plain torch refuses such an index")
    case = new_case()
    case.state.draft_len.fill_(2)
    case.state.draft[:, 0] = token
    after = run(backend, case)[0]
    assert (after.length - case.state.length).tolist() == [1, 1]
    assert all(0 <= t < 9 for t in after.tokens.flatten().tolist())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_next_rows", [False, True])
def test_operator_contract(mode: str, with_next_rows: bool) -> None:
    case = new_case(mode)
    rows = (BlockCall(3, 3, (0,)), [torch.zeros(2, 6, dtype=torch.int32) for _ in range(3)])
    operator = getattr(torch.ops.packed_ss, f"resolve_{mode}").default
    torch.library.opcheck(operator, (case.logits, *operands(case, case.state, rows if with_next_rows else None)))


def test_operator_contract_of_pack_block() -> None:
    state, rows = new_case("greedy").state, [torch.zeros(2, 6, dtype=torch.int32) for _ in range(3)]
    torch.library.opcheck(
        torch.ops.packed_ss.pack_block.default,
        (state.tokens, state.length, state.cache_len, state.draft, state.draft_len, 7, 3, 3, [0], *rows),
    )
