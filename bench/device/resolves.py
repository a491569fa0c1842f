"""Stage "resolves": greedy, coupled and rejection from the logits of a packed call, beside a plain read of those logits.

As many states and logits as do not fit into the L2 cache go through one graph; what is reported is the time of one of them.
States are put back between samples, outside of what is measured.  Half of each draft is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from packed_ss import ops
from packed_ss.layouts.block import BlockCall
from packed_ss.rows import Rows
from packed_ss.state import DecodeState

from .bandwidth import measure_bandwidth, plain_read
from .operators import implementations
from .record import Results
from .runtime import Sampler, copies_beyond_cache, interleave, open_runtime
from .stages import Bench

#: (mode, top-k, top-p)
CASES = (("greedy", 0, 1.0), ("coupled", 0, 1.0), ("rejection", 0, 1.0), ("coupled", 20, 0.9), ("rejection", 20, 0.9))
#: How many times the time of reading the logits once a resolve may take.
READS = 2.0
_CHANGED = ("tokens", "length", "cache_len", "draft", "draft_len", "finish_reason", "nfe", "advances", "draft_log_q")


class Operands:
    """Logits [1, 2B, V] and a state to resolve them from, ``copies`` times, random."""

    def __init__(self, bench: Bench, mode: str, copies: int | None = None) -> None:
        b, vocab, device = bench.sizes.block_size, bench.sizes.vocab, bench.device
        self.mode, self.call, self.vocab = mode, BlockCall(b, b, (0,)), vocab
        self.bytes_read = self.call.rows * vocab * bench.dtype.itemsize
        self.copies = copies or copies_beyond_cache(device, self.bytes_read, least=bench.sizes.least_copies, most=16)
        generator = torch.Generator(device).manual_seed(0)
        self.logits = torch.empty((self.copies, 1, self.call.rows, vocab), dtype=bench.dtype, device=device)
        self.logits.normal_(0.0, 3.0, generator=generator)
        self.states = [self._state(logits, device) for logits in self.logits]
        self.rows = [Rows.empty(1, self.call.rows, state.cache_len, torch.empty(0, device=device)) for state in self.states]
        self.saved = [{name: getattr(state, name).clone() for name in _CHANGED} for state in self.states]

    def _state(self, logits: Tensor, device: torch.device) -> DecodeState:
        b = self.call.block_size
        state = DecodeState.start(
            [list(range(1, 9))],
            max_new_tokens=2 * b,
            block_size=b,
            capacity=4 * b,
            stops=[[0]],
            seeds=[1],
            device=device,
            log_q=(self.vocab, torch.float32) if self.mode == "rejection" else None,
        )
        state.cache_len.copy_(state.length - 1)
        verifier = logits[:, : b - 1].float()
        if self.mode == "rejection":
            state.draft_log_q.copy_((verifier / 0.8).log_softmax(-1))
            state.draft_log_q[:, b // 2] = state.draft_log_q[:, b // 2].roll(1, -1)  # Q of this token has little to do with p
            state.draft.copy_(state.draft_log_q.argmax(-1))
        else:
            state.draft.copy_(verifier.argmax(-1))
            state.draft[:, b // 2] = (state.draft[:, b // 2] + 1) % self.vocab
        state.draft_len.fill_(b - 1)
        return state

    def restore(self) -> None:
        """The states as they were made."""
        for state, saved in zip(self.states, self.saved, strict=True):
            for name, value in saved.items():
                getattr(state, name).copy_(value)

    def resolve(self, kernel: Callable[..., None], i: int, filters: tuple[int, float]) -> None:
        """Resolves copy i, and writes the rows of the next call, as a captured iteration does."""
        state, rows, call = self.states[i], self.rows[i], self.call
        extra = (state.seed, 0.8, *filters) if self.mode != "greedy" else ()
        stored = (state.draft_log_q,) if self.mode == "rejection" else ()
        kernel(
            self.logits[i],
            *state.operands(),
            call.verifier_rows,
            call.block_size,
            list(call.cuts),
            0,
            3,
            call.verifier_rows,
            list(call.cuts),
            rows.ids,
            rows.positions,
            rows.slots,
            *extra,
            *stored,
        )

    def outcome(self) -> list[Tensor]:
        """What copy 0 has become, of integers."""
        state, rows = self.states[0], self.rows[0]
        live = torch.arange(state.draft.shape[1], device=state.draft.device) < state.draft_len[:, None]
        tokens = state.tokens[:, : int(state.length[0])]
        return [x.clone() for x in (tokens, state.length, state.draft * live, state.draft_len, rows.ids)]


def run(bench: Bench, results: Results) -> None:
    """Every case with every kernel there is, plain torch included; those that differ from it in what they decide are failures."""
    runtime = open_runtime(bench.device)
    bandwidth = measure_bandwidth(runtime, bench.sizes.copy_bytes)
    results.put("bandwidth", bandwidth)
    made: Operands | None = None
    for mode, top_k, top_p in CASES:
        if made is None or made.mode != mode:
            made = Operands(bench, mode)
        _case(bench, runtime, results, made, (top_k, top_p), bandwidth)


def _case(
    bench: Bench, runtime: Any, results: Results, operands: Operands, filters: tuple[int, float], bandwidth: dict[str, float]
) -> None:
    name = f"{operands.mode}" + (f" top-k {filters[0]} top-p {filters[1]}" if filters[0] else "")
    operator = f"resolve_{operands.mode}"
    kernels = {"torch": ops._TORCH_KERNELS[operator]} | implementations(operator, bench.device)
    entry: dict[str, Any] = {
        "case": name,
        "rows": operands.call.rows,
        "vocab": operands.vocab,
        "bytes": operands.bytes_read,
        "copies": operands.copies,
        "floor_us": operands.bytes_read / bandwidth["read_gb_s"] / 1e3,
        "obstacles": {},
    }
    samplers = {"read": Sampler(runtime, _reads(operands))}
    outcomes: dict[str, list[Tensor]] = {}
    for by, kernel in kernels.items():

        def each(kernel: Callable[..., None] = kernel) -> None:
            for i in range(operands.copies):
                operands.resolve(kernel, i, filters)

        try:
            with runtime.active():
                operands.restore()
                operands.resolve(kernel, 0, filters)
                outcomes[by] = operands.outcome()
            samplers[by] = Sampler(runtime, each, before=operands.restore)
        except Exception as error:  # a kernel that does not compile or start
            entry["obstacles"][by] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            results.fail(f"resolve {name} by {by}: {entry['obstacles'][by]}")
    times = interleave(samplers, bench.sizes.seconds)
    entry["times"] = times
    entry["us"] = {by: 1e3 * found["median_ms"] / operands.copies for by, found in times.items()}
    entry["advance"] = {by: int(outcome[1]) - 8 for by, outcome in outcomes.items()}
    results.add("resolves", entry)
    served = ops.kernels(bench.device.type)[operator]
    for by, time in entry["us"].items():
        if by == "read":
            results.row(f"{name}: a plain read", f"{time:.1f} µs", floor=f"{entry['floor_us']:.1f} µs")
            continue
        reads, judged = time / entry["us"]["read"], by == served
        results.row(
            f"{name} by {by}",
            f"{time:.1f} µs",
            floor=f"{entry['us']['read']:.1f} µs",
            target=f"at most {READS:.0f} reads" if judged else "",
            met=reads <= READS if judged else None,
            note=f"{reads:.2f} reads; advance {entry['advance'][by]}",
        )
        if "torch" in outcomes and not all(map(torch.equal, outcomes[by], outcomes["torch"])):
            results.fail(f"resolve {name} by {by} decides otherwise than plain torch")


def _reads(operands: Operands) -> Callable[[], None]:
    reads = [plain_read(logits) or logits.max for logits in operands.logits]

    def each() -> None:
        for read in reads:
            read()

    return each
