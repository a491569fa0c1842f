"""Every schedule, width, order and batch on every held-out problem: are all outputs the autoregressive, or serial, ones?

    python bench/lossless.py --json bench/results/lossless-tiny-cpu.json
    python bench/lossless.py --model tiny-set --json bench/results/lossless-tiny-set-cpu.json

Greedy, float32.  Left to right, outputs are compared with the autoregressive ones; in the order of confidence every accepted
token is teacher-forced along the orders of its own run (Proposition C.1).  Prints one line per combination and exits with 1
where an output differs.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import torch
from device.record import write_json

import packed_ss
from packed_ss.evaluation.options import parse_schedule
from packed_ss.evaluation.ordered_trace import Trace, wrong_pairs
from packed_ss.evaluation.problems import read_problems
from packed_ss.evaluation.prompts import chat_prompt
from packed_ss.models.transformer import Transformer


def decode(
    model: Transformer, prompts: list[list[int]], new: int, schedule: str, batch: int, **options: Any
) -> tuple[list[list[int]], int, int]:
    """Return the outputs in order, the number of model calls (of sequences: a batch of five counts five), and, of a run in the
    order of confidence, how many outputs hold a token that is not the serial one."""
    trace = Trace() if options.get("order") == "confidence" else None
    longest = max(map(len, prompts)) + new
    decoder = packed_ss.Decoder(model, parse_schedule(schedule), batch_size=batch, max_length=longest, observer=trace, **options)
    outputs, nfe, wrong = [], 0, 0
    for i in range(0, len(prompts), batch):
        part = prompts[i : i + batch]
        out = decoder.generate(part, max_new_tokens=new)
        outputs += [tokens.tolist() for tokens in out.tokens]
        nfe += sum(out.nfe)
        if trace is not None:
            wrong += sum(bool(wrong_pairs(model, prompt, pairs)) for prompt, pairs in zip(part, trace.pairs, strict=True))
    return outputs, nfe, wrong


def combinations(model: Transformer, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return decoder options of the model's layout."""
    if model.config.layout == "block":
        return [{"block_size": b} for b in args.block_sizes]
    return [{"window": w, "order": order} for w, order in itertools.product(args.windows, args.orders)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--problems", type=int, default=None)
    parser.add_argument("--schedules", nargs="+", default=["linear", "packed", "quadratic", "branched:0,1"])
    parser.add_argument("--block-sizes", nargs="+", type=int, default=[2, 4, 8, 16, 32])
    parser.add_argument("--windows", nargs="+", type=int, default=[4, 8, 16], help="of an ordered model")
    parser.add_argument("--orders", nargs="+", default=["left_to_right", "confidence"], help="of an ordered model")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--json", type=Path, help="also write the records to this file")
    args = parser.parse_args()
    model, tokenizer = packed_ss.load_model(args.model, device="cpu", dtype=torch.float32), packed_ss.load_tokenizer(args.model)
    prompts = [chat_prompt(tokenizer, p.question) for p in read_problems(model.source / "held_out.jsonl", args.problems)]
    every = combinations(model, args)
    plain = every[0] if model.config.layout == "block" else {"window": 1}
    expected, _, _ = decode(model, prompts, args.new_tokens, "autoregressive", 1, **plain)
    records = []
    for schedule, options, batch in itertools.product(args.schedules, every, args.batches):
        begin = time.perf_counter()
        outputs, nfe, wrong = decode(model, prompts, args.new_tokens, schedule, batch, **options)
        equal = sum(a == b for a, b in zip(outputs, expected, strict=True))
        lossless = len(prompts) - wrong if options.get("order") == "confidence" else equal
        records.append(
            {
                "schedule": schedule,
                **options,
                "batch": batch,
                "prompts": len(prompts),
                "lossless": lossless,
                "equal_to_ar": equal,
                "tokens": sum(map(len, outputs)),
                "nfe": nfe,
            }
        )
        shown = ", ".join(f"{name} {value}" for name, value in options.items())
        print(
            f"{schedule:15} {shown}, batch {batch}: {lossless} of {len(prompts)} lossless, "
            f"{records[-1]['tokens'] / nfe:.2f} tokens per call, {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
        if args.json:
            write_json(args.json, {"model": args.model, "dtype": "float32", "torch": torch.__version__, "records": records})
    sys.exit(any(r["lossless"] != r["prompts"] for r in records))


if __name__ == "__main__":
    main()
