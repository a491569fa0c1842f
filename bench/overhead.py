"""Time outside the model's forward in a decoding iteration, as a share of the iteration.

    python bench/overhead.py --problems 40

Every schedule decodes the same held-out problems in turn; the model's forward (rotary tables, transformer, head) is timed
inside the decoder, the rest is what pack, resolve and the loop cost.  Medians over iterations after the first call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch

import packed_ss
from packed_ss.decoder import Decoder
from packed_ss.evaluation.compare import chat_prompt, parse_schedule
from packed_ss.evaluation.problems import read_problems
from packed_ss.ops import native


class TimedDecoder(Decoder):
    """A decoder that notes, for every step, its whole time and the forward's share of it, in seconds."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[tuple[float, float]] = []
        self._inside = 0.0

    def _forward(self, *args):
        begin = time.perf_counter()
        out = super()._forward(*args)
        self._inside = time.perf_counter() - begin
        return out

    def step(self, *args) -> None:
        super().step(*args)
        now = time.perf_counter()
        self.steps.append((now - self._last, self._inside))
        self._last = now

    def _loop(self, *args) -> None:
        self._last = time.perf_counter()
        super()._loop(*args)


def measure(model_name: str, schedules: list[str], modes: list[str], count: int, block_size: int | None) -> list[dict]:
    """One record per schedule and mode: median milliseconds of an iteration, of its forward, and the share outside."""
    model, tokenizer = packed_ss.load_model(model_name), packed_ss.load_tokenizer(model_name)
    prompts = [chat_prompt(tokenizer, p.question) for p in read_problems(model.source / "held_out.jsonl", count)]
    decoders = {
        (s, m): TimedDecoder(model, parse_schedule(s), block_size=block_size, max_length=max(map(len, prompts)) + 128)
        for s in schedules
        for m in modes
    }
    sampling = {"greedy": {}, "rejection": {"temperature": 1.0}, "coupled": {"temperature": 1.0, "verification": "coupled"}}
    for key, decoder in decoders.items():
        decoder.generate(prompts[0], max_new_tokens=16, **sampling[key[1]])
        decoder.steps.clear()
    for prompt in prompts:
        for (_, mode), decoder in decoders.items():
            decoder.generate(prompt, max_new_tokens=128, **sampling[mode])
    records = []
    for (schedule, mode), decoder in decoders.items():
        whole, inside = ([1e3 * step[i] for step in decoder.steps] for i in (0, 1))
        outside = [(a - b) / a for a, b in zip(whole, inside, strict=True)]
        records.append(
            {
                "schedule": schedule,
                "mode": mode,
                "steps": len(whole),
                "ms_per_step": statistics.median(whole),
                "ms_forward": statistics.median(inside),
                "share_outside": statistics.median(outside),
            }
        )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--schedules", nargs="+", default=["autoregressive", "linear", "packed", "quadratic"])
    parser.add_argument("--modes", nargs="+", default=["greedy", "rejection", "coupled"])
    parser.add_argument("--json", help="also write the records to this file")
    args = parser.parse_args()
    records = measure(args.model, args.schedules, args.modes, args.problems, args.block_size)
    print(f"{args.model}, B = {args.block_size}, {torch.get_num_threads()} threads, {native.describe()}")
    for r in records:
        print(
            f"{r['schedule']:15} {r['mode']:10} {r['steps']:5} steps  {r['ms_per_step']:7.3f} ms per step, "
            f"{r['ms_forward']:7.3f} ms forward, {100 * r['share_outside']:5.1f} % outside"
        )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "model": args.model,
                    "block_size": args.block_size,
                    "threads": torch.get_num_threads(),
                    "kernels": native.info(),
                    "records": records,
                },
                file,
                indent=1,
                default=str,
            )


if __name__ == "__main__":
    main()
