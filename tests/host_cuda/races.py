"""Race checks: kernels on small grids under ThreadSanitizer, which reports each pair of accesses that nothing orders.

`python -m tests.host_cuda.races` runs all cases, or those named; tests/host_cuda/sanitize.py gives it the build and the runtime
library. A new kernel adds a case. A grid has a dozen blocks at most: a thread is expensive here.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace

import torch

from packed_ss.layouts.block import BlockCall
from tests.kernels import ordered_cases
from tests.kernels.backends import BACKENDS
from tests.kernels.resolve_cases import random_case, run

from . import backend, build, device_loops, examples, ordered


def uniform_noise() -> None:
    """Two blocks a row, an odd number of ids, two rows with one seed."""
    backend.uniform_noise(torch.tensor([5]), torch.tensor([[3, 9]], dtype=torch.int32), 1, 1027)


def argmax() -> None:
    """Twice: launches of one stream are ordered."""
    examples.argmax(examples.random_scores(2, 300), 3, launches=2)


def warp() -> None:
    """Warp operations on all lanes and on halves."""
    examples.warp(list(range(64)))


def device_loop() -> None:
    """Two iterations for more sequences than the condition's block has threads."""
    if "device_loop" in build.libraries():
        done = device_loops.run([0] + [1] * 199, 2, lambda flags: None)
        assert done.error == "" and done.iterations == 2, done


def _resolve(mode: str, cuts: tuple[int, ...] = (0,), **sampling: float) -> None:
    """A call in the middle of a generation, of rows in two slices, and the rows of the next one."""
    [on_host] = [each for each in BACKENDS if each.name == "cuda-on-host"]
    call = BlockCall(block_size=2, verifier_rows=2, cuts=cuts)
    run(on_host, random_case(3, vocab=2051, call=call, mode=mode, n=1, drafts=1, **sampling), call)


ROWS = torch.tensor([[0, 2]], dtype=torch.int32)
POSITIONS = torch.tensor([[4, 5]], dtype=torch.int32)


def _rows(vocab: int = 2051) -> torch.Tensor:
    """Two rows, each in two slices."""
    return torch.randn(1, 2, vocab, generator=torch.Generator().manual_seed(0))


def argmax_rows() -> None:
    """With probabilities."""
    ordered.argmax_rows(_rows(), True)


def draw_rows(**filters: float) -> None:
    """With log Q."""
    ids, log_q = torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1, 2, 2051)
    ordered.draw_rows(_rows(), ROWS, POSITIONS, torch.tensor([3]), 0.8, filters.get("top_k", 0), 1.0, 0, ids, log_q)


def verify_rows() -> None:
    """The first draft is accepted, the second not."""
    logits = _rows()
    log_q = logits.log_softmax(-1) - torch.tensor([50.0, -50.0]).view(1, 2, 1)
    ordered.verify_rows(logits, ROWS, POSITIONS, torch.tensor([3]), 1.0, 0, 1.0, logits.argmax(-1).int(), log_q)


def _ordered(schedule: str, order: str) -> None:
    """A few calls by teams of eight warps: their resolves, and the rows that they had."""
    [on_host] = [each for each in BACKENDS if each.name == "cuda-on-host"]
    for step in itertools.islice(ordered_cases.generation(1, schedule, 70, order, n=1, most=100, vocab=9), 3):
        ordered_cases.resolve(on_host, step)
        ordered_cases.pack(on_host, step.state, replace(step.call, cuts=step.call.cuts[:2]))


def compact_cache() -> None:
    """Pairs that move by one slot and more, of two layers."""
    keys, values = torch.zeros(2, 1, 12, 2, 8), torch.zeros(2, 1, 12, 2, 8)
    numbers = ([8], [[0, 2, 3, 4, 5, 7, 8, 11, 0, 0, 0, 0]], [1])
    ordered.compact_cache(keys, values, *(torch.tensor(t, dtype=torch.int32) for t in numbers))


CASES: dict[str, Callable[[], None]] = {
    "uniform_noise": uniform_noise,
    "argmax": argmax,
    "warp": warp,
    "device_loop": device_loop,
    "resolve_greedy": lambda: _resolve("greedy"),
    "resolve_coupled": lambda: _resolve("coupled"),
    "resolve_rejection": lambda: _resolve("rejection"),
    "resolve_coupled, branched": lambda: _resolve("coupled", (0, 1)),
    "resolve_rejection, branched": lambda: _resolve("rejection", (0, 1)),
    "resolve_coupled, filtered": lambda: _resolve("coupled", top_k=20, top_p=0.9),
    "resolve_rejection, filtered": lambda: _resolve("rejection", top_k=20, top_p=0.9),
    "argmax_rows": argmax_rows,
    "draw_rows": draw_rows,
    "draw_rows, filtered": lambda: draw_rows(top_k=20),
    "verify_rows": verify_rows,
    "resolve_ordered and pack_ordered": lambda: _ordered("quadratic", "confidence"),
    "resolve_native and pack_ordered": lambda: _ordered("native", "left_to_right"),
    "compact_cache": compact_cache,
}


def main() -> None:
    """Runs cases; ThreadSanitizer turns the exit code into 66 after a report, which follows the name of its case."""
    for name in sys.argv[1:] or CASES:
        print(name, file=sys.stderr, flush=True)
        CASES[name]()


if __name__ == "__main__":
    main()
