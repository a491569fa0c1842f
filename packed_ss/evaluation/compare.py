"""Schedules side by side on the same prompts: yield, cost, speed, and whether the outputs are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..decoder import Decoder, GenerateOutput
from ..models.config import ModelConfig
from ..models.transformer import Transformer
from ..schedules import NAMES, ORDERED_NAMES, Branched
from .problems import Problem, final_answer


@dataclass(frozen=True)
class Summary:
    """One schedule over all prompts.  Rates are of totals: tokens / seconds = (tokens / NFE) / (seconds / NFE).

    ``equal``: outputs equal to the first schedule's, of how many; None where outputs are random.  ``correct``: share of
    right final answers.
    """

    schedule: str
    prompts: int
    tokens: int
    nfe: int
    seconds: float
    correct: float
    equal: int | None

    @property
    def tokens_per_nfe(self) -> float:
        return self.tokens / max(self.nfe, 1)

    @property
    def ms_per_nfe(self) -> float:
        return 1e3 * self.seconds / max(self.nfe, 1)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-12)

    def as_dict(self) -> dict[str, Any]:
        """Every field and rate, for JSON."""
        return asdict(self) | {
            "tokens_per_nfe": self.tokens_per_nfe,
            "ms_per_nfe": self.ms_per_nfe,
            "tokens_per_second": self.tokens_per_second,
        }


#: The schedules that are compared where none are named, by layout.
SCHEDULES = {"block": NAMES, "ordered": ("autoregressive", "native", "linear", "packed", "quadratic")}


def parse_schedule(text: str) -> str | Branched:
    """A schedule from its name, or ``branched:0,4,8``.  Raises ValueError for anything else."""
    if text in ORDERED_NAMES:
        return text
    kind, _, cuts = text.partition(":")
    if kind == "branched" and all(c.strip().isdigit() for c in cuts.split(",")):
        return Branched(int(c) for c in cuts.split(","))
    raise ValueError(f"schedule is {text!r}, but it must be one of {', '.join(ORDERED_NAMES)} or branched:0,4,... with its cuts")


def settings_for(
    config: ModelConfig, *, block_size: int | None = None, window: int | None = None, order: str | None = None
) -> dict[str, Any]:
    """A decoder's arguments for a model of either layout; without a window, half of an ordered model's horizon (App. E.1)."""
    if config.layout == "ordered" and window is None and config.horizon is not None:
        window = max(1, config.horizon // 2)
    return {"block_size": block_size, "window": window, "order": order}


def contenders(
    config: ModelConfig,
    schedules: Sequence[str],
    orders: Sequence[str] = (),
    *,
    block_size: int | None = None,
    window: int | None = None,
) -> dict[str, dict[str, Any]]:
    """A decoder's arguments by the name under which it is listed: every schedule, in every order that it has.

    Without schedules those of the layout.  Raises ValueError for an unknown one.
    """
    found: dict[str, dict[str, Any]] = {}
    for schedule in schedules or SCHEDULES[config.layout]:
        own = [None] if schedule in ("autoregressive", "native") and config.layout == "ordered" else orders or [None]
        for order in own:
            name = schedule if order in (None, "left_to_right") else f"{schedule}, {order}"
            found[name] = {
                "schedule": parse_schedule(schedule),
                **settings_for(config, block_size=block_size, window=window, order=order),
            }
    return found


def compare(
    model: Transformer,
    tokenizer: Any,
    problems: Sequence[Problem],
    compared: Mapping[str, Mapping[str, Any]],
    *,
    max_new_tokens: int = 256,
    progress: Callable[[], None] = lambda: None,
    **sampling: Any,
) -> list[Summary]:
    """Runs every one of ``compared``, a decoder's arguments by name (`contenders`), on every problem, batch 1, and sums up.

    They take turns within each problem, each problem starting with another one, so that drift of the machine hits all alike;
    every decoder runs once beforehand, unmeasured.  ``sampling`` goes to `Decoder.generate`; ``progress`` is called after each
    response.
    """
    prompts = [chat_prompt(tokenizer, problem.question) for problem in problems]
    longest = max(len(prompt) for prompt in prompts) + max_new_tokens
    kind = decoder_for(model)
    decoders = [kind(model, **arguments, max_length=longest) for arguments in compared.values()]
    for decoder in decoders:
        decoder.generate(prompts[0], max_new_tokens=min(max_new_tokens, 16), **sampling)
    outputs: list[list[GenerateOutput]] = [[] for _ in compared]
    for i, prompt in enumerate(prompts):
        for j in range(len(compared)):
            which = (i + j) % len(compared)
            outputs[which].append(decoders[which].generate(prompt, max_new_tokens=max_new_tokens, **sampling))
            progress()
    comparable = sampling.get("temperature", 0.0) < 1e-5 or sampling.get("verification") == "coupled"
    return [
        _summary(s, out, outputs[0] if comparable else None, tokenizer, problems)
        for s, out in zip(compared, outputs, strict=True)
    ]


def decoder_for(model: Transformer) -> type[Decoder]:
    """The fastest decoder of the model's device: `packed_ss.cuda.Decoder` on a GPU."""
    if model.head.weight.is_cuda:
        from ..cuda import Decoder as Captured

        return Captured
    return Decoder


def chat_prompt(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a user message under the checkpoint's chat template, ready for the answer."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return [int(token) for token in ids]


def _summary(
    schedule: str, outputs: list[GenerateOutput], base: list[GenerateOutput] | None, tokenizer: Any, problems: Sequence[Problem]
) -> Summary:
    answers = [final_answer(tokenizer.decode(out.tokens[0], skip_special_tokens=True)) for out in outputs]
    correct = sum(answer == problem.answer for answer, problem in zip(answers, problems, strict=True))
    return Summary(
        schedule=schedule,
        prompts=len(outputs),
        tokens=sum(len(out.tokens[0]) for out in outputs),
        nfe=sum(out.nfe[0] for out in outputs),
        seconds=sum(out.seconds for out in outputs),
        correct=correct / len(outputs),
        equal=None if base is None else sum(_same(a.tokens[0], b.tokens[0]) for a, b in zip(outputs, base, strict=True)),
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b)
