"""A watch for reads of the device: on a CPU every tensor can be read at once, on a GPU each read waits for all queued work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from packed_ss import ops as kernels
from packed_ss import sampling

#: Operators whose result's shape or value goes through the host; copies that start or end there.
READS = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "equal",
    "is_nonzero",
    "unique_dim",
    "_unique",
    "_unique2",
    "unique_consecutive",
    "unique_dim_consecutive",
    "allclose",
    "lift_fresh",
    "repeat_interleave",
)


class DeviceRead(AssertionError):
    """An operator or method that has to wait for the device."""


class NoDeviceReads(TorchDispatchMode):
    """Raises `DeviceRead` in operators that read the device, those inside packed_ss's plain-torch kernels included."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        self.seen.add(func._schema.name)
        if func.namespace == "packed_ss":  # opaque to a mode around it, so its kernel runs under this one
            with self:
                return kernels._TORCH_KERNELS[name](*args, **kwargs)
        if name in READS:
            raise DeviceRead(func._schema.name)
        indices = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
            raise DeviceRead(f"{name} by a boolean mask")
        if kwargs.get("device") is not None and args and isinstance(args[0], Tensor) and kwargs["device"] != args[0].device:
            raise DeviceRead(f"{name} from {args[0].device} to {kwargs['device']}")
        with self:  # what is made of other operators is seen by its parts
            parts = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if parts is NotImplemented else parts


@contextmanager
def no_device_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[NoDeviceReads]:
    """`NoDeviceReads`, and the methods that reach the data of a CPU tensor without an operator."""

    def refuse(name: str) -> Callable[..., Any]:
        def method(*_: Any, **__: Any) -> Any:
            raise DeviceRead(name)

        return method

    with monkeypatch.context() as patch, NoDeviceReads() as mode:
        for name in (
            "item",
            "tolist",
            "numpy",
            "cpu",
            "cuda",
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
            "__array__",
            "__contains__",
            "__iter__",
        ):
            patch.setattr(Tensor, name, refuse(name))
        patch.setattr(sampling, "_any", lambda flags: True)  # what a GPU takes: only a CPU looks
        yield mode
