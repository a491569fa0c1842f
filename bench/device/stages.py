"""The stages in order of priority, what they take, and the sizes at which they run.

Neither this module nor the driver imports packed_ss, which needs more than a plain checkout on a machine with a GPU.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .driver import Stage
from .record import Results

if TYPE_CHECKING:
    import torch

STAGES = (
    Stage("build", "the native module, for this card alone", 60, 240),
    Stage("operators", "every operator beside its plain-torch version", 60, 130),
    Stage("tests", "the kernel tests and those of packed_ss.cuda", 100, 200),
    Stage("equality", "every schedule's text beside the autoregressive one", 70, 150),
    Stage("latency", "time of a call against its rows, random weights", 55, 130),
    Stage("iterations", "an iteration of each schedule, and its share outside the model", 50, 130),
    Stage("attention", "tail_attention beside its rivals", 45, 130),
    Stage("resolves", "the resolves beside a plain read of the logits", 35, 100),
    Stage("head", "linear_argmax, rope_store and the glue", 25, 80),
    Stage("loops", "bursts beside the loop on the device", 45, 110),
    Stage("sanitizer", "compute-sanitizer on small cases", 80, 180),
)
#: Those that make no sense on a CPU.
NEEDS_GPU = ("build", "sanitizer")


@dataclass(frozen=True)
class Sizes:
    """How large the cases are.  ``seconds`` is for each group of candidates that take turns; other names speak for themselves."""

    shapes: tuple[str, ...]
    dtype: str
    rows: tuple[int, ...]
    prefix: int
    block_size: int
    problems: int
    new_tokens: int
    random_tokens: int
    seconds: float
    copy_bytes: int
    attention: tuple[int, int, int]  # query heads, key/value heads, head size
    attention_prefixes: tuple[int, ...]
    vocab: int
    hidden: int
    intermediate: int
    least_copies: int


FULL = Sizes(
    shapes=("3B", "8B"),
    dtype="bfloat16",
    rows=(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 289),
    prefix=1024,
    block_size=32,
    problems=24,
    new_tokens=128,
    random_tokens=96,
    seconds=2.0,
    copy_bytes=2**31,
    attention=(32, 8, 128),
    attention_prefixes=(1024, 8192, 32768),
    vocab=131072,
    hidden=4096,
    intermediate=14336,
    least_copies=8,
)
SMALL = Sizes(
    shapes=("mini",),
    dtype="float32",
    rows=(1, 2, 8),
    prefix=12,
    block_size=4,
    problems=2,
    new_tokens=12,
    random_tokens=6,
    seconds=0.0,
    copy_bytes=2**20,
    attention=(4, 2, 16),
    attention_prefixes=(9, 40),
    vocab=257,
    hidden=48,
    intermediate=64,
    least_copies=2,
)


@dataclass
class Bench:
    """What a stage gets: where to compute, how large, and until when, on the monotonic clock.

    ``python`` and ``script``: the command that runs a stage, for those that need one more process.
    """

    device: torch.device
    sizes: Sizes
    end: float
    script: Path
    python: str

    @property
    def left(self) -> float:
        """Seconds before the stage is stopped, some of them kept for its last words."""
        return self.end - 4.0 - time.monotonic()

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Of the random weights and their caches."""
        import torch

        return getattr(torch, self.sizes.dtype)


def function(name: str) -> Callable[[Bench, Results], None]:
    """What a stage runs."""
    return importlib.import_module(f"{__package__}.{name}").run
