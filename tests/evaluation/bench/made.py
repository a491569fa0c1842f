"""Plans and records made by hand, and models, tokenizers and tasks small enough to decode in no time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from packed_ss.evaluation.bench.plan import Candidate, Plan, Setting
from packed_ss.evaluation.bench.run_records import Response, Run
from packed_ss.evaluation.bench.runner import Models
from packed_ss.evaluation.tasks import Prompt, Task
from packed_ss.models.transformer import Transformer

CANDIDATES = tuple(Candidate(name, name, block_size=4) for name in ("autoregressive", "linear", "packed"))


def setting(
    study: str = "main", temperature: float = 0.0, candidates: Sequence[Candidate] = CANDIDATES, **changes: Any
) -> Setting:
    """A setting of the model "m" and the task "t"."""
    values = {"model": "m", "task": "t", "prompts": 2, "digest": "d", "cap": 64, "repeats": 1}
    return Setting(study=study, temperature=temperature, candidates=tuple(candidates), **(values | changes))


def plan(*settings: Setting) -> Plan:
    return Plan(settings, seed=0, device="cpu", dtype="float32", threads=1, latency_seconds=0.0)


def response(
    where: Setting, candidate: Candidate, prompt: str, tokens: int, nfe: int, seconds: float, **changes: Any
) -> Response:
    """A response without texts."""
    values = {
        "repeat": 0,
        "seed": 0,
        "rows": 8,
        "advances": None,
        "model_seconds": None,
        "first_model_seconds": None,
        "finish_reason": "stop",
        "text": "",
        "score": None,
        "timed": False,
    }
    return Response(
        setting=where.name,
        candidate=candidate.name,
        prompt=prompt,
        schedule=candidate.schedule,
        block_size=candidate.block_size,
        window=candidate.window,
        tokens=tokens,
        nfe=nfe,
        seconds=seconds,
        **(values | changes),
    )


def run_of(where: Plan, responses: Sequence[Response]) -> Run:
    return Run(where.as_dict(), {r.key: r for r in responses})


class Letters:
    """A tokenizer whose tokens are the small numbers in a text."""

    def apply_chat_template(self, chat: list[dict[str, str]], **_: Any) -> list[int]:
        return [int(word) for word in chat[0]["content"].split()]

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, tokens))


class SmallModels(Models):
    """`Models` of one model, whatever it is called."""

    def __init__(self, model: Transformer) -> None:
        super().__init__("cpu", torch.float32)
        self.small = model

    def model(self, name: str, adapter: str | None = None) -> Transformer:
        return self.small

    def tokenizer(self, name: str) -> Letters:
        return Letters()


def task(prompts: Sequence[str] = ("4 1 7", "2 9 9 5", "6 8"), cap: int = 12) -> Task:
    """Right is what begins with an even token."""
    return Task(
        "t",
        cap,
        [Prompt(f"t/{i}", text, {}) for i, text in enumerate(prompts)],
        2,
        lambda record, text: int(text.split()[0]) % 2 == 0,
    )
