"""Run schedules side by side on the same prompts, and see whether their outputs are the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..decoder import Decoder, GenerateOutput
from ..models.transformer import Transformer
from ..sampling import GREEDY_BELOW
from .problems import Problem, final_answer
from .prompts import chat_prompt
from .totals import Totals


def compare(
    model: Transformer,
    tokenizer: Any,
    problems: Sequence[Problem],
    options: Mapping[str, Mapping[str, Any]],
    *,
    max_new_tokens: int = 256,
    progress: Callable[[], None] = lambda: None,
    **sampling: Any,
) -> list[Totals]:
    """Decode every problem, batch 1, with each of ``options``, a decoder's arguments by name, and sum up.

    Decoders take turns within each problem, each problem starting with another one, so that drift of the machine hits all
    alike; each decodes once beforehand, unmeasured.  ``sampling`` goes to `Decoder.generate`; ``progress`` is called after
    each response.
    """
    prompts = [chat_prompt(tokenizer, problem.question) for problem in problems]
    longest = max(len(prompt) for prompt in prompts) + max_new_tokens
    decoders = [Decoder(model, **arguments, max_length=longest) for arguments in options.values()]
    for decoder in decoders:
        decoder.generate(prompts[0], max_new_tokens=min(max_new_tokens, 16), **sampling)
    outputs: list[list[GenerateOutput]] = [[] for _ in decoders]
    for i, prompt in enumerate(prompts):
        for j in range(len(decoders)):
            which = (i + j) % len(decoders)
            outputs[which].append(decoders[which].generate(prompt, max_new_tokens=max_new_tokens, **sampling))
            progress()
    comparable = sampling.get("temperature", 0.0) < GREEDY_BELOW or sampling.get("verification") == "coupled"
    base = outputs[0] if comparable else None
    return [_totals(name, out, base, tokenizer, problems) for name, out in zip(options, outputs, strict=True)]


def _totals(
    schedule: str, outputs: list[GenerateOutput], base: list[GenerateOutput] | None, tokenizer: Any, problems: Sequence[Problem]
) -> Totals:
    answers = [final_answer(tokenizer.decode(out.tokens[0], skip_special_tokens=True)) for out in outputs]
    correct = sum(answer == problem.answer for answer, problem in zip(answers, problems, strict=True))
    same = None if base is None else [torch.equal(a.tokens[0], b.tokens[0]) for a, b in zip(outputs, base, strict=True)]
    return Totals(
        schedule=schedule,
        prompts=len(outputs),
        tokens=sum(len(out.tokens[0]) for out in outputs),
        nfe=sum(out.nfe[0] for out in outputs),
        seconds=sum(out.seconds for out in outputs),
        correct=correct / len(outputs),
        equal=None if same is None else sum(same),
    )
