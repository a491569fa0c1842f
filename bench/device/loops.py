"""Stage "loops": generations in bursts beside one launch per generation, on the bundled checkpoint and on random weights."""

from __future__ import annotations

import statistics
from typing import Any

import torch

import packed_ss
from packed_ss.evaluation.problems import read_problems
from packed_ss.evaluation.prompts import chat_prompt
from packed_ss.models.transformer import Transformer

from .equality import Watch
from .models import largest_model
from .record import Results
from .stages import Bench

#: Name of a way to loop, with the decoder's arguments.
WAYS: dict[str, dict[str, Any]] = {"bursts of 1": {"burst": 1}, "bursts of 4": {"burst": 4}, "device": {"loop": "device"}}
EAGER: dict[str, dict[str, Any]] = {"eager": {"runtime": "eager"}}
SCHEDULES = ("autoregressive", "packed")


def run(bench: Bench, results: Results) -> None:
    """Tokens per second of every way and schedule, the ways in turns on the same prompts."""
    tokenizer = packed_ss.load_tokenizer("tiny")
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    tiny = packed_ss.load_model("tiny", device=bench.device, dtype=dtype)
    problems = read_problems(tiny.source / "held_out.jsonl", max(2, bench.sizes.problems // 3))
    _model(
        bench,
        results,
        "tiny",
        tiny,
        [chat_prompt(tokenizer, problem.question) for problem in problems],
        bench.sizes.new_tokens,
        {},
    )
    shape, model = largest_model(bench)
    prompt = torch.randint(4, model.config.vocab_size, (min(64, bench.sizes.prefix),), generator=torch.Generator().manual_seed(0))
    _model(bench, results, f"{shape} shape", model, [prompt.tolist()] * 3, bench.sizes.random_tokens, {"eos_token_id": []})


def _model(
    bench: Bench, results: Results, name: str, model: Transformer, prompts: list[list[int]], new: int, options: dict[str, Any]
) -> None:
    longest = max(map(len, prompts)) + new
    eager = {} if model.source is None else EAGER  # slow, and the same for any weights
    for schedule in SCHEDULES:
        decoders, times, tokens, calls = {}, {}, {}, {}
        for way, arguments in {**WAYS, **eager}.items():
            block_size = bench.sizes.block_size if model.source is None else None
            decoder = packed_ss.Decoder(
                model, schedule, block_size, longest, **arguments, observer=(watch := Watch(raises=False))
            )
            try:
                decoder.generate(prompts[0], new, **options)
            except Exception as error:  # one way that fails says so, and the others go on
                results.fail(f"{name}, {schedule}, {way}: {type(error).__name__}: {error}")
                continue
            if way == "device" and watch.loop_of(decoder) != "device":
                results.row(f"{name}, {schedule}, {way}", "not measured", note="it falls back to bursts")
                continue
            decoders[way], times[way], tokens[way], calls[way] = decoder, [], 0, 0
        for i, prompt in enumerate(prompts):
            for j in range(len(decoders)):
                way = list(decoders)[(i + j) % len(decoders)]
                out = decoders[way].generate(prompt, new, **options)
                times[way].append(out.seconds)
                tokens[way] += len(out.tokens[0])
                calls[way] += out.nfe[0]
        _rows(results, name, schedule, times, tokens, calls)


def _rows(
    results: Results, name: str, schedule: str, times: dict[str, list[float]], tokens: dict[str, int], calls: dict[str, int]
) -> None:
    first = next(iter(times), None)
    for way, found in times.items():
        rate = tokens[way] / sum(found)
        ratio = statistics.median(b / a for a, b in zip(found, times[first], strict=True))
        results.add(
            "loops",
            {
                "model": name,
                "schedule": schedule,
                "way": way,
                "tokens_per_second": rate,
                "tokens": tokens[way],
                "calls": calls[way],
                "seconds": found,
                "speed_over_first": ratio,
            },
        )
        results.row(
            f"{name}, {schedule}, {way}",
            f"{rate:.0f} tokens/s",
            note=f"{1e3 * sum(found) / max(calls[way], 1):.3f} ms a call, "
            f"{tokens[way] / max(calls[way], 1):.2f} tokens a call, {ratio:.2f} x {first}",
        )
