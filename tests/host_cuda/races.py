"""Race checks: kernels on small grids under ThreadSanitizer, which reports each pair of accesses that nothing orders.

`python -m tests.host_cuda.races` runs all cases, or those named; tests/host_cuda/sanitize.py gives it the build and the runtime
library. A new kernel adds a case. A grid has a dozen blocks at most: a thread is expensive here.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import torch

from packed_ss.state import sampling_settings

from . import backend, build, device_loops, examples, operators
from . import test_operators_on_host as cases


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


def _logits(vocab: int = 2051) -> torch.Tensor:
    """Three rows of one sequence, each in two splits."""
    return torch.randn(1, 3, vocab, generator=torch.Generator().manual_seed(0))


def _sampling(temperature: float, top_k: int, top_p: float) -> tuple[torch.Tensor, ...]:
    return tuple(sampling_settings([3], [temperature], [top_k], [top_p]).values())


PLAIN, FILTERED, GREEDY = (0.8, 0, 1.0), (0.8, 20, 0.9), (0.0, 0, 1.0)
POSITIONS = torch.tensor([[4, 5, 6]], dtype=torch.int32)


def _ids() -> torch.Tensor:
    return torch.zeros(1, 3, dtype=torch.int32)


def argmax_rows() -> None:
    """With probabilities."""
    operators.argmax_rows(_logits(), None, POSITIONS, None, _ids(), torch.zeros(1, 3))


def draw_rows(*settings: float) -> None:
    """With log Q and tokens for the next call."""
    arguments = *_sampling(*settings), 0, _ids(), torch.zeros(1, 3, 2051), torch.zeros(1, 5, dtype=torch.int32), 1
    operators.draw_rows(_logits(), None, POSITIONS, None, *arguments)


def verify_rows(*settings: float) -> None:
    """The first draft is accepted, the second not."""
    logits = _logits()
    log_q = logits[:, :2].log_softmax(-1) - torch.tensor([50.0, -50.0]).view(1, 2, 1)
    draft = logits[:, :2].argmax(-1).int()
    operators.verify_rows(logits, POSITIONS, *_sampling(*settings), draft, log_q, _ids(), _ids())


def block(call: str) -> None:
    """Calls of several shapes, by teams of a warp and of eight, with the rows before and after."""
    cases.advance_blocks(operators, operators, call, 1)


def ordered(call: str) -> None:
    """A few calls by teams of eight warps, and their rows."""
    waiting, drafts, verifies, cuts, _, _ = cases.ORDERED_CALLS[call]
    for state, *results in itertools.islice(cases.generation(call, 70, 1), 3):
        shape = waiting, 70, drafts, verifies, cuts(70)
        rows = [torch.zeros(3, waiting + (drafts + verifies + len(shape[-1])) * 70, dtype=torch.int32) for _ in range(4)]
        rows.append(torch.zeros(*rows[0].shape, -(-rows[0].shape[1] // 32), dtype=torch.int32))
        operators.pack_ordered(state.operands(), cases.MASK, 500, *shape, rows)
        cases.advance(operators, state.operands(), call, *results, cases.following(70, cases.Memory()))


def compact_cache() -> None:
    """Pairs that move by one slot and more, of two layers."""
    keys, values = torch.zeros(2, 1, 12, 2, 8), torch.zeros(2, 1, 12, 2, 8)
    numbers = [8], [1], [[0, 2, 3, 4, 5, 7, 8, 11, 0, 0, 0, 0]]
    operators.compact_cache(keys, values, *(torch.tensor(one, dtype=torch.int32) for one in numbers))


CASES: dict[str, Callable[[], None]] = {
    "uniform_noise": uniform_noise,
    "argmax": argmax,
    "warp": warp,
    "device_loop": device_loop,
    "argmax_rows": argmax_rows,
    "draw_rows": lambda: draw_rows(*PLAIN),
    "draw_rows, filtered": lambda: draw_rows(*FILTERED),
    "draw_rows, greedy": lambda: draw_rows(*GREEDY),
    "verify_rows": lambda: verify_rows(*PLAIN),
    "verify_rows, filtered": lambda: verify_rows(*FILTERED),
    "verify_rows, greedy": lambda: verify_rows(*GREEDY),
    "advance_block and pack_block": lambda: block("branched"),
    "advance_block and pack_block, more threads": lambda: block("wide"),
    "advance_ordered and pack_ordered": lambda: ordered("packed"),
    "advance_ordered and pack_ordered, drawn later": lambda: ordered("branched"),
    "advance_native and pack_ordered": lambda: ordered("native"),
    "compact_cache": compact_cache,
}


def main() -> None:
    """Runs cases; ThreadSanitizer turns the exit code into 66 after a report, which follows the name of its case."""
    for name in sys.argv[1:] or CASES:
        print(name, file=sys.stderr, flush=True)
        CASES[name]()


if __name__ == "__main__":
    main()
