"""The resolves, pack_block and uniform_noise compiled for every target: each launch at the vocabularies of the checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.layouts.block import BlockCall

from .compiling import TARGETS, Launch, recorded

pytest.importorskip("triton")

from packed_ss.triton_kernels import resolve

#: Ids of the 3B, 8B and 14B checkpoints, and of Qwen3-1.7B.
VOCABULARIES = {"3B, 8B, 14B": 131072, "Qwen3-1.7B": 151936}
CALLS = {
    "prompt": BlockCall(1, 32, (0,), shift=1),
    "packed": BlockCall(32, 32, (0,)),
    "verify": BlockCall(32, 32, ()),
    "propose": BlockCall(0, 32, (0,)),
    "quadratic": BlockCall(16, 16, tuple(range(16))),
}
#: temperature, top_k and top_p.
SETTINGS = {
    "plain": (1.0, 0, 1.0),
    "warm": (0.7, 0, 1.0),
    "filtered": (0.7, 50, 0.9),
    "top-k": (1.0, 50, 1.0),
    "top-p": (1.0, 0, 0.9),
    "warm top-p": (0.7, 0, 0.9),
}
#: Launches of packed and of quadratic calls.
LAUNCHES = {
    ("greedy", "plain"): (2, 4), ("coupled", "plain"): (2, 4), ("coupled", "filtered"): (3, 6), ("rejection", "plain"): (4, 4),
    ("rejection", "filtered"): (4, 5),
}  # fmt: skip
#: How kernels read logits: 16 bytes at a time, or ahead.
READERS = dict.fromkeys(("argmax_rows", "sample_rows", "correct_rows", "store_and_finish"), "ld.global.v4.b32")
READERS["filter_rows"] = "cp.async"


def integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def state(n: int, block_size: int) -> list[Tensor]:
    """The tensors that a resolve takes after its logits."""
    vectors = {name: integers(n) for name in ("length", "cache_len", "draft_len", "finish_reason", "nfe", "limit", "prompt")}
    return [
        integers(n, 4097),
        vectors["length"],
        vectors["cache_len"],
        integers(n, block_size - 1),
        vectors["draft_len"],
        vectors["finish_reason"],
        vectors["nfe"],
        integers(n, 1027),
        vectors["limit"],
        vectors["prompt"],
        integers(3, 2),
    ]


def launches(
    target: int, mode: str, call: BlockCall, setting: str, vocab: int, dtype: torch.dtype = torch.bfloat16, n: int = 1
) -> list[Launch]:
    """What one resolve launches, with the rows of the next call, which has the same shape."""
    with recorded(target) as made:
        following = call if call.verifier_rows else BlockCall(call.block_size, call.block_size, ())
        rows = [integers(n, following.rows) for _ in range(3)]
        arguments: list[Any] = [
            torch.empty(n, call.rows, vocab, dtype=dtype, device="cuda"),
            *state(n, call.block_size),
            call.verifier_rows,
            call.block_size,
            list(call.cuts),
            call.shift,
            100,
            following.verifier_rows,
            list(following.cuts),
            *rows,
        ]
        if mode != "greedy":
            arguments += [torch.empty(n, dtype=torch.int64, device="cuda"), *SETTINGS[setting]]
        if mode == "rejection":
            arguments += [torch.empty(n, call.block_size - 1, vocab, device="cuda")]
        getattr(resolve, f"resolve_{mode}")(*arguments)
    return made


def check(launch: Launch) -> None:
    code = launch.compiled()
    code.check()
    instruction = READERS.get(launch.kernel.__name__)
    assert instruction is None or code.uses(instruction), f"{code}: no {instruction}"


#: Every call for one target, and the most common one for all.
COMPILED = [(call, target) for call in CALLS for target in TARGETS if target == 90 or call == "packed"]


@pytest.mark.parametrize(("call", "target"), COMPILED)
@pytest.mark.parametrize(("mode", "setting"), LAUNCHES)
def test_every_call(mode: str, setting: str, call: str, target: int) -> None:
    for vocab in VOCABULARIES.values():
        made = launches(target, mode, CALLS[call], setting, vocab)
        if call in ("packed", "quadratic"):
            assert len(made) == LAUNCHES[mode, setting][call == "quadratic"], [launch.kernel.__name__ for launch in made]
        for launch in made:
            check(launch)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("mode", "setting"), [("greedy", "plain"), ("rejection", "plain"), ("rejection", "filtered")])
def test_float32_logits(mode: str, setting: str, target: int) -> None:
    for launch in launches(target, mode, CALLS["packed"], setting, 131072, torch.float32, n=8):
        check(launch)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("mode", "setting"), [("coupled", "top-k"), ("coupled", "top-p"), ("coupled", "warm top-p"), ("rejection", "warm")]
)
def test_other_settings(mode: str, setting: str, target: int) -> None:
    for dtype in (torch.bfloat16, torch.float32) if "top-p" in setting else (torch.bfloat16,):
        for launch in launches(target, mode, CALLS["packed"], setting, 131072, dtype):
            check(launch)


@pytest.mark.parametrize("target", TARGETS)
def test_the_others(target: int) -> None:
    with recorded(target) as made:
        rows = [integers(1, 64) for _ in range(3)]
        tokens, length, cache_len, draft, draft_len, *_ = state(1, 32)
        resolve.pack_block(tokens, length, cache_len, draft, draft_len, 100, 32, 32, [0], *rows)
        best, ids = torch.empty(1, 64, device="cuda"), integers(1, 64)
        resolve.resolve_argmax(best, ids, *state(1, 32), 32, 32, [0], 0, 100, 32, [0], *rows)
        resolve.uniform_noise(torch.empty(1, dtype=torch.int64, device="cuda"), integers(1, 31), 2, 131072)
    assert [launch.kernel.__name__ for launch in made] == ["pack_rows", "finish", "_uniform_noise"]
    for launch in made:
        launch.compiled().check()
    assert made[-1].compiled().uses("st.global.v4.b32")


def test_slices_do_not_depend_on_the_call() -> None:
    """A draw is a function of its row alone: whatever the call, a row is cut in the same way."""
    cut = {
        launch.arguments["SLICE"]
        for call in ("packed", "verify", "propose", "prompt")
        for n in (1, 64)
        for launch in launches(90, "coupled", CALLS[call], "plain", 131072, n=n)
        if "SLICE" in launch.arguments
    }
    assert len(cut) == 1


def test_grids_hold_every_sequence_and_slice() -> None:
    [scan, finish] = launches(90, "greedy", CALLS["packed"], "plain", 131072, n=3)
    assert scan.grid == (3 * 64 * 16,)
    assert finish.grid == (3,)
