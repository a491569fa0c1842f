"""The fixed-shape step, the one a GPU would capture, never reads the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from packed_ss import Branched, Decoder
from packed_ss.layouts.block import BlockCall
from packed_ss.ops import advance_block, pack
from packed_ss.request import Request
from packed_ss.state import BlockState
from tests.decoder.models import FullShape, small_model
from tests.support.device_reads import DeviceRead, no_device_reads

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


def started(schedule: str | Branched, options: dict[str, Any], dtype: torch.dtype) -> tuple[Decoder, BlockState, Request]:
    """A full-shape decoder with a batch of three in the middle of its work, every call warmed up.

    One sequence has finished: its part of the step is a no-op.
    """
    caught: list[tuple[BlockState, Request]] = []

    class Catching(FullShape):
        def step(self, state: BlockState, request: Request, call: BlockCall, slots: int) -> None:
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
            rows = {"greedy": {"argmax_rows"}, "coupled": {"draw_rows"}, "rejection": {"verify_rows", "draw_rows"}}[mode]
            if not decoder.schedule.proposes:
                rows = rows - {"draw_rows"} if mode == "rejection" else rows
            assert {f"packed_ss::{name}" for name in rows} | {
                "packed_ss::advance_block",
                "packed_ss::pack_block",
                "packed_ss::tail_attention",
                "packed_ss::rope_store",
                "aten::mm",
            } <= watched.seen
            assert "aten::scatter_" in watched.seen  # inside the advance, and so inside an operator of packed_ss


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


@pytest.mark.parametrize("place", ["pack", "advance"])
@pytest.mark.parametrize("read", PLANTED)
def test_a_read_planted_in_a_kernel_is_found(monkeypatch: pytest.MonkeyPatch, read: str, place: str) -> None:
    decoder, state, request = started("packed", MODES["rejection"], torch.float32)
    module, name = (pack, "tables") if place == "pack" else (advance_block, "_commit")
    original = getattr(module, name)

    def planted(*arguments: Any) -> Any:
        PLANTED[read](state.length)
        return original(*arguments)

    monkeypatch.setattr(module, name, planted)
    with pytest.raises(DeviceRead), torch.no_grad(), no_device_reads(monkeypatch):
        Decoder.step(decoder, state, request, decoder.schedule.cycle[0], decoder.cache.capacity)
