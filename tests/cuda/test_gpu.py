"""packed_ss.cuda on a GPU: the bundled checkpoint, with the device watched for waits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import packed_ss
from packed_ss import cuda
from packed_ss.evaluation.problems import read_problems
from packed_ss.evaluation.prompts import chat_prompt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

SCHEDULES = ["autoregressive", "linear", "packed", "quadratic", packed_ss.Branched((0, 1, 4))]
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "rejection": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "coupled": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "verification": "coupled"},
}


class Watched(packed_ss.Observer):
    """Raises in whatever waits for the device inside the loop."""

    def loop_begins(self) -> None:
        torch.cuda.set_sync_debug_mode("error")

    def loop_ends(self) -> None:
        torch.cuda.set_sync_debug_mode("default")


#: The decoder that the captured one is compared with.
eager = functools.partial(packed_ss.Decoder, runtime="eager", head="logits")


def watched(*arguments: Any, **options: Any) -> packed_ss.Decoder:
    """A captured decoder that is seen to wait for nothing."""
    return cuda.Decoder(*arguments, observer=Watched(), **options)


@pytest.fixture(scope="module")
def problems() -> tuple[Any, list[list[int]]]:
    model, tokenizer = cuda.load_model("tiny", dtype=torch.float32), packed_ss.load_tokenizer("tiny")
    return model, [chat_prompt(tokenizer, p.question) for p in read_problems(model.source / "held_out.jsonl")[:24]]


def texts(decoder: packed_ss.Decoder, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """Prompt i by seed i, whatever the batch."""
    n = decoder.batch_size
    return [
        tokens.tolist()
        for i in range(0, len(prompts), n)
        for tokens in decoder.generate(prompts[i : i + n], 128, seed=range(i, i + n), **options).tokens
    ]


@pytest.mark.parametrize("loop", ["bursts", "device"])
@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_text_is_the_autoregressive_one(problems: Any, schedule: Any, mode: str, loop: str) -> None:
    model, prompts = problems
    want = texts(eager(model, "autoregressive", 16, 512, 4), prompts, **SAMPLING[mode])
    for batch in (1, 4):
        decoder = watched(model, schedule, 16, 512, batch, loop=loop, head="logits")
        assert texts(decoder, prompts, **SAMPLING[mode]) == want


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_fused_head_gives_every_schedule_one_text(problems: Any, schedule: Any) -> None:
    model, prompts = problems
    want = texts(watched(model, "autoregressive", 16, 512, 4), prompts)
    assert texts(watched(model, schedule, 16, 512, 4), prompts) == want


def test_rejection_is_what_the_plain_loop_draws(problems: Any) -> None:
    model, prompts = problems
    want = texts(eager(model, "packed", 16, 512, 4), prompts, **SAMPLING["rejection"])
    assert texts(watched(model, "packed", 16, 512, 4), prompts, **SAMPLING["rejection"]) == want


@pytest.fixture(scope="module")
def ordered() -> tuple[Any, list[list[int]]]:
    model, tokenizer = cuda.load_model("tiny-set", dtype=torch.float32), packed_ss.load_tokenizer("tiny-set")
    return model, [chat_prompt(tokenizer, p.question) for p in read_problems(model.source / "held_out.jsonl")[:16]]


@pytest.mark.parametrize("loop", ["bursts", "device"])
@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_ordered_text_left_to_right_is_the_autoregressive_one(ordered: Any, schedule: Any, mode: str, loop: str) -> None:
    model, prompts = ordered
    want = texts(eager(model, "autoregressive", None, 512, 4, window=1), prompts, **SAMPLING[mode])
    for batch in (1, 4):
        decoder = watched(model, schedule, None, 512, batch, window=8, loop=loop)
        assert texts(decoder, prompts, **SAMPLING[mode]) == want


@pytest.mark.parametrize(
    ("schedule", "settings", "mode"),
    [
        *((schedule, {"order": "confidence"}, "greedy") for schedule in SCHEDULES[1:]),
        ("native", {}, "greedy"),
        ("packed", {}, "rejection"),
    ],
    ids=str,
)
def test_ordered_text_is_what_the_plain_loop_decodes(ordered: Any, schedule: Any, settings: dict[str, Any], mode: str) -> None:
    model, prompts = ordered
    want = texts(eager(model, schedule, None, 512, 4, window=8, **settings), prompts, **SAMPLING[mode])
    assert texts(watched(model, schedule, None, 512, 4, window=8, **settings), prompts, **SAMPLING[mode]) == want


def test_a_generation_leaves_no_memory_behind(problems: Any) -> None:
    model, prompts = problems
    decoder = watched(model, "packed", 16, 512, 4)
    texts(decoder, prompts)
    held = torch.cuda.memory_allocated()
    texts(decoder, prompts)
    assert torch.cuda.memory_allocated() == held
