"""The operators of the ordered layout compiled for every target, at the vocabulary of SetDLM's checkpoints (Qwen3's)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.layouts.ordered import OrderedCall

from .compiling import TARGETS, Launch, recorded

pytest.importorskip("triton")

from packed_ss.triton_kernels import compact_cache, ordered_resolve, ordered_rows, pack_ordered

VOCAB = 151936
#: Batch and window, each with a call of its own.
CALLS = {(1, 8): OrderedCall(1, 8, True, True, (0,)), (8, 16): OrderedCall(1, 16, True, True, tuple(range(16)))}
#: temperature, top_k and top_p.
PLAIN, FILTERED = (1.0, 0, 1.0), (0.7, 50, 0.9)


def integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def logits(n: int, rows: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(n, rows, VOCAB, dtype=dtype, device="cuda")


def state(n: int, W: int, waiting: int = 1) -> list[Tensor]:
    """The tensors that a resolve takes after its results."""
    whole = [integers(n, 4113)]
    return [
        *whole,
        *(integers(n) for _ in range(4)),
        integers(n, 1027),
        *(integers(n) for _ in range(3)),
        integers(3, 2),
        integers(n, W),
        integers(n, W),
        integers(n, waiting),
        integers(n, 4113),
        integers(n, 4113),
        integers(n),
        integers(n, 2),
    ]


def names(launches: list[Launch]) -> list[str]:
    return [launch.kernel.__name__ for launch in launches]


def check(launches: list[Launch], **readers: str) -> None:
    """Nothing spills, and named kernels read as they should."""
    for launch in launches:
        code = launch.compiled()
        code.check()
        instruction = readers.get(launch.kernel.__name__)
        assert instruction is None or code.uses(instruction), f"{code}: no {instruction}"


@pytest.mark.parametrize("target", TARGETS)
def test_argmax_rows(target: int) -> None:
    with recorded(target) as made:
        for probability in (False, True):
            ordered_rows.argmax_rows(logits(1, 16), probability)
    assert names(made) == ["scan_rows", "put_rows_together"] * 2
    assert made[0].grid == (16 * 19,)
    check(made, scan_rows="ld.global.v4.b32")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "W", "setting"), [(1, 8, PLAIN), (8, 16, FILTERED)], ids=["plain", "filtered"])
def test_sampled_rows(n: int, W: int, setting: Any, target: int) -> None:
    with recorded(target) as made:
        rows, positions, seed = integers(n, 2), integers(n, W), torch.empty(n, dtype=torch.int64, device="cuda")
        log_q = torch.empty(n, W, VOCAB, device="cuda")
        arguments = (logits(n, 2 * W), rows, positions, seed, *setting)
        ordered_rows.verify_rows(*arguments, integers(n, W), log_q)
        ordered_rows.draw_rows(*arguments, 2, integers(n, W), None)
        ordered_rows.draw_rows(*arguments, 0, integers(n, W), log_q)
    first = ["filter_listed"] if setting is FILTERED else []
    scans = [] if setting is FILTERED else ["sample_listed"]
    assert names(made) == [*first, *scans, "correct_listed", "store_verified", *2 * [*first, "sample_listed", "store_draws"]]
    check(made, filter_listed="cp.async", sample_listed="ld.global.v4.b32", correct_listed="ld.global.v4.b32")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "W"), CALLS)
def test_resolves_and_pack(n: int, W: int, target: int) -> None:
    call = CALLS[n, W]
    with recorded(target) as made:
        ids, probability = integers(n, call.head_rows), torch.empty(n, call.head_rows, device="cuda")
        ordered_resolve.resolve_ordered(ids, probability, None, *state(n, W), 1, W, True, list(call.cuts), W == 16)
        ordered_resolve.resolve_native(integers(n, W), torch.empty(n, W, device="cuda"), *state(n, W, W), W, 0.9)
        tokens, cache_len, order, draft, waiting = integers(n, 4113), integers(n), integers(n, W), integers(n, W), integers(n, 1)
        rows = [integers(n, call.rows) for _ in range(3)]
        mask = integers(n, call.rows, -(-call.rows // 32))
        pack_ordered.pack_ordered(
            tokens, cache_len, order, draft, waiting, 100, 4112, 1, W, True, True, list(call.cuts), *rows, mask, integers(n, 2)
        )
    assert names(made) == ["resolve_sequence", "resolve_sequence_native", "pack_rows"]
    assert [launch.grid for launch in made] == [(n,), (n,), (n, -(-call.rows // 64))]
    check(made)


@pytest.mark.parametrize("target", TARGETS)
def test_compact_cache(target: int) -> None:
    with recorded(target) as made:
        keys, values = (torch.empty(28, 1, 4113, 8, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        compact_cache.compact_cache(keys, values, integers(1), integers(1, 4113), integers(1))
    [launch] = made
    assert launch.grid == (28, 2)
    check(made, move_slots="ld.global.v4.b32")


def test_wide_windows_and_other_calls() -> None:
    """A wide window, and calls that only verify, draw later, or only propose."""
    with recorded(90) as made:
        for W, verifies, cuts, columns in ((64, True, [], 1), (16, True, [0], 1), (16, False, [0], 1)):
            accepted = integers(1, W) if cuts else None
            ordered_resolve.resolve_ordered(integers(1, columns * W), None, accepted, *state(1, W), 1, W, verifies, cuts, False)
    check(made)


def test_refuses_float64_logits() -> None:
    """Which other kernels take."""
    double = torch.empty(1, 2, 9, dtype=torch.float64, device="meta")
    with pytest.raises(ValueError, match="float32, bfloat16 or float16 in Triton kernels, got float64"):
        ordered_rows.argmax_rows(double, True)
    with pytest.raises(ValueError, match="logits must be on a CUDA device, got meta"):
        ordered_rows.argmax_rows(double.bfloat16(), True)
