"""A stand-in for torch.cuda on machines without a GPU: streams and events do nothing, graphs replay what they recorded.

A graph keeps the operator calls between capture_begin and capture_end with their tensors.  Replaying calls the same
operators on the same tensors and puts the results where they were at capture, so that nothing of Python runs again: what
the host decided or allocated at capture is frozen, as on a GPU.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from packed_ss import Decoder
from packed_ss.runtime import captured


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, Tensor)]


class Watch(TorchDispatchMode):
    """Sees every operator call; hands it to the graph that is being captured, if one is.

    ``events``: "begin", "end", "replay" and "wait" in order.  ``used``: the calls seen so far, by operator, shapes and
    dtypes.  ``first_uses``: those that a capture was the first to make.
    """

    def __init__(self) -> None:
        super().__init__()
        self.capturing: FakeGraph | None = None
        self.events: list[str] = []
        self.used: set[tuple] = set()
        self.first_uses: list[tuple] = []
        self.graphs: list[FakeGraph] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = (str(func), *((tuple(t.shape), t.dtype) for t in _tensors((args, kwargs))))
        if self.capturing is None:
            self.used.add(key)
        elif key not in self.used:
            self.first_uses.append(key)
        before = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        out = func(*args, **kwargs)
        if self.capturing is not None:
            self.capturing.calls.append((func, args, kwargs, out))
            self.capturing.made += [
                (StorageWeakRef(t.untyped_storage()), tuple(t.shape))
                for t in _tensors(out)
                if t.untyped_storage().data_ptr() not in before
            ]
        return out


class FakeGraph:
    """torch.cuda.CUDAGraph, as far as a decoder uses it.

    ``calls``: operator, arguments, result of each recorded call.  ``made``: the tensors that the capture allocated.
    """

    watch: Watch

    def __init__(self, keep_graph: bool = False) -> None:
        self.calls: list[tuple[Callable, Any, Any, Any]] = []
        self.made: list[tuple[StorageWeakRef, tuple[int, ...]]] = []
        self.state = "new"

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert self.state == "new" and self.watch.capturing is None
        self.watch.events.append("begin")
        self.watch.capturing, self.state = self, "capturing"

    def capture_end(self) -> None:
        assert self.state == "capturing"
        self.watch.events.append("end")
        self.watch.capturing, self.state = None, "captured"
        self.watch.graphs.append(self)

    def instantiate(self) -> None:
        assert self.state == "captured"

    def replay(self) -> None:
        assert self.state == "captured"
        self.watch.events.append("replay")
        for func, args, kwargs, out in self.calls:
            for old, new in zip(_tensors(out), _tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def reset(self) -> None:
        self.state, self.calls, self.made = "reset", [], []

    def kept(self) -> list[tuple[int, ...]]:
        """Shapes that the capture allocated and that something besides the recording holds.  Ends the recording."""
        self.calls = []
        gc.collect()
        return [shape for storage, shape in self.made if not storage.expired()]


class FakeStream:
    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, other: FakeStream) -> None:
        pass


class FakeEvent:
    def __init__(self) -> None:
        self.at = -1

    def record(self) -> None:
        self.at = FakeGraph.watch.events.count("replay")

    def synchronize(self) -> None:
        FakeGraph.watch.events.append(f"wait {self.at}")


@contextlib.contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """torch.cuda's names that `packed_ss.runtime.graphs` uses, replaced; and a `Watch` over everything inside."""
    with monkeypatch.context() as patch:
        for name, value in {
            "CUDAGraph": FakeGraph,
            "Stream": FakeStream,
            "Event": FakeEvent,
            "graph_pool_handle": object,
            "current_stream": FakeStream,
            "synchronize": lambda device=None: None,
            "device": lambda device: contextlib.nullcontext(),
            "stream": lambda stream: contextlib.nullcontext(),
            "memory_reserved": lambda device: 0,
            "memory_allocated": lambda device: 0,
            "mem_get_info": lambda device: (2**32, 2**33),
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(captured, "_check_card", lambda device, dtype: None)
        FakeGraph.watch = Watch()
        with FakeGraph.watch:
            yield FakeGraph.watch


def host_decoder(*arguments: Any, head: str = "fused", **options: Any) -> Decoder:
    """A captured decoder of a model on the CPU, to be used inside `fake_cuda`."""
    return Decoder(*arguments, head=head, runtime="captured", **options)
