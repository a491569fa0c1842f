"""Stage "equality": the text of every schedule, loop and head on the bundled checkpoints beside that of autoregressive decoding.

In float32 they must be equal.  In bfloat16 a call of other rows may round to another argmax: each differing problem comes with
the scores' gap at the first differing token, of the best to the second best, and of one text's token to the other's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import packed_ss
from packed_ss.evaluation.problems import read_problems
from packed_ss.evaluation.prompts import chat_prompt
from packed_ss.evaluation.verify import causal_logits, mask_logits, verify
from packed_ss.models.loading import BUNDLED
from packed_ss.models.transformer import Transformer
from packed_ss.runtime import device_loop
from packed_ss.sampling import Stream, gumbel, process

from .record import Results
from .stages import Bench

SCHEDULES: tuple[Any, ...] = ("autoregressive", "linear", "packed", "quadratic", packed_ss.Branched((0, 1, 4)))
#: Head and sampling; what is compared is compared within one of them.
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy, fused head": ("fused", {}),
    "greedy, logits": ("logits", {}),
    "coupled": ("logits", {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "verification": "coupled"}),
}
LOOPS = ("bursts", "device")
#: A gap of logits that rounding does not explain.
AMISS = {torch.float32: 1e-3, torch.bfloat16: 0.5}
BATCH = 4
BLOCK_SIZE, WINDOW = 16, 8


class Watch(packed_ss.Observer):
    """Count a decoder's replays; with ``raises``, raise in whatever waits for the GPU inside its loop."""

    def __init__(self, raises: bool) -> None:
        self.raises, self.replays = raises, 0

    def loop_begins(self) -> None:
        if self.raises:
            torch.cuda.set_sync_debug_mode("error")

    def loop_ends(self) -> None:
        if self.raises:
            torch.cuda.set_sync_debug_mode("default")

    def replay_ends(self) -> None:
        self.replays += 1

    def loop_of(self, decoder: packed_ss.Decoder) -> str:
        """Say how the decoder has looped: "eager", "bursts", or "device" where every generation was one launch."""
        if decoder.runtime.name == "eager":
            return "eager"
        return "device" if decoder.runtime.loop_kind == "device" and not self.replays else "bursts"


def run(bench: Bench, results: Results) -> None:
    """Both dtypes, or float32 alone on a CPU."""
    if reason := device_loop.unavailable():
        results.row("the loop on the device", "not compared", note=reason)
    dtypes = (torch.float32, torch.bfloat16) if bench.on_gpu else (torch.float32,)
    for name, dtype in itertools.product(BUNDLED, dtypes):
        tokenizer, model = packed_ss.load_tokenizer(name), packed_ss.load_model(name, device=bench.device, dtype=dtype)
        problems = read_problems(model.source / "held_out.jsonl", bench.sizes.problems)
        prompts = [chat_prompt(tokenizer, problem.question) for problem in problems]
        for entry in compare(bench, model, name, prompts):
            results.add("texts", entry)
            if "raised" in entry:
                results.fail(f"{entry['what']}: {entry['raised']}")
            elif wrong := [one for one in entry.get("teacher_forced", ()) if one["gap"] > AMISS[dtype]]:
                results.fail(
                    f"{entry['what']}: {len(wrong)} tokens are not those of a plain causal pass, the first (problem "
                    f"{wrong[0]['problem']}) at token {wrong[0]['token']}, by {wrong[0]['gap']:.2g}"
                )
            elif entry["different"] and dtype == torch.float32:
                first = entry["mismatches"][0]
                results.fail(
                    f"{entry['what']}: {entry['different']} of {entry['problems']} texts differ in float32, the first "
                    f"(problem {first['problem']}) at token {first['token']}, where the best score leads by "
                    f"{first['top_two_gap']:.2g}"
                )
        _summarise(results, name, str(dtype).removeprefix("torch."))


def compare(bench: Bench, model: Transformer, label: str, prompts: list[list[int]]) -> Iterator[dict[str, Any]]:
    """An entry per mode, schedule and loop.  The baseline is the captured autoregressive decoder in bursts of the same mode.

    Ordered models decode from left to right, and always by logits.
    """
    ordered = model.config.layout == "ordered"
    shape = {"window": WINDOW} if ordered else {"block_size": BLOCK_SIZE}
    shape |= {"max_length": max(map(len, prompts)) + bench.sizes.new_tokens, "batch_size": BATCH}
    loops = LOOPS if not device_loop.unavailable() else LOOPS[:1]
    dtype = str(model.head.weight.dtype).removeprefix("torch.")
    for mode, (head, sampling) in MODES.items():
        if ordered and head == "fused":
            continue
        baseline: list[list[int]] | None = None
        runs: list[tuple[str, Any, dict[str, Any]]] = [
            (f"{getattr(schedule, 'cuts', schedule)}, {loop}", schedule, {"loop": loop, "head": head})
            for loop in loops
            for schedule in SCHEDULES
        ]
        if head == "logits":
            runs.append(("eager, autoregressive", "autoregressive", {"runtime": "eager"}))
        for name, schedule, options in runs:
            entry: dict[str, Any] = {
                "what": f"{label}, {dtype}, {mode}, {name}",
                "model": label,
                "dtype": dtype,
                "mode": mode,
                "problems": len(prompts),
            }
            try:
                watch = Watch(raises=bench.on_gpu and "runtime" not in options)
                decoder = packed_ss.Decoder(model, schedule, **shape, **options, observer=watch)
                texts = decoded(decoder, prompts, bench.sizes.new_tokens, sampling)
                entry["loop"] = watch.loop_of(decoder)
            except Exception as error:  # one decoder that cannot run says so, and the others go on
                yield entry | {"raised": f"{type(error).__name__}: {error}".splitlines()[0]}
                continue
            if baseline is None:
                baseline = texts
                if not sampling:
                    entry["teacher_forced"] = teacher_forced(model, prompts, texts)
            mismatches = [
                gap(model, i, prompts[i], want, got, sampling)
                for i, (want, got) in enumerate(zip(baseline, texts, strict=True))
                if want != got
            ]
            yield entry | {"different": len(mismatches), "tokens": sum(map(len, texts)), "mismatches": mismatches}


def teacher_forced(model: Transformer, prompts: list[list[int]], texts: list[list[int]]) -> list[dict[str, Any]]:
    """Tokens of the texts that are not the argmax of a plain causal pass over them, with the gap to it."""
    pairs = enumerate(zip(prompts, texts, strict=True))
    return [
        {"problem": i, "token": wrong.index, "gap": wrong.gap}
        for i, (prompt, text) in pairs
        for wrong in verify(model, prompt, text).mismatches
    ]


def decoded(decoder: packed_ss.Decoder, prompts: Sequence[list[int]], new: int, sampling: dict[str, Any]) -> list[list[int]]:
    """The text of every prompt; prompt i is decoded with seed i whatever the batch."""
    texts: list[list[int]] = []
    for i in range(0, len(prompts), decoder.batch_size):
        batch = prompts[i : i + decoder.batch_size]
        out = decoder.generate(batch, new, seed=list(range(i, i + len(batch))), **sampling)
        texts += [tokens.tolist() for tokens in out.tokens]
    return texts


def gap(
    model: Transformer,
    problem: int,
    prompt: list[int],
    want: list[int],
    got: list[int],
    sampling: dict[str, Any],
) -> dict[str, Any]:
    """Where two texts part, and by how much the scores of a plain causal pass in this dtype differ there.

    top_two_gap: of the best to the second best score (infinite where a filter keeps one token); between_gap and logit_gap: of the
    texts' tokens to each other, in scores and in logits.
    """
    same = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
    entry: dict[str, Any] = {"problem": problem, "token": same}
    if same == min(len(want), len(got)):
        return entry | {
            "tokens": [want[same : same + 1], got[same : same + 1]],
            "top_two_gap": float("nan"),
            "between_gap": float("nan"),
            "logit_gap": float("nan"),
        }
    logits = scores = next_logits(model, prompt, want[:same])
    if sampling:
        seed, position = torch.tensor([problem]), torch.tensor([[len(prompt) + same]], dtype=torch.int32)
        noise = gumbel(seed.to(scores.device), position.to(scores.device), Stream.TARGET, len(scores))[0, 0]
        scores = process(scores, sampling["temperature"], sampling["top_k"], sampling["top_p"]) + noise
    best = scores.topk(2).values.tolist()
    between, apart = (float((of[want[same]] - of[got[same]]).abs()) for of in (scores, logits))
    return entry | {
        "tokens": [want[same], got[same]],
        "top_two_gap": best[0] - best[1],
        "between_gap": between,
        "logit_gap": apart,
    }


def next_logits(model: Transformer, prompt: list[int], text: list[int]) -> Tensor:
    """Logits [V], float32, of the token after ``text``, by a plain dense pass."""
    if model.config.layout == "ordered":
        return mask_logits(model, prompt, [*text, 0])[-1].float()
    return causal_logits(model, [*prompt, *text])[-1].float()


def _summarise(results: Results, model: str, dtype: str) -> None:
    """A line for each mode: how many texts differ, and over how wide a gap."""
    for mode in MODES:
        entries = [
            entry
            for entry in results.values["texts"]
            if (entry["model"], entry["mode"], entry["dtype"]) == (model, mode, dtype) and "raised" not in entry
        ]
        if not entries:
            continue
        total, different = (sum(entry[name] for entry in entries) for name in ("problems", "different"))
        forced = [one for entry in entries for one in entry.get("teacher_forced", ())]
        gaps = [one["top_two_gap"] for entry in entries for one in entry["mismatches"]]
        loops = sorted({entry["loop"] for entry in entries})
        results.row(
            f"{model}, {dtype}, {mode}",
            f"{total - different} of {total} texts equal",
            note=f"{len(entries)} decoders, loops {', '.join(loops)}"
            + ("" if mode == "coupled" else f"; {len(forced)} tokens are not a plain causal pass's")
            + (f"; the widest top-two gap at a first difference is {max(gaps):.3g}" if gaps else ""),
        )
