"""Every schedule, block size and batch on every held-out problem: are all outputs the autoregressive ones?

    python bench/lossless.py --json bench/results/lossless-tiny-cpu.json

Greedy, float32.  Prints one line per combination and exits with 1 where an output differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch

import packed_ss
from packed_ss.evaluation.compare import chat_prompt, parse_schedule
from packed_ss.evaluation.problems import read_problems


def decode(model, prompts: list[list[int]], schedule: str, block_size: int, batch: int) -> tuple[list[list[int]], int]:
    """Outputs in order and the number of model calls (of sequences: a batch of five counts five)."""
    decoder = packed_ss.Decoder(model, parse_schedule(schedule), block_size=block_size, batch_size=batch,
                                max_length=max(map(len, prompts)) + 160)
    outputs, nfe = [], 0
    for i in range(0, len(prompts), batch):
        out = decoder.generate(prompts[i: i + batch], max_new_tokens=160)
        outputs += [tokens.tolist() for tokens in out.tokens]
        nfe += sum(out.nfe)
    return outputs, nfe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--problems", type=int, default=None)
    parser.add_argument("--schedules", nargs="+", default=["linear", "packed", "quadratic", "branched:0,1"])
    parser.add_argument("--block-sizes", nargs="+", type=int, default=[2, 4, 8, 16, 32])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--json", help="also write the records to this file")
    args = parser.parse_args()
    model, tokenizer = packed_ss.load_model(args.model, dtype=torch.float32), packed_ss.load_tokenizer(args.model)
    prompts = [chat_prompt(tokenizer, p.question) for p in read_problems(model.source / "held_out.jsonl", args.problems)]
    expected, _ = decode(model, prompts, "autoregressive", 16, 1)
    records = []
    for schedule in args.schedules:
        for block_size in args.block_sizes:
            for batch in args.batches:
                begin = time.perf_counter()
                outputs, nfe = decode(model, prompts, schedule, block_size, batch)
                equal = sum(a == b for a, b in zip(outputs, expected, strict=True))
                records.append({"schedule": schedule, "block_size": block_size, "batch": batch, "prompts": len(prompts),
                                "equal": equal, "tokens": sum(map(len, outputs)), "nfe": nfe})
                print(f"{schedule:15} B = {block_size:2}  batch {batch}: {equal} of {len(prompts)} equal, "
                      f"{records[-1]['tokens'] / nfe:.2f} tokens per call, {time.perf_counter() - begin:.0f} s", flush=True)
                if args.json:
                    with open(args.json, "w", encoding="utf-8") as file:
                        json.dump({"model": args.model, "dtype": "float32", "torch": torch.__version__, "records": records},
                                  file, indent=1)
    sys.exit(any(r["equal"] != r["prompts"] for r in records))


if __name__ == "__main__":
    main()
