"""Stage "resolves": greedy, coupled and rejection from the logits of a packed call, beside a plain read of those logits.

As many states and logits as do not fit into the L2 cache go through one graph; what is reported is the time of one of them.
States are put back between samples, outside of what is measured.  Half of each draft is accepted.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from packed_ss import ops
from packed_ss.evaluation.bench.bandwidth import measure_bandwidth, plain_read
from packed_ss.evaluation.bench.clock import Sampler, copies_beyond_cache, interleave, open_runtime
from packed_ss.layouts.block_layout import BlockLayout
from packed_ss.models.attention import SlotCache
from packed_ss.request import Request
from packed_ss.resolve import Resolver
from packed_ss.state import BlockState, sampling_settings, stops_tensor

from .models import SHAPES
from .record import Results
from .stages import Bench

#: (mode, top-k, top-p)
CASES = (("greedy", 0, 1.0), ("coupled", 0, 1.0), ("rejection", 0, 1.0), ("coupled", 20, 0.9), ("rejection", 20, 0.9))
#: The operators of a resolve.
OPERATORS = ("argmax_rows", "draw_rows", "verify_rows", "advance_block", "pack_block")
#: How many times the time of reading the logits once a resolve may take.
READS = 2.0
PROMPT = list(range(1, 9))


class Operands:
    """Logits [1, 2B, V] and a state to resolve them from, ``copies`` times, random.

    ``captured``: as in a captured iteration, whose resolve also writes the rows of the next call.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        mode: str,
        *,
        block_size: int,
        vocab: int,
        filters: tuple[int, float] = (0, 1.0),
        least_copies: int = 1,
        captured: bool = True,
    ) -> None:
        b = block_size
        config = dataclasses.replace(SHAPES["mini"], vocab_size=vocab)
        self.layout = BlockLayout(config, "packed", b, False)
        (self.call,) = self.layout.schedule.cycle
        self.following = self.call if captured else None
        self.resolver, self.cache = Resolver(self.layout), SlotCache(config, 1, 1, dtype, device)
        self.bytes_read = self.call.rows * vocab * dtype.itemsize
        self.copies = 1 if least_copies == 1 else copies_beyond_cache(device, self.bytes_read, least=least_copies, most=16)
        temperature = 0.0 if mode == "greedy" else 0.8
        self.request = Request([PROMPT], 2 * b, mode, [temperature], [filters[0]], [filters[1]], [1], [[[0]]])
        generator = torch.Generator(device).manual_seed(0)
        self.logits = torch.empty((self.copies, 1, self.call.rows, vocab), dtype=dtype, device=device)
        self.logits.normal_(0.0, 3.0, generator=generator)
        self.states = [self._state(logits) for logits in self.logits]
        self.rows = [self.layout.buffers(state, self.call) for state in self.states]
        self._saved = [{f.name: getattr(state, f.name).clone() for f in dataclasses.fields(state)} for state in self.states]
        self.restore()

    def _state(self, logits: Tensor) -> BlockState:
        b, vocab, request = self.call.block_size, logits.shape[-1], self.request
        rejects = request.verification == "rejection"
        state = self.layout.new_state(
            request,
            logits.device,
            capacity=4 * b,
            sampling=sampling_settings(request.seeds, request.temperature, request.top_k, request.top_p),
            stops=stops_tensor(request.stops),
            log_q=(vocab, torch.float32) if rejects else None,
        )
        state.cache_len.copy_(state.length - 1)
        verifier = logits[:, : b - 1].float()
        if rejects:
            state.draft_log_q.copy_((verifier / 0.8).log_softmax(-1))
            state.draft_log_q[:, b // 2] = state.draft_log_q[:, b // 2].roll(1, -1)  # Q of this token has little to do with p
            state.draft.copy_(state.draft_log_q.argmax(-1))
        else:
            state.draft.copy_(verifier.argmax(-1))
            state.draft[:, b // 2] = (state.draft[:, b // 2] + 1) % vocab
        return state

    def restore(self) -> None:
        """Put states and rows back as they were made."""
        for state, saved in zip(self.states, self._saved, strict=True):
            for name, value in saved.items():
                getattr(state, name).copy_(value)
            self.layout.pack(state, self.call, self.cache.capacity - 1)

    def resolve(self, i: int, outputs: Tensor | None = None) -> None:
        """Resolve copy i, by default from its logits."""
        outputs = self.logits[i] if outputs is None else outputs
        self.resolver(outputs, self.rows[i], self.states[i], self.request, self.call, self.following, self.cache)

    def resolve_all(self) -> None:
        """Resolve every copy."""
        for i in range(self.copies):
            self.resolve(i)

    def read_all(self) -> Callable[[], None]:
        """Return a run that reads the logits of every copy."""
        reads = [plain_read(logits) for logits in self.logits]

        def run() -> None:
            for read in reads:
                read()

        return run

    def outcome(self) -> list[Tensor]:
        """What copy 0 has become, of integers."""
        state, rows = self.states[0], self.rows[0]
        tokens = state.tokens[:, : int(state.length[0])]
        return [x.clone() for x in (tokens, state.length, state.draft, rows.ids)]


@contextlib.contextmanager
def using(kernels: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Inside, torch.ops.packed_ss has these kernels by operator, in place of those that it dispatches to."""
    names = torch.ops.packed_ss
    served = {name: getattr(names, name) for name in kernels}
    try:
        for name, kernel in kernels.items():
            setattr(names, name, kernel)
        yield
    finally:
        for name, kernel in served.items():
            setattr(names, name, kernel)


def variants(device: torch.device) -> dict[str, dict[str, Callable[..., Any]]]:
    """Kernels to put in place by what to call them: those dispatched to, Triton's where they are others, and plain torch."""
    served = ops.kernels(device.type)
    found: dict[str, dict[str, Callable[..., Any]]] = {served["advance_block"]: {}}
    if device.type == "cuda" and "triton" not in served.values():
        found["triton"] = {name: ops._TRITON_KERNELS[name] for name in OPERATORS if name in ops._TRITON_KERNELS}
    return found | {"torch": {name: ops._TORCH_KERNELS[name] for name in OPERATORS}}


def run(bench: Bench, results: Results) -> None:
    """Every case with every kernel there is, plain torch included; those that differ from it in what they decide are failures."""
    runtime = open_runtime(bench.device)
    bandwidth = measure_bandwidth(runtime, bench.sizes.copy_bytes)
    results.put("bandwidth", bandwidth)
    for mode, *filters in CASES:
        operands = Operands(
            bench.device,
            bench.dtype,
            mode,
            block_size=bench.sizes.block_size,
            vocab=bench.sizes.vocab,
            filters=tuple(filters),
            least_copies=bench.sizes.least_copies,
        )
        _case(
            bench, runtime, results, mode + (f" top-k {filters[0]} top-p {filters[1]}" if filters[0] else ""), operands, bandwidth
        )


def _case(bench: Bench, runtime: Any, results: Results, name: str, operands: Operands, bandwidth: dict[str, float]) -> None:
    entry: dict[str, Any] = {
        "case": name,
        "rows": operands.call.rows,
        "vocab": operands.logits.shape[-1],
        "bytes": operands.bytes_read,
        "copies": operands.copies,
        "floor_us": operands.bytes_read / bandwidth["read_gb_s"] / 1e3,
        "unavailable": {},
    }
    samplers = {"read": Sampler(runtime, operands.read_all())}
    outcomes: dict[str, list[Tensor]] = {}
    for by, kernels in variants(bench.device).items():
        run = operands.resolve_all if not kernels else _with(kernels, operands.resolve_all)
        try:
            with runtime.active():
                operands.restore()
                run()
                outcomes[by] = operands.outcome()
            samplers[by] = Sampler(runtime, run, before=operands.restore)
        except Exception as error:  # a kernel that does not compile or start
            entry["unavailable"][by] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            results.fail(f"resolve {name} by {by}: {entry['unavailable'][by]}")
    times = interleave(samplers, bench.sizes.seconds)
    entry["times"] = times
    entry["us"] = {by: 1e3 * found["median_ms"] / operands.copies for by, found in times.items()}
    entry["advance"] = {by: int(outcome[1]) - len(PROMPT) for by, outcome in outcomes.items()}
    results.add("resolves", entry)
    served = next(iter(variants(bench.device)))
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


def _with(kernels: Mapping[str, Callable[..., Any]], run: Callable[[], None]) -> Callable[[], None]:
    def run_with() -> None:
        with using(kernels):
            run()

    return run_with
