"""Logarithms, exponentials and Gumbel noise of the Triton kernels, to a few units in the last place, and the order of scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ..kernels.backends import INTERPRETED, no_triton

pytest.importorskip("triton")

import triton
import triton.language as tl
from packed_ss.triton_kernels import philox, scores

pytestmark = pytest.mark.skipif(bool(no_triton()), reason=no_triton())
FUNCTIONS = ("log", "log1p_of_minus", "exp_of_negative", "to_gumbel")


@triton.jit
def apply(x_ptr, out_ptr, WHICH: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    if WHICH == 0:
        y = scores.log(x)
    elif WHICH == 1:
        y = scores.log1p_of_minus(x)
    elif WHICH == 2:
        y = scores.exp_of_negative(x)
    else:
        y = philox.to_gumbel(x)
    tl.store(out_ptr + at, y)


def run(name: str, x: Tensor) -> np.ndarray:
    size = triton.next_power_of_2(len(x))
    inside = torch.nn.functional.pad(x, (0, size - len(x)), value=x[0].item()).to("cpu" if INTERPRETED else "cuda")
    out = torch.empty_like(inside)
    apply[(1,)](inside, out, WHICH=FUNCTIONS.index(name), SIZE=size)
    return out.cpu().numpy()[: len(x)]


def check(got: np.ndarray, want: np.ndarray, ulps: float, least: float = 0.0) -> None:
    """Within so many units in the last place of the right value, or of ``least`` where it is smaller."""
    unit = np.spacing(np.maximum(np.abs(want), least).astype(np.float32))
    assert (np.abs(got - want) / unit).max() < ulps


def uniform(words: Any) -> Tensor:
    """u of words, as the definition has it."""
    return (torch.as_tensor(words).float() * 2.0**-32 + 2.0**-33).clamp_max(1.0 - 2.0**-24)


@pytest.fixture(scope="module")
def variates() -> Tensor:
    """Random u, and those next to both ends."""
    rng = torch.Generator().manual_seed(0)
    powers = 2 ** torch.arange(32)
    return uniform(
        torch.cat(
            (
                torch.randint(0, 2**32, (6000,), generator=rng),
                torch.arange(900),
                2**32 - 1 - torch.arange(900),
                powers,
                2**32 - powers,
            )
        )
    )


def test_log1p_of_minus(variates: Tensor) -> None:
    check(run("log1p_of_minus", variates), np.log1p(-variates.double().numpy()), 4)
    assert run("log1p_of_minus", torch.tensor([0.0, 1.0])).tolist() == [0.0, -np.inf]


def test_gumbel(variates: Tensor) -> None:
    """Absolute errors matter near 0, since G is added to scores."""
    check(run("to_gumbel", variates), -np.log(-np.log1p(-variates.double().numpy())), 5, least=0.5)


def test_log() -> None:
    x = torch.exp(torch.rand(8192, generator=torch.Generator().manual_seed(1)) * 170 - 87)
    check(run("log", x), np.log(x.double().numpy()), 3, least=0.1)
    assert run("log", torch.ones(2)).tolist() == [0.0, 0.0]


def test_exp_of_negative() -> None:
    rng = torch.Generator().manual_seed(2)
    x = torch.cat((-torch.rand(4096, generator=rng) * 87, -torch.exp(-torch.rand(4090, generator=rng) * 60)))
    check(run("exp_of_negative", x), np.exp(x.double().numpy()), 3)
    ends = torch.tensor([0.0, -0.0, -87.5, -1e30, -torch.inf])
    assert run("exp_of_negative", ends).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


@triton.jit
def order(x_ptr, key_ptr, score_ptr, packed_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    key = scores.order_key(tl.load(x_ptr + at))
    tl.store(key_ptr + at, key)
    tl.store(score_ptr + at, scores.key_score(key))
    packed = scores.pack(key, at)
    tl.store(packed_ptr + at, packed)
    tl.device_assert(scores.packed_id(packed) == at)
    tl.device_assert(scores.packed_key(packed) == key)


def test_keys_are_in_the_order_of_scores() -> None:
    bits = torch.tensor([0x7FC00001, -1, 0x7F800001], dtype=torch.int32)  # NaNs of any sign and payload
    numbers = torch.tensor([-torch.inf, -3e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3e38, torch.inf])
    x = torch.cat((numbers, bits.view(torch.float32)))
    x = torch.nn.functional.pad(x, (0, 3), value=0.5)
    device = "cpu" if INTERPRETED else "cuda"
    keys, back, packed = (torch.empty(16, dtype=dtype, device=device) for dtype in (torch.int32, torch.float32, torch.int64))
    order[(1,)](x.to(device), keys, back, packed, SIZE=16)
    key = keys.tolist()
    assert key[:4] == sorted(set(key[:4])) and key[3] < key[4] == key[5] == 0 < key[6] < key[7] < key[8] < key[9]
    assert key[10:13] == [2**31 - 1] * 3 and key[9] == -key[0] == 0x7F800000
    assert back[:10].tolist() == x[:10].tolist() and back[10:13].isnan().all()
    assert packed[4] > packed[5] > packed[3]  # of equal scores, the lower id
    assert packed[10] > packed[11] > packed[9]
