"""What operators refuse, in the same words by every backend, and their contract with torch."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss import ops
from packed_ss.operands import Operand
from packed_ss.ops import native
from packed_ss.ordered_state import ORDERED_STATE
from packed_ss.rows import BLOCK_ROWS, ORDERED_ROWS
from packed_ss.state import BLOCK_STATE

from .backends import BACKENDS, OPERATORS, Backend

#: The lists by the names that checks and the compiled module have for them.
LISTS = {"block_state": BLOCK_STATE, "ordered_state": ORDERED_STATE, "block_rows": BLOCK_ROWS, "ordered_rows": ORDERED_ROWS}
SIZES = {"N": 2, "T": 12, "W": 3, "P": 3, "S": 2, "M": 4, "calls": 9}
Arguments = dict[str, Any]


def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def listed(operands: tuple[Operand, ...], **sizes: int) -> list[Tensor]:
    """Tensors of a list, of an unfinished sequence without a draft."""
    of = SIZES | sizes
    state = [zeros(*(of[symbol] for symbol in one.shape)) for one in operands]
    for one, tensor in zip(operands, state, strict=True):
        tensor.fill_(
            {"draft": -1, "retained": -1, "order": -1, "waiting": -1, "length": 2, "end": 8, "limit": 8}.get(one.name, 0)
        )
    return state


def arguments(name: str) -> Arguments:
    """Of a call that is accepted, by their names in the schema."""
    entries = {"rows": zeros(2, 3), "positions": zeros(2, 3), "draft": zeros(2, 3)}
    sampling = {
        "seed": zeros(2, dtype=torch.int64),
        "temperature": torch.ones(2, dtype=torch.float64),
        "top_k": zeros(2, dtype=torch.int64),
        "top_p": torch.ones(2, dtype=torch.float64),
    }
    following = {"mask_token_id": 7, "spare_slot": 9}
    following |= {"next_waiting_rows": 1, "next_window": 3, "next_drafts": True, "next_verifies": True, "next_cuts": [0, 2]}
    following["next_rows"] = listed(ORDERED_ROWS, R=13, words=1)
    logits, ordered = {"logits": torch.zeros(2, 9, 5)}, {"state": listed(ORDERED_STATE)}
    return {
        "argmax_rows": logits | entries | {"ids": zeros(2, 3), "probability": torch.zeros(2, 3)},
        "draw_rows": logits
        | entries
        | sampling
        | {"stream": 0, "ids": zeros(2, 3), "log_q": torch.zeros(2, 3, 5), "next_ids": zeros(2, 6), "next_column": 1},
        "verify_rows": logits
        | {"positions": zeros(2, 3)}
        | sampling
        | {"draft": zeros(2, 2), "draft_log_q": torch.zeros(2, 2, 5), "ids": zeros(2, 3), "accepted": zeros(2, 3)},
        "pack_block": {"state": listed(BLOCK_STATE), "mask_token_id": 7, "verifier_rows": 3, "block_size": 4, "cuts": [0, 2]}
        | {"rows": listed(BLOCK_ROWS, R=11)},
        "advance_block": {"ids": zeros(2, 12), "accepted": zeros(2, 4), "state": listed(BLOCK_STATE), "verifier_rows": 4}
        | {"block_size": 4, "cuts": [0, 2], "shift": 0, "mask_token_id": 7, "next_verifier_rows": 3, "next_cuts": [0]}
        | {"next_rows": listed(BLOCK_ROWS, R=7)},
        "pack_ordered": ordered | {key.removeprefix("next_"): value for key, value in following.items()},
        "advance_ordered": {"ids": zeros(2, 9), "probability": torch.zeros(2, 9), "accepted": zeros(2, 3)}
        | ordered
        | {"waiting_rows": 1, "window": 3, "verifies": True, "cuts": [0, 2], "by_confidence": True}
        | following,
        "advance_native": {"ids": zeros(2, 3), "probability": torch.zeros(2, 3)}
        | ordered
        | {"window": 3, "threshold": 0.9}
        | following,
        "compact_cache": {"keys": torch.zeros(1, 2, 6, 2, 4), "values": torch.zeros(1, 2, 6, 2, 4)}
        | {"cache_len": zeros(2), "first_moved": zeros(2), "moved_from": zeros(2, 12)},
    }[name]


def names_of(name: str, operand: str) -> list[str]:
    """The tensors of an operand, a list or not."""
    layout = "block" if name.endswith("block") else "ordered"
    lists = {"state": f"{layout}_state", "rows": f"{layout}_rows", "next_rows": f"{layout}_rows"}
    value = arguments(name)[operand]
    return [one.name for one in LISTS[lists[operand]]] if isinstance(value, list) and isinstance(value[0], Tensor) else [operand]


# Changes: of a value, or of the tensor at an index of a list.


def at(index: int, change: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    return lambda tensors: [*tensors[:index], change(tensors[index]), *tensors[index + 1 :]]


def longer(t: Tensor) -> Tensor:
    return torch.cat((t, t), -1)


def gaps(t: Tensor) -> Tensor:
    return longer(t)[..., ::2]


def other(t: Tensor) -> Tensor:
    """Of another dtype, which no operand of its kind may have."""
    return t.to({torch.int32: torch.int64, torch.int64: torch.int32, torch.float64: torch.float32}.get(t.dtype, torch.int8))


def fewer(t: Tensor) -> Tensor:
    return t[:1]


def elsewhere(t: Tensor) -> Tensor:
    return torch.zeros_like(t, device="meta" if t.device.type == "cpu" else "cpu")


def flat(t: Tensor) -> Tensor:
    return t.reshape(-1) if t.dim() > 1 else t.view(-1, 1)


EACH = {"dtype": other, "N": fewer, "device": elsewhere, "dimensions": flat, "longer": longer, "gaps": gaps}
#: Operands that fit all the same where their last dimension is longer.
_BLOCK_FREE, _ORDERED_FREE = {"tokens", "advances", "stops"}, {"waiting", "advances", "stops"}
FREE = {
    "argmax_rows": {"logits", "draft"}, "draw_rows": {"draft", "next_ids"}, "compact_cache": {"moved_from"},
    "pack_block": _BLOCK_FREE, "advance_block": _BLOCK_FREE,
    "pack_ordered": _ORDERED_FREE, "advance_ordered": _ORDERED_FREE, "advance_native": _ORDERED_FREE,
}  # fmt: skip
#: Operands that say what sizes or device later ones must have, so that one of those is refused.
BINDS = ("logits", "tokens", "ids", "draft", "order", "keys", "cache_len")


def every_change(name: str) -> list[tuple[Arguments, str]]:
    """A wrong operand at a time, and how its refusal begins."""
    cases = []
    for operand, value in arguments(name).items():
        is_list = isinstance(value, list)
        for index, tensor in enumerate(value if is_list else [value]):
            if not isinstance(tensor, Tensor):
                continue
            own = names_of(name, operand)[index]
            for change, new in EACH.items():
                if change == "longer" and own in FREE.get(name, ()):
                    continue
                if own in ("logits", "keys", "values") and change in ("N", "gaps"):
                    continue  # other dimensions than the first, other strides: below
                if change == "gaps" and tensor.dim() < 2:
                    continue
                passed_on = own in BINDS and change in ("N", "device", "longer")
                start = "" if passed_on or own == "keys" else f"{own} must "
                cases.append(({operand: at(index, new) if is_list else new}, start))
    return cases


def changed(name: str, change: dict[str, Any], device: str = "cpu") -> list[Any]:
    """The arguments of a call, some of them replaced or changed."""

    def there(value: Any) -> Any:
        if isinstance(value, list):
            return [there(one) for one in value]
        return value.to(device) if isinstance(value, Tensor) else value

    given = {key: there(value) for key, value in arguments(name).items()}
    return list((given | {key: new(given[key]) if callable(new) else new for key, new in change.items()}).values())


def refusal(call: Callable[..., Any], name: str, given: list[Any]) -> str:
    """The words in which a call is refused; nothing is written."""
    tensors = [t for one in given for t in (one if isinstance(one, list) else [one]) if isinstance(t, Tensor)]
    kept = [t.clone() for t in tensors]
    with pytest.raises(ValueError, match=f"^{name}: ") as error:
        call(*given)
    assert all(t.device.type == "meta" or torch.equal(t, before) for t, before in zip(tensors, kept, strict=True))
    return str(error.value)


def check_refusal(backend: Backend, name: str, change: dict[str, Any], start: str) -> None:
    """One sentence, and the words of plain torch."""
    backend.need_checks()
    words = refusal(functools.partial(backend, name), name, changed(name, change))
    assert words.startswith(f"{name}: {start}"), words
    assert words.endswith(".") and "\n" not in words
    assert words == refusal(BACKENDS[0].find(name), name, changed(name, change))


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_changed_below_is_accepted(backend: Backend, name: str) -> None:
    backend(name, *changed(name, {}))


@pytest.mark.parametrize("name", OPERATORS)
def test_wrong_tensors_are_refused(backend: Backend, name: str) -> None:
    """Each of another dtype, number of sequences, device, number of dimensions and size, and with gaps."""
    for change, start in every_change(name):
        check_refusal(backend, name, change, start)


@pytest.mark.parametrize("name", OPERATORS)
def test_lists_of_another_length_are_refused(backend: Backend, name: str) -> None:
    lists = [(key, value) for key, value in arguments(name).items() if isinstance(value, list) and isinstance(value[0], Tensor)]
    for (key, value), change in itertools.product(lists, (lambda t: t[:-1], lambda t: [*t, t[0]])):
        names = ", ".join(names_of(name, key))
        got = len(change(value))
        check_refusal(backend, name, {key: change}, f"{key} must have {len(value)} tensors ({names}), got {got}.")


def lines(t: Tensor) -> Tensor:
    """Contiguous along another dimension than the last."""
    return t.transpose(1, 2).contiguous().transpose(1, 2)


_LOGITS: list[tuple[Arguments, str]] = [
    ({"logits": lambda t: t.int()}, "logits must be float32, bfloat16, float16 or float64, got int32."),
    ({"logits": lambda t: t[0]}, "logits must be [N, R, V] with V in 1 ... 2^31 - 1, got [9, 5]."),
    ({"logits": lambda t: t[..., :0]}, "logits must be [N, R, V] with V in 1 ... 2^31 - 1, got [2, 9, 0]."),
    ({"logits": lines}, "logits must be contiguous along the vocabulary, got strides"),
    ({"ids": lambda t: t[:, :0]}, "ids must be contiguous int32 [N, M] with N = 2 on cpu, got int32 [2, 0] on cpu."),
    ({"positions": lambda t: longer(t)[:, ::2]}, "positions must be contiguous int32 [N, M] with N = 2, M = 3 on cpu, got non-"),
    ({"draft": lambda t: longer(t)[:, ::2]}, "draft must be contiguous int32 [N, W] with N = 2 on cpu, got non-contiguous int32"),
]
_BLOCK: list[tuple[Arguments, str]] = [
    ({"verifier_rows": 5}, "verifier_rows must be in 0 ... block_size = 4, got 5."),
    ({"verifier_rows": -1}, "verifier_rows must be in 0 ... block_size = 4, got -1."),
    ({"verifier_rows": 0, "cuts": []}, "cuts must ascend from 0"),
    ({"block_size": 3}, "draft must be contiguous int32 [N, W] with N = 2, W = 2 on cpu, got int32 [2, 3] on cpu."),
    (
        {"block_size": 1, "state": lambda s: [t[:, :0] if t.shape[1:] == (3,) else t for t in s]},
        "block_size must be in 2 ... 32767",
    ),
    ({"mask_token_id": -1}, "mask_token_id must be in 0 ... 2^31 - 1, got -1."),
    ({"mask_token_id": 2**31}, "mask_token_id must be in 0 ... 2^31 - 1, got 2147483648."),
    *(
        (
            {"cuts": cuts},
            f"cuts must ascend from 0, below block_size = 4, 256 at most, and none only with verifier rows, got {cuts}.",
        )
        for cuts in ([2, 0], [1, 2], [0, 0], [0, 4])
    ),
]


def _shape(prefix: str, most: int) -> list[tuple[Arguments, str]]:
    """Of a call of the ordered layout, this one or the next."""
    return [
        ({f"{prefix}waiting_rows": 4}, f"{prefix}waiting_rows must be in 0 ... 3, got 4."),
        ({f"{prefix}waiting_rows": -1}, f"{prefix}waiting_rows must be in 0 ... 3, got -1."),
        *(({f"{prefix}window": w}, f"{prefix}window must be in 1 ... W = 3, and W at most 1024, got {w}.") for w in (0, most)),
        *(
            ({f"{prefix}cuts": cuts}, f"{prefix}cuts must ascend from 0, below window = 3, 256 at most, got {cuts}.")
            for cuts in ([2, 0], [0, 0], [1, 2], [0, 3])
        ),
    ]


def wider_window(state: list[Tensor]) -> list[Tensor]:
    return [t.repeat(1, 400) if one.shape == ("N", "W") else t for one, t in zip(ORDERED_STATE, state, strict=True)]


_NEXT: list[tuple[Arguments, str]] = [
    *_shape("next_", 4),
    ({"mask_token_id": -1}, "mask_token_id must be in 0 ... 2^31 - 1, got -1."),
    ({"spare_slot": -1}, "spare_slot must be in 0 ... 2^31 - 1, got -1."),
    ({"spare_slot": 2**31}, "spare_slot must be in 0 ... 2^31 - 1, got 2147483648."),
    ({"next_cuts": [0]}, "ids must be contiguous int32 [N, R] with N = 2, R = 10 on cpu, got int32 [2, 13] on cpu."),
    ({"next_drafts": False}, "ids must be contiguous int32 [N, R] with N = 2, R = 10 on cpu, got int32 [2, 13] on cpu."),
]
_VALUES: dict[str, list[tuple[Arguments, str]]] = {
    "argmax_rows": [
        *_LOGITS,
        ({"rows": None, "ids": lambda t: t.repeat(1, 4)}, "ids must have at most 9 columns without rows, one a row"),
        ({"logits": lambda t: t.double()}, "probability must be contiguous float64 [N, M] with N = 2, M = 3 on cpu"),
    ],
    "draw_rows": [
        *_LOGITS,
        ({"rows": None, "ids": lambda t: t.repeat(1, 4)}, "ids must have at most 9 columns without rows, one a row"),
        ({"stream": 1}, "stream must be 0 (DRAFT) or 2 (TARGET), got 1."),
        ({"logits": lambda t: t.double()}, "log_q must be contiguous float64 [N, M, V] with N = 2, M = 3, V = 5"),
        ({"log_q": lines}, "log_q must be contiguous float32 [N, M, V] with N = 2, M = 3, V = 5 on cpu, got non-"),
        ({"next_column": 4}, "next_column must leave room for 3 of the 6 columns of next_ids, got 4."),
        ({"next_column": -1}, "next_column must leave room for 3 of the 6 columns of next_ids, got -1."),
        ({"temperature": lambda t: t.float()}, "temperature must be contiguous float64 [N] with N = 2 on cpu, got float32 [2]"),
    ],
    "verify_rows": [
        *_LOGITS,
        ({"ids": lambda t: t.repeat(1, 4)}, "ids must have at most 9 columns without rows, one a row"),
        ({"logits": lambda t: t.double()}, "draft_log_q must be contiguous float64 [N, W, V] with N = 2, W = 2, V = 5"),
        ({"draft_log_q": lines}, "draft_log_q must be contiguous float32 [N, W, V] with N = 2, W = 2, V = 5 on cpu, got non-"),
    ],
    "pack_block": _BLOCK,
    "advance_block": [
        *_BLOCK,
        ({"shift": 2}, "shift must be 0 or 1, got 2."),
        *(
            (change, f"ids must be contiguous int32 [2, {rows}], a column for each row, or [2, 4], one for each")
            for change, rows in (({"cuts": [0]}, 8), ({"ids": lambda t: t[:, :6].contiguous()}, 12))
        ),
        ({"next_verifier_rows": 5}, "next_verifier_rows must be in 0 ... block_size = 4, got 5."),
        ({"next_cuts": [1]}, "next_cuts must ascend from 0, below block_size = 4"),
        ({"next_cuts": [0, 1]}, "ids must be contiguous int32 [N, R] with N = 2, R = 11 on cpu, got int32 [2, 7] on cpu."),
    ],
    "pack_ordered": [({key.removeprefix("next_"): value for key, value in change.items()}, words.removeprefix("next_"))
                     for change, words in _NEXT],
    "advance_ordered": [
        *_shape("", 4),
        *_NEXT,
        ({"state": wider_window}, "window must be in 1 ... W = 1200, and W at most 1024, got 3."),
        ({"cuts": [0]}, "ids must be contiguous int32 [2, 6], a column for each row, or [2, 3], one for each"),
        ({"verifies": False}, "ids must be contiguous int32 [2, 6], a column for each row, or [2, 0], one for each"),
        ({"probability": None}, "ids must have all 9 columns, and probability be given, for an order by confidence."),
        (
            {"ids": lambda t: t[:, :3].contiguous(), "probability": lambda t: t[:, :3].contiguous()},
            "ids must have all 9 columns, and probability be given, for an order by confidence.",
        ),
        ({"probability": lambda t: t.half()}, "probability must be contiguous float32 or float64 [N, M] with N = 2"),
    ],
    "advance_native": [
        *_NEXT,
        ({"window": 2}, "ids must be contiguous int32 [2, 2], a column for each row"),
        ({"window": 4}, "window must be in 1 ... W = 3, and W at most 1024, got 4."),
        ({"state": at(12, lambda t: t[:, :2].contiguous()), "next_waiting_rows": 0},
         "waiting must have a column for each of the 3 positions, got 2."),
        *(({"threshold": t}, f"threshold must be in [0, 1], got {t}.") for t in (-0.5, 1.5, float("nan"))),
    ],
    "compact_cache": [
        ({"keys": lambda t: t[0]}, "keys must be [layers, N, C, Hkv, D] with contiguous slots and N at least 2, got float32"),
        ({"keys": lambda t: t[:, :1]}, "keys must be [layers, N, C, Hkv, D]"),
        ({"keys": gaps}, "keys must be [layers, N, C, Hkv, D]"),
        ({"keys": lambda t: longer(t)[..., :4]}, "keys must be [layers, N, C, Hkv, D]"),
        ({"values": lambda t: t.double()}, "values must be as keys are, got float64 [1, 2, 6, 2, 4] on cpu."),
        ({"values": lambda t: t[:, :, :3]}, "values must be as keys are, got"),
        ({"values": lambda t: torch.cat((t, t), 2)[:, :, ::2]}, "values must be as keys are, got non-contiguous"),
        ({"values": elsewhere}, "values must be as keys are, got float32 [1, 2, 6, 2, 4] on meta."),
    ],
}  # fmt: skip
VALUES = [(name, change, words) for name, cases in _VALUES.items() for change, words in cases]
IDS = [f"{name} {k} {words[:40]}" for name, cases in _VALUES.items() for k, (_, words) in enumerate(cases)]


@pytest.mark.parametrize(("name", "change", "words"), VALUES, ids=IDS)
def test_wrong_values_are_refused(backend: Backend, name: str, change: Arguments, words: str) -> None:
    check_refusal(backend, name, change, words)


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_without_data_are_refused_alike(name: str) -> None:
    """The operators' Meta kernels, which tracing asks."""
    operator = getattr(torch.ops.packed_ss, name)
    operator(*changed(name, {}, "meta"))
    for change, _ in (*every_change(name), *_VALUES[name]):
        words = refusal(BACKENDS[0].find(name), name, changed(name, change))
        swapped = words.replace("on cpu", "on CPU").replace("on meta", "on cpu").replace("on CPU", "on meta")
        assert refusal(operator, name, changed(name, change, "meta")) == swapped


#: Further forms of a call: operands that may be missing, and other dtypes.
FORMS: dict[str, list[Arguments]] = {
    "argmax_rows": [{"rows": None, "positions": None, "draft": None, "probability": None}],
    "draw_rows": [
        {"logits": lambda t: t.double(), "log_q": lambda t: t.double()},
        {"rows": None, "draft": None, "log_q": None, "next_ids": None, "next_column": 0, "stream": 2},
        {"logits": lambda t: t.bfloat16(), "positions": lambda t: longer(t)[:, 1:4]},
    ],
    "advance_block": [
        {"accepted": None, "next_rows": []},
        {"ids": lambda t: t[:, :4].contiguous(), "state": lambda s: [t[:, :0] if t.dim() == 3 else t for t in s]},
    ],
    "advance_ordered": [
        {"probability": None, "by_confidence": False, "accepted": None, "next_rows": []},
        {"ids": lambda t: t[:, :3].contiguous(), "probability": None, "by_confidence": False},
    ],
    "advance_native": [{"probability": lambda t: t.double(), "next_rows": []}],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_contract(name: str) -> None:
    """What the schema says is written is written, and nothing else; tracing and tensors without data work."""
    operator = getattr(torch.ops.packed_ss, name)
    for form in ({}, *FORMS.get(name, [])):
        torch.library.opcheck(operator.default, tuple(changed(name, form)))
        operator(*changed(name, form, "meta"))


def test_plain_torch_and_schemas_agree_on_arguments() -> None:
    for name in OPERATORS:
        named = [one.name for one in getattr(torch.ops.packed_ss, name).default._schema.arguments]
        assert list(arguments(name)) == named
        own = list(inspect.signature(ops._TORCH_KERNELS[name]).parameters)
        assert own == named or own[-1] in ("following", "arguments")


def test_what_the_compiled_module_takes_is_what_the_dataclasses_say() -> None:
    if not native.available():
        pytest.skip(f"no native kernels: {native.reason()}")
    listed_here = {key: [(one.name, " ".join(one.shape), one.written) for one in operands] for key, operands in LISTS.items()}
    assert native.info()["operands"] == listed_here
