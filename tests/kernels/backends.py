"""The backends that kernel tests run on: the same operators, by whoever computes them.

A backend that cannot run here says why, and its tests are skipped with that reason.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import pytest
import torch

from packed_ss.ops import native, ordered, pack, pack_ordered, resolve, rows

from ..host_cuda import build, resolves

OPERATORS = ("pack_block", "resolve_greedy", "resolve_coupled", "resolve_rejection")
#: Those of the ordered layout; a backend that has not all of them has the others all the same.
ORDERED_OPERATORS = (
    "argmax_rows",
    "draw_rows",
    "verify_rows",
    "resolve_ordered",
    "resolve_native",
    "compact_cache",
    "pack_ordered",
)
CUDA_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Whether Triton kernels run in its interpreter, on CPU tensors: one program after the other, milliseconds each.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Backend:
    """Operators by name, which take the arguments of their schema in order; ``device`` is where the tensors must be.

    ``obstacle``: why it cannot run, empty when it can.  ``checks``: whether it refuses bad input by itself.  ``dtypes``: of the
    logits that the resolves take.  ``slow``: a call takes so long that tests should try few.
    """

    name: str
    load: Callable[[], Mapping[str, Callable[..., None]]]
    obstacle: Callable[[], str] = lambda: ""
    device: str = "cpu"
    checks: bool = True
    dtypes: tuple[torch.dtype, ...] = (*CUDA_DTYPES, torch.float64)
    slow: bool = False

    @cached_property
    def ops(self) -> Mapping[str, Callable[..., None]]:
        return self.load()

    def need(self, *operators: str) -> None:
        """Skips the running test where one of these operators is missing."""
        if missing := [name for name in operators if name not in self.ops]:
            pytest.skip(f"{self.name} has no {', '.join(missing)}")

    def some(self, cases: Iterable[_Item], few: int) -> list[_Item]:
        """All of the cases, or no more than ``few`` of them, spread evenly, where a call takes long."""
        listed = list(cases)
        return listed[:: -(-len(listed) // few)] if self.slow else listed


def _plain_torch() -> Mapping[str, Callable[..., None]]:
    modules = pack, resolve, rows, ordered, pack_ordered
    return {
        name: next(getattr(module, name) for module in modules if hasattr(module, name))
        for name in (*OPERATORS, "resolve_argmax", *ORDERED_OPERATORS)
    }


def _dispatched(device: str) -> Mapping[str, Callable[..., None]]:
    compiled = native.info()["kernels"][device]
    names = *OPERATORS, "resolve_argmax", *(name for name in ORDERED_OPERATORS if name in compiled)
    return {name: getattr(torch.ops.packed_ss, name) for name in names}


def _on_host() -> Mapping[str, Callable[..., None]]:
    found = {name: getattr(resolves, name) for name in OPERATORS}
    if importlib.util.find_spec("tests.host_cuda.ordered") is not None:
        module = importlib.import_module("tests.host_cuda.ordered")
        found |= {name: getattr(module, name) for name in ORDERED_OPERATORS if hasattr(module, name)}
    return found


def _in_triton() -> Mapping[str, Callable[..., None]]:
    package = importlib.import_module("packed_ss.triton_kernels")
    names = (name for name in (*OPERATORS, "resolve_argmax", *ORDERED_OPERATORS) if name in package.MODULES)
    return {name: getattr(importlib.import_module(f"{package.__name__}.{package.MODULES[name]}"), name) for name in names}


def no_triton() -> str:
    """Why the Triton kernels do not run here."""
    if importlib.util.find_spec("triton") is None:
        return "no Triton"
    return "" if INTERPRETED or torch.cuda.is_available() else "no GPU, and no interpreter without TRITON_INTERPRET=1"


def _no_compiler() -> str:
    """Why the CUDA sources do not run on the CPU here."""
    try:
        build.compiler()
    except build.NotBuilt as reason:
        return f"no CUDA sources on the host: {reason}"
    return ""


def _lacks(device: str) -> str:
    """Why the native kernels of a device do not run here."""
    if not native.available():
        return f"no native kernels: {native.reason()}"
    if device == "cuda" and not torch.cuda.is_available():
        return "no GPU"
    missing = sorted({*OPERATORS} - {*native.info()["kernels"][device]})
    return f"no {device} kernels of {', '.join(missing)}" if missing else ""


BACKENDS = (
    Backend("torch", _plain_torch),
    Backend("cpu", lambda: _dispatched("cpu"), lambda: _lacks("cpu")),
    Backend("cuda-on-host", _on_host, _no_compiler, checks=False, dtypes=CUDA_DTYPES),
    Backend("cuda", lambda: _dispatched("cuda"), lambda: _lacks("cuda"), device="cuda", dtypes=CUDA_DTYPES),
    Backend("triton", _in_triton, no_triton, device="cpu" if INTERPRETED else "cuda", dtypes=CUDA_DTYPES, slow=INTERPRETED),
)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn."""
    obstacle = request.param.obstacle()
    if obstacle:
        pytest.skip(obstacle)
    return request.param
