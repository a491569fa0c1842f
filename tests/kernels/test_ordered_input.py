"""What the operators of the ordered layout refuse, and their contract with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from .backends import ORDERED_OPERATORS, Backend
from .ordered_cases import Step, operands, pack_operands, steps

_STATE = (
    "tokens",
    "length",
    "cache_len",
    "finish_reason",
    "nfe",
    "advances",
    "end",
    "stopped",
    "prompt_length",
    "stops",
    "order",
    "draft",
    "waiting",
    "cached",
    "source",
    "moved",
    "retained",
)
_BUFFERS = ("ids", "positions", "slots", "tail_mask", "consulted")


def _zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def _state(**sizes: int) -> dict[str, Any]:
    n, T, W, P = (sizes.get(name, size) for name, size in (("N", 2), ("T", 12), ("W", 3), ("P", 1)))
    shapes = dict.fromkeys(_STATE, (n,))
    shapes |= {
        "tokens": (n, T),
        "cached": (n, T),
        "source": (n, T),
        "advances": (n, 9),
        "stops": (2, 3),
        "order": (n, W),
        "draft": (n, W),
        "waiting": (n, P),
        "retained": (n, 2),
    }
    state = {name: _zeros(*shapes[name]) for name in _STATE}
    return state | {"end": torch.full((n,), 8, dtype=torch.int32), "order": torch.full((n, W), -1, dtype=torch.int32)}


def arguments(name: str) -> dict[str, Any]:
    """Of a call that is accepted, by their names in the schema."""
    chosen = {
        "logits": torch.zeros(2, 9, 5),
        "rows": _zeros(2, 2),
        "positions": _zeros(2, 3),
        "seed": _zeros(2, dtype=torch.int64),
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
    }
    if name == "argmax_rows":
        return {"logits": torch.zeros(2, 9, 5), "probability": True}
    if name == "draw_rows":
        return chosen | {"stream": 0, "ids": _zeros(2, 3), "log_q": torch.zeros(2, 3, 5)}
    if name == "verify_rows":
        return chosen | {"draft": _zeros(2, 3), "draft_log_q": torch.zeros(2, 3, 5)}
    if name == "resolve_ordered":
        return (
            {"ids": _zeros(2, 9), "probability": torch.zeros(2, 9), "accepted": _zeros(2, 3)}
            | _state()
            | {"waiting_rows": 1, "window": 3, "verifies": True, "cuts": [0, 2], "by_confidence": True}
        )
    if name == "resolve_native":
        return {"ids": _zeros(2, 3), "probability": torch.zeros(2, 3)} | _state(P=3) | {"window": 3, "threshold": 0.9}
    if name == "compact_cache":
        return {
            "keys": torch.zeros(1, 2, 6, 2, 4),
            "values": torch.zeros(1, 2, 6, 2, 4),
            "cache_len": _zeros(2),
            "source": _zeros(2, 12),
            "moved": _zeros(2),
        }
    state = {key: value for key, value in _state().items() if key in ("tokens", "cache_len", "order", "draft", "waiting")}
    buffers = {key: _zeros(2, 13) for key in ("ids", "positions", "slots")}
    return (
        state
        | {"mask_token_id": 7, "spare_slot": 9, "waiting_rows": 1, "window": 3, "drafts": True, "verifies": True, "cuts": [0, 2]}
        | buffers
        | {"tail_mask": _zeros(2, 13, 1), "consulted": _zeros(2, 2)}
    )


def _long(t: Tensor) -> Tensor:
    return t.long()


def _double(t: Tensor) -> Tensor:
    return t.double()


def _first(t: Tensor) -> Tensor:
    return t[:1]


def _wide(t: Tensor) -> Tensor:
    return torch.cat((t, t), -1)


def _gaps(t: Tensor) -> Tensor:
    return _wide(t)[..., ::2]


_CHOSEN: list[tuple[dict[str, Any], str]] = [
    ({"logits": _long}, "logits must be [Ff]loat"),
    ({"logits": lambda t: t[0]}, "logits must be .N, rows, V."),
    ({"logits": lambda t: t[..., :0]}, "logits must be .N, rows, V. with V in 1"),
    ({"logits": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)}, "logits must be contiguous along the vocabulary"),
    ({"rows": _long}, "rows must be contiguous"),
    ({"rows": _wide}, "rows must be contiguous"),
    ({"positions": _first}, "positions must be contiguous"),
    ({"positions": _gaps}, "positions must be .* non-contiguous"),
    ({"seed": lambda t: t.int()}, "seed must be contiguous"),
    ({"temperature": 0.0}, "temperature must be"),
    ({"top_k": -1}, "top_k must be"),
    ({"top_p": 1.5}, "top_p must be"),
]
_RESOLVES: list[tuple[dict[str, Any], str]] = [
    ({"ids": _long}, "ids must be contiguous"),
    ({"ids": lambda t: t[0]}, "ids must be contiguous"),
    ({"ids": _gaps}, "ids must be .* non-contiguous"),
    ({"probability": lambda t: t.half()}, "probability must be contiguous"),
    ({"probability": _first}, "probability must be contiguous"),
    ({"probability": _gaps}, "probability must be .* non-contiguous"),
    *(
        ({name: change}, f"{name} must be contiguous")
        for name in _STATE
        for change in (_long, _first)
        if (name, change) != ("stops", _first)
    ),
    *(({name: _gaps}, f"{name} must be .* non-contiguous") for name in ("tokens", "order", "advances", "stops", "waiting")),
    ({"draft": _wide}, "draft must be contiguous"),
    ({"cached": _wide}, "cached must be contiguous"),
    ({"source": _wide}, "source must be contiguous"),
    ({"retained": _wide}, "retained must be contiguous"),
    ({"stops": lambda t: t[:, :0]}, "stops must be contiguous"),
]
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "argmax_rows": _CHOSEN[:4],
    "draw_rows": [
        *_CHOSEN,
        ({"stream": 1}, r"stream must be 0 .DRAFT. or 2 .TARGET., got 1\."),
        ({"ids": _long}, "ids must be contiguous"),
        ({"ids": _wide}, "ids must be contiguous"),
        ({"log_q": _double}, "log_q must be contiguous"),
        ({"log_q": lambda t: t[:, :2]}, "log_q must be"),
        ({"logits": _double}, "log_q must be contiguous"),
    ],
    "verify_rows": [
        *_CHOSEN,
        ({"draft": _long}, "draft must be contiguous"),
        ({"draft": _wide}, "draft must be contiguous"),
        ({"draft_log_q": _double}, "draft_log_q must be contiguous"),
        ({"draft_log_q": _gaps}, "draft_log_q must be .* non-contiguous"),
    ],
    "resolve_ordered": [
        *_RESOLVES,
        ({"ids": lambda t: t[:, :6].contiguous()}, "ids must have a column for each verifier and proposal row, 9 in all"),
        ({"cuts": [0]}, "ids must have a column for each verifier and proposal row, 6 in all"),
        ({"verifies": False}, "ids must have a column for each verifier and proposal row, 6 in all"),
        ({"probability": None}, r"probability must be given for an order by confidence\."),
        (
            {"ids": lambda t: t[:, :3].contiguous(), "probability": lambda t: t[:, :3].contiguous()},
            "ids must have the 9 columns of all rows for an order",
        ),
        ({"accepted": _double}, "accepted must be contiguous"),
        ({"accepted": _wide}, "accepted must be contiguous"),
        ({"waiting_rows": 2}, "waiting_rows must be in 0 ... 1, got 2"),
        ({"waiting_rows": -1}, "waiting_rows must be in 0 ... 1, got -1"),
        ({"window": 0}, "window must be in 1 ... W = 3, and W at most 1024, got 0"),
        ({"window": 4}, "window must be in 1 ... W = 3, and W at most 1024, got 4"),
        ({"order": lambda t: t.repeat(1, 400), "draft": lambda t: t.repeat(1, 400)}, "window must be in 1 ... W = 1200"),
        ({"cuts": [2, 0]}, "cuts must ascend from 0, below window = 3"),
        ({"cuts": [0, 0]}, "cuts must ascend"),
        ({"cuts": [1, 2]}, "cuts must ascend"),
        ({"cuts": [0, 3]}, "cuts must ascend"),
    ],
    "resolve_native": [
        *_RESOLVES,
        ({"window": 2}, "ids must be contiguous"),
        ({"ids": _wide, "probability": _wide, "window": 6}, "window must be in 1 ... W = 3"),
        ({"waiting": lambda t: t[:, :2].contiguous()}, "waiting must have a column for each of the 3 positions, got 2"),
        ({"threshold": -0.1}, "threshold must be in .0, 1."),
        ({"threshold": 1.1}, "threshold must be in .0, 1."),
        ({"threshold": float("nan")}, "threshold must be in .0, 1."),
    ],
    "compact_cache": [
        ({"keys": lambda t: t[0]}, "keys must be .layers, N, C, Hkv, D. with contiguous slots and N at least 2"),
        ({"keys": lambda t: t[:, :1]}, "keys must be"),
        ({"keys": _gaps}, "keys must be"),
        ({"keys": lambda t: _wide(t)[..., :4]}, "keys must be"),
        ({"values": _double}, "values must be as keys are"),
        ({"values": lambda t: t[:, :, :3]}, "values must be as keys are"),
        ({"values": lambda t: torch.cat((t, t), 2)[:, :, ::2]}, "values must be as keys are"),
        ({"cache_len": _long}, "cache_len must be contiguous"),
        ({"moved": _first}, "moved must be contiguous"),
        ({"source": _long}, "source must be contiguous"),
        ({"source": _first}, "source must be contiguous"),
    ],
    "pack_ordered": [
        ({"tokens": _long}, "tokens must be contiguous"),
        *(
            ({name: change}, f"{name} must be contiguous")
            for change in (_long, _first)
            for name in ("cache_len", "order", "draft", "waiting", *_BUFFERS)
        ),
        ({"tokens": _gaps}, "tokens must be .* non-contiguous"),
        ({"draft": _wide}, "draft must be contiguous"),
        ({"tail_mask": _wide}, "tail_mask must be contiguous"),
        ({"cuts": [0]}, "ids must be contiguous"),
        ({"drafts": False}, "ids must be contiguous"),
        ({"mask_token_id": -1}, "mask_token_id must be"),
        ({"spare_slot": -1}, r"spare_slot must be in 0 ... 2\^31 - 1, got -1"),
        ({"waiting_rows": 2}, "waiting_rows must be in 0 ... 1"),
        ({"window": 4}, "window must be in 1 ... W = 3"),
        ({"cuts": [0, 3]}, "cuts must ascend"),
    ],
}
CASES = [(name, change, message) for name, cases in REFUSED.items() for change, message in cases]
IDS = [f"{name} {k} {message}" for k, (name, _, message) in enumerate(CASES)]


def changed(name: str, change: dict[str, Any], device: str = "cpu") -> list[Any]:
    given = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in arguments(name).items()}
    return list((given | {key: new(given[key]) if callable(new) else new for key, new in change.items()}).values())


def test_what_is_changed_below_is_accepted(backend: Backend) -> None:
    if backend.device != "cpu":
        pytest.skip("these tensors are on the CPU")
    for name in ORDERED_OPERATORS:
        if name in backend.ops:
            backend.ops[name](*arguments(name).values())


@pytest.mark.parametrize(("name", "change", "message"), CASES, ids=IDS)
def test_refuses(backend: Backend, name: str, change: dict[str, Any], message: str) -> None:
    if not backend.checks or backend.device != "cpu":
        pytest.skip("these checks are tested where the tensors are on the CPU, of a backend that has them")
    backend.need(name)
    given = changed(name, change)
    tensors = [t for t in given if isinstance(t, Tensor)]
    kept = [t.clone() for t in tensors]
    with pytest.raises(ValueError, match=f"^{name}: {message}") as error:
        backend.ops[name](*given)
    assert str(error.value).count("\n") == 0
    assert str(error.value).endswith(".")
    assert all(torch.equal(*pair) for pair in zip(tensors, kept, strict=True))


@pytest.mark.parametrize(("name", "change", "message"), CASES, ids=IDS)
def test_tensors_without_data_are_refused_alike(name: str, change: dict[str, Any], message: str) -> None:
    """The operators' Meta kernels, which tracing asks."""
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        getattr(torch.ops.packed_ss, name)(*changed(name, change, "meta"))


@pytest.mark.parametrize("change", [{}, {"probability": None, "by_confidence": False}, {"accepted": None}])
def test_operator_contract_of_resolve_ordered(change: dict[str, Any]) -> None:
    torch.library.opcheck(torch.ops.packed_ss.resolve_ordered.default, changed("resolve_ordered", change))


@pytest.mark.parametrize("name", [name for name in ORDERED_OPERATORS if name != "resolve_ordered"])
def test_operator_contract(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.packed_ss, name).default, changed(name, {}))


@pytest.mark.parametrize("change", [{"logits": _double, "log_q": _double}, {"log_q": None, "stream": 2}])
def test_operator_contract_of_draw_rows(change: dict[str, Any]) -> None:
    torch.library.opcheck(torch.ops.packed_ss.draw_rows.default, changed("draw_rows", change))


@pytest.mark.parametrize("schedule", ["packed", "native"])
def test_operator_contract_in_a_generation(schedule: str) -> None:
    step: Step = steps(1, schedule, 4)[1]
    run: Callable[..., Any] = getattr(torch.ops.packed_ss, "resolve_native" if step.native else "resolve_ordered").default
    torch.library.opcheck(run, operands(step, step.state))
    n, call = len(step.ids), step.call
    shapes = ((n, call.rows),) * 3 + ((n, call.rows, -(-call.rows // 32)), (n, 2))
    torch.library.opcheck(
        torch.ops.packed_ss.pack_ordered.default, pack_operands(step.state, call, [_zeros(*shape) for shape in shapes])
    )
