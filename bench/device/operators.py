"""Stage "operators": each of torch.ops.packed_ss.* on the device beside its plain-torch version, with random operands.

What runs is whatever the operator dispatches to, and the Triton kernel besides where the dispatch goes elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packed_ss import ops
from packed_ss.layouts.block import BlockCall, tables
from packed_ss.state import DecodeState

from .record import Results
from .stages import Bench

Kernel = Callable[..., Any]
#: Relative error in the Frobenius norm that a dtype may show against float64.
ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
_B = 8


@dataclass(frozen=True)
class Case:
    """One set of operands.  ``error(kernel)`` runs a kernel on a copy of them; the result must not exceed ``accepted``."""

    operator: str
    name: str
    accepted: float
    error: Callable[[Kernel], float]


def run(bench: Bench, results: Results) -> None:
    """Every case with every kernel there is."""
    check(bench, results, cases(bench.device))


def check(bench: Bench, results: Results, which: Iterable[Case]) -> None:
    """These cases with every kernel there is; a kernel that raises is a failure, and the others go on."""
    for case in which:
        for by, kernel in implementations(case.operator, bench.device).items():
            entry: dict[str, Any] = {"operator": case.operator, "by": by, "case": case.name, "accepted": case.accepted}
            try:
                entry["error"] = case.error(kernel)
                wrong = not entry["error"] <= case.accepted
                why = f"error {entry['error']:.2e}, accepted {case.accepted:.0e}"
            except Exception as error:  # whatever a compiler or a launch raises
                wrong, why = True, entry.setdefault("raised", f"{type(error).__name__}: {error}".splitlines()[0])
            results.add("cases", entry)
            if wrong:
                results.fail(f"{case.operator} by {by}, {case.name}: {why}")
    summarise(results)


def summarise(results: Results) -> None:
    """A line of the table for each operator and kernel."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in results.values.get("cases", []):
        found.setdefault((entry["operator"], entry["by"]), []).append(entry)
    for (operator, by), entries in found.items():
        fine = sum(entry.get("error", float("nan")) <= entry["accepted"] for entry in entries)
        largest = max((entry["error"] for entry in entries if "error" in entry), default=float("nan"))
        results.row(f"{operator} by {by}", f"{fine} of {len(entries)} right", note=f"largest error {largest:.1e}")


def implementations(operator: str, device: torch.device) -> dict[str, Kernel]:
    """The kernels of an operator by who computes them."""
    kind = ops.kernels(device.type)[operator]
    found: dict[str, Kernel] = {kind: getattr(torch.ops.packed_ss, operator)}
    if device.type == "cuda" and (fused := ops._TRITON_KERNELS.get(operator)) is not None:
        found.setdefault("triton", fused)
    return found


def cases(device: torch.device) -> Iterator[Case]:
    """Small cases of every operator: several sequences, rows that fill no tile, a vocabulary that nothing divides."""
    dtypes = tuple(ERRORS) if device.type == "cuda" else (torch.float32,)
    for dtype in dtypes:
        for rows, n in ((1, 1), (9, 2), (64, 1), (72, 3)):
            yield _attention(device, dtype, rows, n)
        yield _rope(device, dtype)
        for rows in (1, 21, 64):
            yield _linear_argmax(device, dtype, rows)
    yield from _noise(device)
    yield _pack(device)
    packed, branched, first = BlockCall(_B, _B, (0,)), BlockCall(_B, _B, (0, 3)), BlockCall(1, _B, (0,), 1)
    linear = (BlockCall(_B, _B, ()), BlockCall(0, _B, (0,)))
    for mode, calls in (
        ("greedy", (packed, branched, first, *linear)),
        ("argmax", (packed, branched)),
        ("coupled", (packed, branched)),
        ("match", (packed, branched)),
        ("rejection", (packed, branched, first, *linear)),
    ):
        for call in calls:
            yield _resolve(device, mode, call, (0, 1.0))
        if mode in ("coupled", "rejection"):
            yield _resolve(device, mode, packed, (20, 0.9))
    from .ordered_operators import cases as ordered_cases

    yield from ordered_cases(device)


def relative(got: Tensor, want: Tensor) -> float:
    """Relative error in the Frobenius norm, in float64; NaN or another shape is infinite."""
    got, want = got.double(), want.double()
    if got.shape != want.shape or not bool(got.isfinite().all()):
        return float("inf")
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def _random(device: torch.device, seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape, dtype=torch.float32: torch.randn(*shape, generator=generator).to(device, dtype)


def _attention(device: torch.device, dtype: torch.dtype, rows: int, n: int) -> Case:
    random, heads, kv_heads, size, slots = _random(device, rows), 8, 2, 64, 700
    q = random(n, rows, heads, size, dtype=dtype)
    caches = [random(n, slots, kv_heads, size, dtype=dtype) for _ in range(2)]
    cache_len = torch.tensor([500 - 123 * i for i in range(n)], dtype=torch.int32, device=device)
    region = rows // 2
    mask = tables(rows - region, max(region, 1), (0,) if region else (), device).tail_mask
    for cache in caches:  # what no row sees must not reach the result
        for i in range(n):
            cache[i, int(cache_len[i]) + rows :] = torch.nan
    plain = ops._TORCH_KERNELS["tail_attention"]
    want = plain(q.double(), *(cache.double() for cache in caches), cache_len, mask, size**-0.5)
    name = f"{_name(dtype)}, {rows} rows, {n} sequences"
    return Case(
        "tail_attention", name, ERRORS[dtype], lambda kernel: relative(kernel(q, *caches, cache_len, mask, size**-0.5), want)
    )


def _rope(device: torch.device, dtype: torch.dtype) -> Case:
    random, n, rows, heads, kv_heads, size, slots = _random(device, 5), 2, 19, 6, 2, 64, 50
    q, k, v = random(n, rows, heads + 2 * kv_heads, size, dtype=dtype).split((heads, kv_heads, kv_heads), dim=2)
    cos, sin, scale = random(n, rows, size // 2), random(n, rows, size // 2), random(n, rows)
    places = torch.stack([torch.randperm(slots, generator=torch.Generator().manual_seed(i))[:rows] for i in range(n)])
    places = places.to(device, torch.int32)

    def results(kernel: Kernel) -> Tensor:
        caches = [torch.zeros(n, slots, kv_heads, size, dtype=dtype, device=device) for _ in range(2)]
        turned = kernel(q, k, v, cos, sin, scale, places, *caches)
        return torch.cat([x.flatten().double() for x in (turned, *caches)])

    want = results(ops._TORCH_KERNELS["rope_store"])
    return Case("rope_store", _name(dtype), ERRORS[dtype], lambda kernel: relative(results(kernel), want))


def _linear_argmax(device: torch.device, dtype: torch.dtype, rows: int) -> Case:
    random, vocab, size = _random(device, rows), 1003, 192
    x, weight = random(1, rows, size, dtype=dtype), random(vocab, size, dtype=dtype)
    scores = x.double() @ weight.double().T

    def error(kernel: Kernel) -> float:
        """How far the score of the chosen id is from the largest, or ``best`` from that score, relative to the scores' norm."""
        best, ids = kernel(x, weight)
        chosen = scores.gather(-1, ids.long().clamp(0, vocab - 1).unsqueeze(-1)).squeeze(-1)
        off = torch.maximum(scores.amax(-1) - chosen, (best.double() - chosen).abs())
        return float(off.max() / scores.abs().max())

    return Case("linear_argmax", f"{_name(dtype)}, {rows} rows", 1e-5, error)


def _noise(device: torch.device) -> Iterator[Case]:
    seed = torch.tensor([7, -(2**62)], dtype=torch.int64, device=device)
    place = torch.tensor([[0, 5, 99], [1, 2**30, 7]], dtype=torch.int32, device=device)
    for stream in range(3):
        want = ops._TORCH_KERNELS["uniform_noise"](seed, place, stream, 1003)
        yield Case(
            "uniform_noise",
            f"stream {stream}",
            0.0,
            lambda kernel, stream=stream, want=want: float((kernel(seed, place, stream, 1003) - want).abs().max()),
        )


def _pack(device: torch.device) -> Case:
    state, call = _state(device, BlockCall(_B, _B, (0,)), 257), BlockCall(_B, _B, (0, 2, 5))

    def rows(kernel: Kernel) -> Tensor:
        buffers = [torch.full((3, call.rows), -1, dtype=torch.int32, device=device) for _ in range(3)]
        kernel(
            state.tokens,
            state.length,
            state.cache_len,
            state.draft,
            state.draft_len,
            3,
            call.verifier_rows,
            _B,
            list(call.cuts),
            *buffers,
        )
        return torch.stack(buffers)

    want = rows(ops._TORCH_KERNELS["pack_block"])
    return Case("pack_block", "three sequences", 0.0, lambda kernel: float((rows(kernel) - want).abs().max()))


def _resolve(device: torch.device, mode: str, call: BlockCall, filters: tuple[int, float]) -> Case:
    vocab = 1003
    random = _random(device, call.rows)
    logits = 3 * random(3, call.rows, vocab)
    start, following = _state(device, call, vocab), BlockCall(_B, _B, (0,))
    for i in range(3):  # half of the draft agrees with the verifier
        for r in range(min(call.verifier_rows - 1, int(start.draft_len[i])) // 2 + i):
            logits[i, min(r, call.rows - 1), start.draft[i, min(r, _B - 2)]] += 40
    extra = (start.seed, 0.8, *filters) if mode in ("coupled", "match", "rejection") else ()

    def after(kernel: Kernel) -> list[Tensor]:
        state = DecodeState(**{f.name: getattr(start, f.name).clone() for f in dataclasses.fields(start)})
        buffers = [torch.full((3, following.rows), -1, dtype=torch.int32, device=device) for _ in range(3)]
        outputs = (logits,) if mode != "argmax" else (logits.amax(-1), logits.argmax(-1).int())
        stored = (state.draft_log_q,) if mode == "rejection" else ()
        kernel(
            *outputs,
            *state.operands(),
            call.verifier_rows,
            _B,
            list(call.cuts),
            call.shift,
            3,
            following.verifier_rows,
            list(following.cuts),
            *buffers,
            *extra,
            *stored,
        )
        live = torch.arange(_B - 1, device=device) < state.draft_len[:, None]
        tokens = torch.arange(state.tokens.shape[1], device=device) < state.length[:, None]
        weights = torch.where(live[:, :, None], state.draft_log_q.exp(), 0) if stored else torch.zeros(1, device=device)
        return [
            state.tokens * tokens,
            state.length,
            state.cache_len,
            state.draft * live,
            state.draft_len,
            state.finish_reason,
            state.nfe,
            state.advances,
            *buffers,
            weights,
        ]

    want = after(ops._TORCH_KERNELS[f"resolve_{mode}"])

    def error(kernel: Kernel) -> float:
        got = after(kernel)
        if any(not torch.equal(a, b) for a, b in zip(got[:-1], want[:-1], strict=True)):
            return float("inf")
        return float((got[-1] - want[-1]).abs().max())

    shape = f"{call.verifier_rows} verifier rows, cuts {call.cuts}" + (", first call" if call.shift else "")
    filtered = f", top-k {filters[0]} top-p {filters[1]}" if filters[0] else ""
    return Case(f"resolve_{mode}", shape + filtered, 1e-4 if mode == "rejection" else 0.0, error)


def _state(device: torch.device, call: BlockCall, vocab: int) -> DecodeState:
    """Three sequences of different lengths, the last of which has finished."""
    generator = torch.Generator().manual_seed(call.rows)
    prompts = [torch.randint(4, vocab, (length,), generator=generator).tolist() for length in (5, 9, 3)]
    state = DecodeState.start(
        prompts,
        max_new_tokens=30,
        block_size=_B,
        capacity=60,
        stops=[[0], [1, 2]],
        seeds=[3, 4, -5],
        device=device,
        log_q=(vocab, torch.float32),
    )
    state.cache_len.copy_(state.length - 1)
    log_q = (2 * torch.randn(3, _B - 1, vocab, generator=generator)).log_softmax(-1)
    state.draft_log_q.copy_(log_q)
    state.draft.copy_(log_q.argmax(-1))
    state.draft_len.copy_(torch.tensor([_B - 1, 3, 0]) if call.verifier_rows > 1 else torch.zeros(3))
    state.finish_reason.copy_(torch.tensor([0, 0, 2]))
    return state


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
