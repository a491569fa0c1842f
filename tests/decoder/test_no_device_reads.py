"""The fixed-shape step, the one a GPU would capture, never reads the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from packed_ss import Branched, Decoder
from packed_ss import ops as kernels
from packed_ss.layouts.block import BlockCall
from packed_ss.ops import pack, resolve
from packed_ss.request import Request
from packed_ss.state import DecodeState
from tests.decoder.models import FullShape, small_model

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "rejection": {"temperature": 0.9, "top_k": 3, "top_p": 0.9},
    "coupled": {"temperature": 0.9, "top_k": 3, "top_p": 0.9, "verification": "coupled"},
}
STOPS: dict[str, dict[str, Any]] = {
    "none": {"eos_token_id": []},
    "ids": {"eos_token_id": [1, 4]},
    "sequences": {"stop_sequences": [[0, 4], [2, 2, 2]]},
}
#: Operators whose result's shape or value goes through the host; copies that start or end there.
READS = ("_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "masked_select", "equal", "is_nonzero", "unique_dim",
         "_unique", "_unique2", "unique_consecutive", "unique_dim_consecutive", "allclose", "lift_fresh", "repeat_interleave")


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
        for name in ("item", "tolist", "numpy", "cpu", "cuda", "__bool__", "__int__", "__float__", "__index__", "__array__",
                     "__contains__", "__iter__"):
            patch.setattr(Tensor, name, refuse(name))
        yield mode


def started(schedule: str | Branched, options: dict[str, Any], dtype: torch.dtype) -> tuple[Decoder, DecodeState, Request]:
    """A full-shape decoder with a batch of three in the middle of its work, every call warmed up.

    One sequence has finished: its part of the step is a no-op.
    """
    caught: list[tuple[DecodeState, Request]] = []

    class Catching(FullShape):
        def step(self, state: DecodeState, request: Request, call: BlockCall, slots: int) -> None:
            super().step(state, request, call, slots)
            caught.append((state, request))

    decoder = Catching(small_model(2, dtype=dtype), schedule, 4, max_length=48, batch_size=3)
    decoder.generate([[0, 2], [4, 1, 0, 2], [3]], 5, **options)
    state, request = caught[-1]
    state.finish_reason[1:] = 0  # running again, as far as the step can tell
    state.limit.add_(20)
    return decoder, state, request


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schedule", ["autoregressive", "linear", "packed", "quadratic", Branched((0, 2))], ids=str)
def test_the_step_reads_nothing(monkeypatch: pytest.MonkeyPatch, mode: str, schedule: str | Branched) -> None:
    for stops in STOPS.values():
        for dtype in (torch.float32, torch.bfloat16):
            decoder, state, request = started(schedule, MODES[mode] | stops, dtype)
            before = state.nfe.tolist()
            with torch.no_grad(), no_device_reads(monkeypatch) as watched:
                for call in decoder.schedule.cycle * 2:
                    Decoder.step(decoder, state, request, call, decoder.cache.capacity)
            assert [after - nfe for after, nfe in zip(state.nfe.tolist(), before, strict=True)][2] >= 1
            assert {f"packed_ss::resolve_{mode}", "packed_ss::pack_block", "packed_ss::tail_attention",
                    "packed_ss::rope_store", "aten::mm"} <= watched.seen
            assert "aten::scatter_" in watched.seen  # inside commit, and so inside an operator of packed_ss


PLANTED: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda length: length.max().item(),
    "bool": lambda length: bool((length > 0).all()),
    "int": lambda length: int(length[0]),
    "branch": lambda length: 1 if length[0] > 3 else 2,
    "boolean mask": lambda length: length[length > 2],
    "boolean mask assignment": lambda length: length.__setitem__(length < 0, 0),
    "nonzero": lambda length: length.nonzero(),
    "where with one argument": lambda length: torch.where(length > 2),
    "masked_select": lambda length: length.masked_select(length > 2),
    "unique": lambda length: length.unique(),
    "equal": lambda length: torch.equal(length, length),
    "tolist": lambda length: length.tolist(),
    "numpy": lambda length: length.numpy(),
    "cpu": lambda length: length.cpu(),
    "to meta": lambda length: length.to("meta"),
    "iteration": lambda length: list(length),
    "tensor from the host": lambda length: torch.tensor([1, 2]),
    "slice by a tensor": lambda length: length[: length[0]],
}


@pytest.mark.parametrize("place", ["pack", "resolve"])
@pytest.mark.parametrize("read", PLANTED)
def test_a_read_planted_in_a_kernel_is_found(monkeypatch: pytest.MonkeyPatch, read: str, place: str) -> None:
    decoder, state, request = started("packed", MODES["rejection"], torch.float32)
    module, name = (pack, "table_range") if place == "pack" else (resolve, "commit")
    original = getattr(module, name)

    def planted(*arguments: Any) -> Any:
        PLANTED[read](state.length)
        return original(*arguments)

    monkeypatch.setattr(module, name, planted)
    with pytest.raises(DeviceRead), torch.no_grad(), no_device_reads(monkeypatch):
        Decoder.step(decoder, state, request, decoder.schedule.cycle[0], decoder.cache.capacity)
