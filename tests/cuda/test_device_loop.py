"""packed_ss.runtime.device_loop: what it accepts, why it is not there, and, on a GPU, that it stops where it should."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss.ops import native
from packed_ss.runtime import device_loop
from packed_ss.runtime.device_loop import DeviceLoop

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available() or bool(device_loop.unavailable()), reason="no GPU for a device loop")


class Flags:
    """What DeviceLoop looks at of a tensor on a GPU."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.int32, contiguous: bool = True) -> None:
        self.shape, self.dtype, self.device = shape, dtype, torch.device("cuda:1")
        self.dim, self.is_contiguous, self.data_ptr = lambda: len(shape), lambda: contiguous, lambda: 4096

    def __len__(self) -> int:
        return self.shape[0]


# ---- Why it is not there -----------------------------------------------------------------------------------------------------


def test_a_build_without_cuda_says_so() -> None:
    if native.module() is None or torch.version.cuda is not None:
        pytest.skip("no native module, or one that may have CUDA")
    assert device_loop.unavailable() == f"packed_ss._C was built without a device loop (CUDA: {native.info()['cuda']})."


def test_without_the_native_module_its_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_module", None)
    monkeypatch.setattr(native, "_reason", "no C++ compiler.")
    assert device_loop.unavailable() == "packed_ss._C is not loaded: no C++ compiler."


def test_a_torch_that_keeps_graphs_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_module", SimpleNamespace(device_loop_obstacle=lambda: ""))
    assert device_loop.unavailable() == ""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    assert "CUDAGraph.raw_cuda_graph came with torch 2.8." in device_loop.unavailable()


# ---- What it accepts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1, 2**31, True, 2.0, "5"])
def test_limits_that_are_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"limit is .*, but it must be a whole number in 1 \.\.\. 2\^31 - 1"):
        DeviceLoop(SimpleNamespace(), Flags(3), limit)


@pytest.mark.parametrize("tensor", [Flags(3, dtype=torch.int64), Flags(3, 1), Flags(), Flags(3, contiguous=False)])
def test_flags_that_are_refused(tensor: Any) -> None:
    with pytest.raises(ValueError, match=r"finish_reason is torch\.int\d+ \[.*\], but it must be contiguous int32 \[N\]"):
        DeviceLoop(SimpleNamespace(), tensor, 5)


def test_flags_on_another_device_are_refused() -> None:
    with pytest.raises(ValueError, match="finish_reason is on cpu, but it must be on the GPU of the captured graph"):
        DeviceLoop(SimpleNamespace(), torch.zeros(2, dtype=torch.int32), 5)


def test_an_obstacle_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_module", SimpleNamespace(device_loop_obstacle=lambda: "there is no CUDA driver."))
    with pytest.raises(RuntimeError, match=r"^there can be no device loop: there is no CUDA driver\.$"):
        DeviceLoop(SimpleNamespace(), Flags(3), 5)


# ---- What it hands on --------------------------------------------------------------------------------------------------------


def test_addresses_and_stream_go_to_the_native_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple] = []
    launched: list[int] = []
    loop = SimpleNamespace(launch=launched.append)
    module = SimpleNamespace(device_loop_obstacle=lambda: "", DeviceLoop=lambda *arguments: (made.append(arguments), loop)[1])
    count = torch.zeros(1, dtype=torch.int32)
    devices: list[torch.device] = []
    monkeypatch.setattr(native, "_module", module)
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: count if (size, dtype) == (1, torch.int32) else None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(devices.append(device)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77 + device.index))
    ours = DeviceLoop(SimpleNamespace(raw_cuda_graph=lambda: 55), Flags(3), 9)
    ours.launch()
    assert made == [(55, 4096, 3, count.data_ptr(), 9)]
    assert devices == [torch.device("cuda:1")]
    assert launched == [78]
    assert ours.iterations is count


# ---- On a GPU ----------------------------------------------------------------------------------------------------------------


class Countdown:
    """An iteration on the GPU after whose lengths[i]-th run sequence i has finished, captured; `runs` counts on the device."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.flags = torch.zeros_like(self.lengths)
        self.runs = torch.zeros(1, dtype=torch.int32, device="cuda")
        # A matrix product, since cuBLAS has kernels of its own, and a copy and a fill, which are nodes of other kinds.
        self.matrix = torch.eye(64, device="cuda", dtype=torch.bfloat16)
        self.copy = torch.empty_like(self.matrix)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph, stream=stream):
            self.run()
        self.reset()

    def run(self) -> None:
        self.copy.zero_()
        self.copy.copy_(self.matrix)
        product = self.copy @ self.matrix
        self.runs += product[0, 0].to(torch.int32)
        self.flags.copy_(torch.where((self.flags == 0) & (self.runs >= self.lengths), torch.ones_like(self.flags), self.flags))

    def reset(self, flags: Tensor | None = None) -> None:
        self.runs.zero_()
        self.flags.zero_() if flags is None else self.flags.copy_(flags)


@ON_GPU
@pytest.mark.parametrize("lengths", [[1], [7], [3, 1, 2], [2] * 128 + [4]])
def test_on_a_gpu_it_runs_until_every_sequence_has_finished(lengths: list[int]) -> None:
    countdown = Countdown(lengths)
    loop = DeviceLoop(countdown.graph, countdown.flags, 1000)
    for _ in range(2):
        countdown.reset()
        loop.launch()
        assert (countdown.runs.item(), loop.iterations.item()) == (max(lengths), max(lengths))


@ON_GPU
def test_on_a_gpu_nothing_runs_where_all_have_finished() -> None:
    countdown = Countdown([5, 5])
    loop = DeviceLoop(countdown.graph, countdown.flags, 1000)
    countdown.reset(torch.tensor([1, 3], dtype=torch.int32))
    loop.launch()
    assert (countdown.runs.item(), loop.iterations.item()) == (0, 0)


@ON_GPU
def test_on_a_gpu_the_limit_ends_what_never_finishes() -> None:
    countdown = Countdown([10**9])
    loop = DeviceLoop(countdown.graph, countdown.flags, 25)
    loop.launch()
    assert (countdown.runs.item(), loop.iterations.item()) == (25, 25)


@ON_GPU
def test_on_a_gpu_a_launch_waits_for_nothing() -> None:
    countdown = Countdown([50])
    loop = DeviceLoop(countdown.graph, countdown.flags, 1000)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loop.launch()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    del loop  # while it may be running
    assert countdown.runs.item() == 50


@ON_GPU
def test_on_a_gpu_a_refused_graph_leaves_torch_as_it_was() -> None:
    class Nothing:
        def raw_cuda_graph(self) -> int:
            return 0

    flags = torch.zeros(1, dtype=torch.int32, device="cuda")
    with pytest.raises(RuntimeError, match=r"^cuda\w+ failed: .*\.$"):
        DeviceLoop(Nothing(), flags, 5)
    assert (flags + 1).item() == 1
