"""Race checks: kernels on small grids under ThreadSanitizer, which reports each pair of accesses that nothing orders.

`python -m tests.host_cuda.races` runs all cases, or those named; tests/host_cuda/sanitize.py gives it the build and the runtime
library. A new kernel adds a case. A grid has a dozen blocks at most: a thread is expensive here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from packed_ss.layouts.block import BlockCall
from tests.kernels.backends import BACKENDS
from tests.kernels.resolve_cases import random_case, run

from . import backend, build, device_loops, examples


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
}


def main() -> None:
    """Runs cases; ThreadSanitizer turns the exit code into 66 after a report, which follows the name of its case."""
    for name in sys.argv[1:] or CASES:
        print(name, file=sys.stderr, flush=True)
        CASES[name]()


if __name__ == "__main__":
    main()
