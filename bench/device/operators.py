"""Stage "operators": each of torch.ops.packed_ss.* on the device beside its plain-torch version, with random operands.

What runs is whatever the operator dispatches to, and the Triton kernel besides where the dispatch goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from packed_ss import ops
from packed_ss.layouts.block import BlockCall, tables
from packed_ss.rows import BLOCK_ROWS, Rows
from packed_ss.sampling import Stream
from packed_ss.state import BlockState, sampling_settings, stops_tensor

from .record import Results
from .stages import Bench

Kernel = Callable[..., Any]
#: Relative error in the Frobenius norm that a dtype may show against float64.
ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
MASK, VOCAB = 3, 1003
_B = 8


@dataclass(frozen=True)
class Case:
    """One set of operands.  ``error(kernel)`` runs a kernel on a copy of them; the result must not exceed ``accepted``."""

    operator: str
    name: str
    accepted: float
    error: Callable[[Kernel], float]


def run(bench: Bench, results: Results) -> None:
    """Run every case with every kernel there is."""
    check(bench, results, cases(bench.device))


def check(bench: Bench, results: Results, which: Iterable[Case]) -> None:
    """Run these cases with every kernel there is; a kernel that raises is a failure, and the others go on."""
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
    """Add a line of the table for each operator and kernel."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in results.values.get("cases", []):
        found.setdefault((entry["operator"], entry["by"]), []).append(entry)
    for (operator, by), entries in found.items():
        fine = sum(entry.get("error", float("nan")) <= entry["accepted"] for entry in entries)
        largest = max((entry["error"] for entry in entries if "error" in entry), default=float("nan"))
        results.row(f"{operator} by {by}", f"{fine} of {len(entries)} right", note=f"largest error {largest:.1e}")


def implementations(operator: str, device: torch.device) -> dict[str, Kernel]:
    """Return the kernels of an operator by who computes them."""
    kind = ops.kernels(device.type)[operator]
    found: dict[str, Kernel] = {kind: getattr(torch.ops.packed_ss, operator)}
    if device.type == "cuda" and (fused := ops._TRITON_KERNELS.get(operator)) is not None:
        found.setdefault("triton", fused)
    return found


def cases(device: torch.device) -> Iterator[Case]:
    """Make small cases of every operator: several sequences, rows that fill no tile, a vocabulary that nothing divides."""
    for dtype in tuple(ERRORS) if device.type == "cuda" else (torch.float32,):
        for rows, n in ((1, 1), (9, 2), (64, 1), (72, 3)):
            yield _attention(device, dtype, rows, n)
        yield _rope(device, dtype)
        for rows in (1, 21, 64):
            yield _linear_argmax(device, dtype, rows)
        yield from _rows(device, dtype)
    yield from _noise(device)
    yield _pack(device)
    packed, branched, first = BlockCall(_B, _B, (0,)), BlockCall(_B, _B, (0, 3)), BlockCall(1, _B, (0,), 1)
    for call in (packed, branched, first, BlockCall(_B, _B, ()), BlockCall(0, _B, (0,))):
        yield _advance(device, call, call.rows)
        if call.verifier_rows:
            yield _advance(device, call, call.verifier_rows)
    from .ordered_operators import cases as ordered_cases

    yield from ordered_cases(device)


def compared(
    operator: str,
    name: str,
    accepted: float,
    arguments: tuple[Any, ...],
    observe: Callable[[Any, tuple[Any, ...]], Iterable[Tensor]] | None = None,
) -> Case:
    """Compare what a kernel makes of ``arguments`` with what plain torch does: integers must be equal, and floats close.

    ``observe(returned, arguments)`` is what to look at; by default what the schema says is written.
    """

    def outcome(kernel: Kernel) -> list[Tensor]:
        copies = tree_map_only(Tensor, torch.clone, arguments)
        returned = kernel(*copies)
        return list(observe(returned, copies) if observe else _written(operator, copies))

    want = outcome(ops._TORCH_KERNELS[operator])

    def error(kernel: Kernel) -> float:
        largest = 0.0
        for a, b in zip(outcome(kernel), want, strict=True):
            if a.is_floating_point() and a.numel():
                off = float((a - b).abs().max())
                largest = max(largest, off) if off == off else float("inf")
            elif not torch.equal(a, b):
                largest = float("inf")
        return largest

    return Case(operator, name, accepted, error)


def _written(operator: str, arguments: tuple[Any, ...]) -> list[Tensor]:
    described = getattr(torch.ops.packed_ss, operator).default._schema.arguments
    return tree_leaves([one for one, of in zip(arguments, described, strict=True) if of.is_write and one is not None])


def relative(got: Tensor, want: Tensor) -> float:
    """Return the relative error in the Frobenius norm, in float64; NaN or another shape is infinite."""
    got, want = got.double(), want.double()
    if got.shape != want.shape or not bool(got.isfinite().all()):
        return float("inf")
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def settings(device: torch.device) -> tuple[Tensor, ...]:
    """Return the settings of three sequences: unfiltered, filtered, and greedy."""
    made = sampling_settings([3, -9, 2**40], [0.8, 1.2, 0.0], [0, 20, 0], [1.0, 0.9, 1.0])
    return tuple(made[name].to(device) for name in ("seed", "temperature", "top_k", "top_p"))


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
    slots_of = torch.stack([torch.randperm(slots, generator=torch.Generator().manual_seed(i))[:rows] for i in range(n)])
    slots_of = slots_of.to(device, torch.int32)

    def results(kernel: Kernel) -> Tensor:
        caches = [torch.zeros(n, slots, kv_heads, size, dtype=dtype, device=device) for _ in range(2)]
        turned = kernel(q, k, v, cos, sin, scale, slots_of, *caches)
        return torch.cat([x.flatten().double() for x in (turned, *caches)])

    want = results(ops._TORCH_KERNELS["rope_store"])
    return Case("rope_store", _name(dtype), ERRORS[dtype], lambda kernel: relative(results(kernel), want))


def _linear_argmax(device: torch.device, dtype: torch.dtype, rows: int) -> Case:
    random, size = _random(device, rows), 192
    x, weight = random(1, rows, size, dtype=dtype), random(VOCAB, size, dtype=dtype)
    scores = x.double() @ weight.double().T

    def error(kernel: Kernel) -> float:
        """How far the score of the chosen id is from the largest, relative to the scores' norm."""
        chosen = scores.gather(-1, kernel(x, weight).long().clamp(0, VOCAB - 1).unsqueeze(-1)).squeeze(-1)
        return float((scores.amax(-1) - chosen).max() / scores.abs().max())

    return Case("linear_argmax", f"{_name(dtype)}, {rows} rows", 1e-5, error)


def _rows(device: torch.device, dtype: torch.dtype) -> Iterator[Case]:
    """Entries that are rows in turn and entries that name them, some of which nobody asks for or that have no maximum."""
    n, w = 3, _B
    generator = torch.Generator().manual_seed(4)
    logits = (3 * torch.randn(n, 2 * w, VOCAB, generator=generator)).to(device, dtype)
    logits[1, 2], logits[2, 5, 7] = -torch.inf, torch.nan
    rows = torch.tensor([[*range(w, 2 * w)], [3, -1, 5, 6, 7, -1, -1, -1], [*range(w)]], dtype=torch.int32, device=device)
    positions = torch.arange(20, 20 + n * w, dtype=torch.int32, device=device).view(n, w).clone()
    positions[0, -2:] = -1
    log_q = (2 * torch.randn(n, w, VOCAB, generator=generator)).log_softmax(-1).to(device)
    draft = log_q.argmax(-1).int()
    draft[:, -2:] = -1
    for named in (None, rows):
        ids = torch.full((n, w), -7, dtype=torch.int32, device=device)
        which = f"{_name(dtype)}, {'rows in turn' if named is None else 'rows by entry'}"
        probability = torch.zeros((n, w), device=device)
        for wanted in (None, probability):
            shown = f"{which}{'' if wanted is None else ', probability'}"
            yield compared("argmax_rows", shown, 1e-5, (logits, named, positions, None, ids, wanted))

        def drawn(_: Any, arguments: tuple[Any, ...]) -> Iterable[Tensor]:
            ids, stored, following = arguments[-4:-1]
            return ids, following, torch.where((ids >= 0).unsqueeze(-1), stored.exp(), 0)

        following = torch.full((n, w + 3), MASK, dtype=torch.int32, device=device)
        outputs = (ids, torch.zeros_like(log_q), following, 2)
        yield compared(
            "draw_rows", which, 1e-4, (logits, named, positions, None, *settings(device), int(Stream.DRAFT), *outputs), drawn
        )
    ids, taken = (torch.full((n, w), -7, dtype=torch.int32, device=device) for _ in range(2))
    yield compared("verify_rows", _name(dtype), 0.0, (logits, positions, *settings(device), draft, log_q, ids, taken))


def _noise(device: torch.device) -> Iterator[Case]:
    seed = torch.tensor([7, -(2**62)], dtype=torch.int64, device=device)
    positions = torch.tensor([[0, 5, 99], [1, 2**30, 7]], dtype=torch.int32, device=device)
    for stream in range(3):
        yield compared(
            "uniform_noise", f"stream {stream}", 0.0, (seed, positions, stream, VOCAB), lambda returned, arguments: [returned]
        )


def _pack(device: torch.device) -> Case:
    call, state = BlockCall(_B, _B, (0, 2, 5)), _state(device, BlockCall(_B, _B, (0,)))
    buffers = _buffers(state, call.rows)
    arguments = (state.operands(), MASK, call.verifier_rows, _B, list(call.cuts), buffers)
    return compared("pack_block", "three sequences", 0.0, arguments)


def _advance(device: torch.device, call: BlockCall, columns: int) -> Case:
    """The tokens of ``columns`` rows; half of the draft agrees with the verifier, or is accepted by a verifier of its own."""
    state, following = _state(device, call), BlockCall(_B, _B, (0,))
    generator = torch.Generator().manual_seed(columns)
    ids = torch.randint(4, VOCAB, (3, columns), generator=generator, dtype=torch.int32).to(device)
    half = min(call.verifier_rows, _B) // 2
    ids[:, :half] = torch.where(state.draft[:, :half] >= 0, state.draft[:, :half], ids[:, :half])
    ids[1, half : half + 1] = -1  # a row without a maximum
    own = call.verifier_rows and columns == call.verifier_rows
    accepted = (torch.arange(columns, device=device) < half).int().repeat(3, 1) if own else None
    if accepted is not None:
        accepted *= torch.nn.functional.pad(state.draft >= 0, (0, 1))[:, :columns]
    rows = _buffers(state, following.rows)
    arguments = (ids, accepted, state.operands(), call.verifier_rows, _B, list(call.cuts), call.shift,
                 MASK, following.verifier_rows, list(following.cuts), rows)  # fmt: skip

    def observe(_: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
        tokens, length, *rest = arguments[2]
        kept = torch.arange(tokens.shape[1], device=device) < length[:, None]
        return [tokens * kept, length, *rest, *arguments[-1]]

    shape = f"{call.verifier_rows} verifier rows, cuts {call.cuts}, tokens of {columns} rows"
    return compared("advance_block", shape + (", first call" if call.shift else ""), 0.0, arguments, observe)


def _buffers(state: BlockState, rows: int) -> list[Tensor]:
    made = Rows.empty(state.length.shape[0], rows, state.cache_len, torch.empty(0, device=state.length.device))
    return made.operands(len(BLOCK_ROWS))


def _state(device: torch.device, call: BlockCall) -> BlockState:
    """Three sequences of different lengths, the last of which has finished."""
    generator = torch.Generator().manual_seed(call.rows)
    state = BlockState.start(
        [torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in (5, 9, 3)],
        max_new_tokens=30,
        block_size=_B,
        capacity=60,
        sampling=dict(zip(("seed", "temperature", "top_k", "top_p"), settings(device), strict=True)),
        stops=stops_tensor([[[0], [1, 2]]] * 3),
        device=device,
    )
    state.cache_len.copy_(state.length - 1)
    state.draft.copy_(torch.randint(4, VOCAB, state.draft.shape, generator=generator))
    drafts = torch.tensor([_B - 1, 3, 0]) if call.verifier_rows > 1 else torch.zeros(3)
    state.draft.masked_fill_((torch.arange(_B - 1) >= drafts[:, None]).to(device), -1)
    state.finish_reason.copy_(torch.tensor([0, 0, 2]))
    return state


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
