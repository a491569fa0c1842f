"""Time outside the model's forward in a decoding iteration, as a share of the iteration.

    python bench/overhead.py --problems 40

Every schedule decodes the same held-out problems in turn; the model's forward (rotary tables, transformer, head) is timed
inside the decoder, the rest is what pack, resolve and the loop cost.  Medians over calls after the first one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from device.record import write_json

import packed_ss
from packed_ss.evaluation.options import parse_schedule
from packed_ss.evaluation.problems import read_problems
from packed_ss.evaluation.prompts import chat_prompt
from packed_ss.ops import native

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "rejection": {"temperature": 1.0},
    "coupled": {"temperature": 1.0, "verification": "coupled"},
}


class CallTimes(packed_ss.Observer):
    """Note, for every call of the loop, its seconds and the forward's share of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, float]] = []

    def loop_begins(self) -> None:
        self._last = time.perf_counter()

    def forward_begins(self, call: Any) -> None:
        self._begin = time.perf_counter()

    def forward_ends(self, call: Any) -> None:
        self._inside = time.perf_counter() - self._begin

    def call_ends(self, call: Any) -> None:
        now = time.perf_counter()
        self.calls.append((now - self._last, self._inside))
        self._last = now


def measure(
    model_name: str, schedules: list[str], modes: list[str], count: int, block_size: int | None, new: int
) -> list[dict[str, Any]]:
    """Return a record per schedule and mode: median milliseconds of a call, of its forward, and the share outside."""
    model, tokenizer = packed_ss.load_model(model_name, device="cpu"), packed_ss.load_tokenizer(model_name)
    prompts = [chat_prompt(tokenizer, p.question) for p in read_problems(model.source / "held_out.jsonl", count)]
    longest = max(map(len, prompts)) + new
    times = {(schedule, mode): CallTimes() for schedule in schedules for mode in modes}
    decoders = {
        key: packed_ss.Decoder(model, parse_schedule(key[0]), block_size=block_size, max_length=longest, observer=one)
        for key, one in times.items()
    }
    for key, decoder in decoders.items():
        decoder.generate(prompts[0], max_new_tokens=min(new, 16), **SAMPLING[key[1]])
        times[key].calls.clear()
    for prompt in prompts:
        for (_, mode), decoder in decoders.items():
            decoder.generate(prompt, max_new_tokens=new, **SAMPLING[mode])
    return [
        {
            "schedule": schedule,
            "mode": mode,
            "steps": len(one.calls),
            "ms_per_step": 1e3 * statistics.median(whole for whole, _ in one.calls),
            "ms_forward": 1e3 * statistics.median(inside for _, inside in one.calls),
            "share_outside": statistics.median((whole - inside) / whole for whole, inside in one.calls),
        }
        for (schedule, mode), one in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--schedules", nargs="+", default=["autoregressive", "linear", "packed", "quadratic"])
    parser.add_argument("--modes", nargs="+", choices=SAMPLING, default=list(SAMPLING))
    parser.add_argument("--json", type=Path, help="also write the records to this file")
    args = parser.parse_args()
    records = measure(args.model, args.schedules, args.modes, args.problems, args.block_size, args.new_tokens)
    print(f"{args.model}, B = {args.block_size}, {torch.get_num_threads()} threads, {native.describe()}")
    for r in records:
        print(
            f"{r['schedule']:15} {r['mode']:10} {r['steps']:5} steps  {r['ms_per_step']:7.3f} ms per step, "
            f"{r['ms_forward']:7.3f} ms forward, {100 * r['share_outside']:5.1f} % outside"
        )
    if args.json:
        write_json(
            args.json,
            {
                "model": args.model,
                "block_size": args.block_size,
                "threads": torch.get_num_threads(),
                "kernels": native.info(),
                "records": records,
            },
        )


if __name__ == "__main__":
    main()
