"""The backends that kernel tests run on: the same operators, by whoever computes them.

A backend that cannot run here says why, and its tests are skipped with that reason.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from packed_ss import ops
from packed_ss.ops import native

from ..host_cuda import build

#: Operators that write to what they are given.
OPERATORS = (
    "argmax_rows", "draw_rows", "verify_rows", "pack_block", "advance_block", "pack_ordered", "advance_ordered",
    "advance_native", "compact_cache",
)  # fmt: skip
CUDA_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*CUDA_DTYPES, torch.float64)
#: Whether Triton kernels run in its interpreter, on CPU tensors: one program after the other, milliseconds each.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Backend:
    """Operators, called by name with the arguments of their schema, as CPU tensors wherever they run.

    ``find``: the function of an operator, None where there is none.  ``unavailable``: why it cannot run, empty when it can.
    ``checks``: whether it refuses bad operands by itself.  ``dtypes``: of the logits that it takes.  ``slow``: a call takes
    so long that tests should try few.
    """

    name: str
    find: Callable[[str], Callable[..., Any] | None]
    unavailable: Callable[[], str] = lambda: ""
    on_gpu: bool = False
    checks: bool = True
    dtypes: tuple[torch.dtype, ...] = DTYPES
    slow: bool = False

    def __call__(self, operator: str, *arguments: Any) -> Any:
        """Run an operator; skip the running test where it is missing, or does not take these logits."""
        function = self.find(operator)
        if function is None:
            pytest.skip(f"{self.name} has no {operator}")
        if arguments and isinstance(arguments[0], Tensor) and arguments[0].is_floating_point():
            self.need(arguments[0].dtype)
        return (on_gpu(function) if self.on_gpu else function)(*arguments)

    def need(self, dtype: torch.dtype) -> None:
        """Skip the running test where logits of this dtype are not taken."""
        if dtype not in self.dtypes:
            pytest.skip(f"{self.name} takes no {dtype}")

    def need_checks(self) -> None:
        """Skip the running test where operands are not checked, or are on another device than the test gives."""
        if not self.checks or self.on_gpu:
            pytest.skip("checks are tested on CPU tensors, of backends that have them")

    def some(self, cases: Iterable[_Item], few: int = 1) -> list[_Item]:
        """All of the cases, or no more than ``few`` of them, spread evenly, where a call takes long."""
        listed = list(cases)
        return listed[:: -(-len(listed) // few)] if self.slow else listed

    def skip_most(self, case: int, of: int) -> None:
        """Skip the running test, but for one case in so many, where a call takes long."""
        if self.slow and case % of:
            pytest.skip("slow: a part of the combinations")


def on_gpu(function: Callable[..., Any], device: str = "cuda") -> Callable[..., Any]:
    """``function`` on copies of its CPU arguments on the GPU; what it writes to them is copied back.

    Whole buffers are copied, so that views keep their strides, what lies around them, and what they share.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        buffers: dict[int, tuple[Tensor, Tensor]] = {}

        def there(x: Any) -> Any:
            if isinstance(x, list):
                return [there(one) for one in x]
            if not isinstance(x, Tensor):
                return x
            storage = x.untyped_storage()
            if storage.data_ptr() not in buffers:
                here = torch.empty(0, dtype=torch.uint8).set_(storage)
                buffers[storage.data_ptr()] = here, here.to(device, copy=True)
            target = buffers[storage.data_ptr()][1].untyped_storage()
            return torch.empty(0, dtype=x.dtype, device=device).set_(target, x.storage_offset(), x.shape, x.stride())

        out = function(*map(there, arguments), **options)
        for here, copy in buffers.values():
            here.copy_(copy)
        return out.cpu() if isinstance(out, Tensor) else out

    return call


def _dispatched(device: str) -> Callable[[str], Callable[..., Any] | None]:
    """What ``torch.ops`` runs on a device: compiled on the CPU; compiled, Triton or plain torch on a GPU."""
    return lambda name: getattr(torch.ops.packed_ss, name) if device == "cuda" or name in native.kernels(device) else None


def _on_host(name: str) -> Callable[..., Any] | None:
    return getattr(importlib.import_module("tests.host_cuda.operators"), name, None)


def _in_triton(name: str) -> Callable[..., Any] | None:
    package = importlib.import_module("packed_ss.triton_kernels")
    module = package.MODULES.get(name)
    return None if module is None else getattr(importlib.import_module(f"{package.__name__}.{module}"), name)


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


def _no_native() -> str:
    return "" if native.available() else f"no native kernels: {native.reason()}"


def _no_gpu() -> str:
    return "" if torch.cuda.is_available() else "no GPU"


BACKENDS = (
    Backend("torch", lambda name: ops._TORCH_KERNELS[name]),
    Backend("cpu", _dispatched("cpu"), _no_native),
    Backend("cuda-on-host", _on_host, _no_compiler, checks=False, dtypes=CUDA_DTYPES),
    Backend("cuda", _dispatched("cuda"), _no_gpu, on_gpu=True, dtypes=CUDA_DTYPES),
    Backend("triton", _in_triton, no_triton, on_gpu=not INTERPRETED, dtypes=CUDA_DTYPES, slow=INTERPRETED),
)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn."""
    if reason := request.param.unavailable():
        pytest.skip(reason)
    return request.param
