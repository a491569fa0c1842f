"""The row operators and uniform_noise compiled for every target: each launch at the vocabularies of the checkpoints."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .compiling import TARGETS, Launch, recorded

pytest.importorskip("triton")

from packed_ss.triton_kernels import argmax_rows, draw_rows, philox, verify_rows

#: Ids of the 3B, 8B and 14B checkpoints, and of Qwen3-1.7B.
VOCABULARIES = {"3B, 8B, 14B": 131072, "Qwen3-1.7B": 151936}
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
#: How kernels read logits: 16 bytes at a time.
READERS = dict.fromkeys(("scan_argmax", "scan_rows", "store_draws", "correct_rows"), "ld.global.v4.b32")


def integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def sampling(n: int) -> list[Tensor]:
    return [torch.empty(n, dtype=dtype, device="cuda") for dtype in (torch.int64, torch.float64, torch.int64, torch.float64)]


def launches(target: int, vocab: int, dtype: torch.dtype = torch.bfloat16, n: int = 1) -> dict[str, list[Launch]]:
    """Every way to call the row operators, in a packed call of blocks of 32."""
    made, rows, width = {}, 64, 31
    with recorded(target) as listed:
        logits = torch.empty(n, rows, vocab, dtype=dtype, device="cuda")
        log_q = torch.empty(n, width, vocab, device="cuda")
        listing = integers(n, width), integers(n, width)
        calls = {
            "argmax": (argmax_rows.argmax_rows, (logits, None, None, None, integers(n, rows), None)),
            "certain argmax": (
                argmax_rows.argmax_rows,
                (logits, *listing, None, integers(n, width), torch.empty(n, width, device="cuda")),
            ),
            "target draws": (
                draw_rows.draw_rows,
                (logits, None, integers(n, rows).narrow(1, 0, 32), None, *sampling(n), 2, integers(n, 32), None, None, 0),
            ),
            "draft draws": (
                draw_rows.draw_rows,
                (logits, *listing, None, *sampling(n), 0, integers(n, width), log_q, integers(n, rows), 1),
            ),
            "verification": (
                verify_rows.verify_rows,
                (
                    logits,
                    integers(n, rows).narrow(1, 0, 32),
                    *sampling(n),
                    integers(n, width),
                    log_q,
                    integers(n, 32),
                    integers(n, 32),
                ),
            ),
        }
        for name, (operator, arguments) in calls.items():
            before = len(listed)
            operator(*arguments)
            made[name] = listed[before:]
    return made


def check(launch: Launch) -> None:
    code = launch.compiled()
    code.check()
    instruction = READERS.get(launch.kernel.__name__)
    if instruction and (launch.kernel.__name__ != "store_draws" or launch.arguments["log_q_ptr"] is not None):
        assert code.uses(instruction), f"{code}: no {instruction}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", VOCABULARIES.values(), ids=VOCABULARIES)
def test_every_call(vocab: int, dtype: torch.dtype, target: int) -> None:
    if dtype != torch.bfloat16 and vocab != 131072:
        pytest.skip("the checkpoint has bfloat16 logits")
    for made in launches(target, vocab, dtype).values():
        for launch in made:
            check(launch)


def test_numbers_of_launches() -> None:
    """Settings are data on the device: none of them changes what is launched."""
    assert {name: [launch.kernel.__name__ for launch in made] for name, made in launches(90, 131072).items()} == {
        "argmax": ["scan_argmax", "combine_argmax"],
        "certain argmax": ["scan_argmax", "combine_argmax"],
        "target draws": ["scan_rows", "store_draws"],
        "draft draws": ["scan_rows", "store_draws"],
        "verification": ["scan_rows", "correct_rows", "store_verified"],
    }


def test_splits_do_not_depend_on_the_call() -> None:
    """A draw is a function of its row alone: whatever the call, a row is cut in the same way."""
    cut = {
        launch.arguments["SPLIT"]
        for n in (1, 64)
        for made in launches(90, 131072, n=n).values()
        for launch in made
        if "SPLIT" in launch.arguments
    }
    assert len(cut) == 1


def test_grids_hold_every_entry_and_split() -> None:
    made = launches(90, 131072, n=3)
    assert [launch.grid for launch in made["argmax"]] == [(3 * 64 * 16,), (3 * 64 // 8,)]
    assert [launch.grid for launch in made["draft draws"]] == [(3 * 31 * 16,)] * 2
    assert [launch.grid for launch in made["target draws"]] == [(3 * 32 * 16,), (3 * 32,)]
    assert [launch.grid for launch in made["verification"]] == [(3 * 32 * 16,), (3 * 16,), (3,)]


@pytest.mark.parametrize("target", TARGETS)
def test_uniform_noise(target: int) -> None:
    with recorded(target) as made:
        philox.uniform_noise(torch.empty(1, dtype=torch.int64, device="cuda"), integers(1, 31), 2, 131072)
    code = made[0].compiled()
    code.check()
    assert code.uses("st.global.v4.b32")


def test_refuses_float64_logits() -> None:
    """Which other kernels take."""
    double, ids = torch.empty(1, 2, 9, dtype=torch.float64, device="meta"), torch.empty(1, 2, dtype=torch.int32, device="meta")
    with pytest.raises(ValueError, match="float32, bfloat16 or float16 in Triton kernels, got float64"):
        argmax_rows.argmax_rows(double, None, None, None, ids, None)
    with pytest.raises(ValueError, match="logits must be on a CUDA device, got meta"):
        argmax_rows.argmax_rows(double.bfloat16(), None, None, None, ids, None)
