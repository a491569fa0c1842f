"""Trains the bundled proposal-only adapter of "tiny" and writes it in the PEFT format into the checkpoint's folder.

    python tools/train_tiny_adapter.py

The base model is frozen.  Only A and B of the attention's output projections learn, and only from the rows of the all-mask
blocks that `train_tiny` lays out, on which alone they act; the problems are those of steps that the base was not trained on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from pathlib import Path

import torch
from problems import problems
from rich.progress import track
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from train_tiny import HELD_OUT_SEED, batches, encode, make_batch
from training import Batch, hidden, learning_rate

from packed_ss import load_model
from packed_ss.models import adapter, nemotron
from packed_ss.models.export import write_adapter
from packed_ss.models.transformer import Transformer

NAME = "linear_spec_lora"
FIRST_STEP = 100_000  # the base model's own training ended long before


def give_adapter(model: Transformer, rank: int, seed: int) -> list[torch.nn.Parameter]:
    """Attaches updates of zero, A random and B zero, to the output projections of "tiny", and returns what is to be trained."""
    model.requires_grad_(False)
    known = adapter.targets(nemotron.tensor_map(model.config))
    chosen = [target for module, target in known.items() if module.endswith(".o_proj")]
    adapter.attach(model, chosen, rank)
    generator = torch.Generator().manual_seed(seed)
    weights = []
    for target in chosen:
        down, _ = adapter.part_of(model, target)
        down.copy_(torch.randn(down.shape, generator=generator) / math.sqrt(target.size_in))
        weights += model.get_submodule(target.parameter.removesuffix(".weight")).adapter.parameters()
    return [weight.requires_grad_() for weight in weights]


def predictions(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [K, V] and targets [K] of the drafting rows that have one."""
    first = batch.clean_rows
    wanted = batch.targets[:, first:] >= 0
    x = hidden(model, batch, batch.ids.shape[1] - first)[:, first:][wanted]
    return model.head(model.norm(x)), batch.targets[:, first:][wanted]


@torch.no_grad()
def evaluate(model: Transformer, tokenizer: Tokenizer, block: int, count: int = 64) -> dict[str, float]:
    """On held-out problems: nats per drafted token, the share that is right, and the right ones that lead a block, on average."""
    texts = [encode(tokenizer, p) for p in itertools.islice(problems(HELD_OUT_SEED, held_out=True), count)]
    batch = make_batch(texts, block, random.Random(0))
    logits, targets = predictions(model, batch)
    right = torch.zeros_like(batch.targets[:, batch.clean_rows :], dtype=torch.bool)
    right[batch.targets[:, batch.clean_rows :] >= 0] = logits.argmax(-1) == targets
    leading = right.view(-1, block)[:, 1:].long().cumprod(1).sum(1)
    return {
        "loss": F.cross_entropy(logits, targets).item(),
        "right": (logits.argmax(-1) == targets).float().mean().item(),
        "leading": leading.float().mean().item(),
    }


def train(
    model: Transformer, tokenizer: Tokenizer, weights: list[torch.nn.Parameter], steps: int, size: int, rate: float
) -> None:
    """Trains ``weights`` for ``steps`` batches of ``size`` problems."""
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step, batch in track(zip(range(steps), batches(tokenizer, size, FIRST_STEP), strict=False), "adapter", steps):
        optimizer.param_groups[0]["lr"] = rate * learning_rate(step, steps, warm=20)
        loss = F.cross_entropy(*predictions(model, batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="packed_ss/assets/tiny", help="folder of the base model")
    parser.add_argument("--out", help=f"folder of the adapter; default: {NAME} in the checkpoint's")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="problems per step")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--rank", type=int, default=16, help="r; alpha is twice that")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first A")
    args = parser.parse_args()
    folder = Path(args.checkpoint)
    model = load_model(folder, device="cpu", dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    weights = give_adapter(model, args.rank, args.seed)
    block = model.config.block_size
    before = evaluate(model, tokenizer, block)
    train(model, tokenizer, weights, args.steps, args.batch, args.rate)
    write_adapter(model, Path(args.out or folder / NAME), alpha=2.0 * args.rank)
    written = load_model(folder, device="cpu", dtype=torch.float32, adapter=Path(args.out or folder / NAME).resolve())
    print(json.dumps({"without": before, "with": evaluate(written, tokenizer, block)}))


if __name__ == "__main__":
    main()
