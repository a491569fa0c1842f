"""What the bundled checkpoints' training tools share: text, tokenizer, batches, optimizers, and the loop that can be resumed.

Data is a pure function of a fixed seed and the step, so a run that is stopped goes on from its last save and ends in the same
weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from problems import Problem, problems
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F

from packed_ss.models.config import ModelConfig, parameter_count
from packed_ss.models.rope import angles, rotate
from packed_ss.models.transformer import Transformer

SPECIAL = ("<s>", "</s>", "<mask>", "<|user|>", "<|assistant|>", "<pad>")
BOS, EOS, MASK, USER, ASSISTANT, PAD = range(len(SPECIAL))
CHAT_TEMPLATE = (
    "{{ '<s>' }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '</s>' }}"
    "{% else %}{{ raise_exception('roles are user and assistant') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
VOCABULARY = 896
HELD_OUT_PROBLEMS, HELD_OUT_SEED, TRAIN_SEED = 200, 7, 20_261_130
POOL_STEPS = 32  # steps whose problems are drawn together and grouped by length

Text = tuple[list[int], list[int]]
"""Prompt ids and answer ids of a problem."""


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE over the problems' own text; every digit is a token of its own, with the space before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r" ?\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    sample = itertools.islice(problems(TRAIN_SEED - 1), 20_000)
    tokenizer.train_from_iterator((text for p in sample for text in (p.question, p.solution)), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, problem: Problem) -> Text:
    """Prompt ids and answer ids, the chat template applied."""
    prompt = [BOS, USER, *tokenizer.encode(problem.question, add_special_tokens=False).ids, ASSISTANT]
    return prompt, [*tokenizer.encode(problem.solution, add_special_tokens=False).ids, EOS]


def text_batches(
    tokenizer: Tokenizer, size: int, step: int, draw: Callable[[random.Random], Any]
) -> Iterator[tuple[list[Text], Any, random.Random]]:
    """The problems of each step from ``step`` on, similar in length, with what ``draw`` draws for the step and its randomness."""
    for pool in itertools.count(step // POOL_STEPS):
        r = random.Random(TRAIN_SEED * 1_000_003 + pool)
        stream = problems(r.randrange(2**62))
        texts = sorted((encode(tokenizer, next(stream)) for _ in range(size * POOL_STEPS)), key=lambda t: len(t[0]) + len(t[1]))
        order = list(range(POOL_STEPS))
        r.shuffle(order)
        for k, chunk in enumerate(order):
            drawn, seed = draw(r), r.randrange(2**62)
            if pool * POOL_STEPS + k >= step:
                yield texts[chunk * size : (chunk + 1) * size], drawn, random.Random(seed)


@dataclass
class Batch:
    """One step's rows: clean rows first.  ``parts`` are the runs of rows with a loss of their own; a target of -100 has none."""

    ids: Tensor  # [N, R]
    positions: Tensor  # [N, R]
    visible: Tensor  # [N, 1, R, R] bool
    targets: Tensor  # [N, R]
    clean_rows: int
    parts: tuple[slice, ...]


def hidden(model: Transformer, batch: Batch, proposal_rows: int = 0) -> Tensor:
    """The residual stream after the last block, [N, R, H]; an adapter acts on the last ``proposal_rows`` rows."""
    cos, sin, scale = angles(model.config.rope, model.frequencies, batch.positions)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if scale is not None:
            q = q * scale[..., None, None].to(q.dtype)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=batch.visible, enable_gqa=True
        )
        return out.transpose(1, 2)

    x, update = model.embed(batch.ids), None
    for block in model.blocks:
        x, update = block(x, update, attend, proposal_rows)
    return x + update


def losses(model: Transformer, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Of each part, the loss in nats per predicted token and the share predicted right."""
    with torch.autocast("cpu", torch.bfloat16):
        x = hidden(model, batch)
        out = []
        for part in batch.parts:
            wanted = batch.targets[:, part] >= 0
            out.append((model.head(model.norm(x[:, part][wanted])).float(), batch.targets[:, part][wanted]))
    return (
        [F.cross_entropy(logits, target) for logits, target in out],
        [(logits.argmax(-1) == target).float().mean() for logits, target in out],
    )


def learning_rate(step: int, steps: int, decay: float = 0.4, warm: int = 100) -> float:
    """Factor on the peak rate: linear warm-up, flat, then linear to zero over the last ``decay`` of the steps."""
    return min(1.0, (step + 1) / warm, (steps - step) / (decay * steps))


@dataclass(frozen=True)
class Recipe:
    """What distinguishes one checkpoint: its shape, its batches from a step on, the names of their parts, and its format."""

    config: ModelConfig
    batches: Callable[[Tokenizer, int, int], Iterator[Batch]]
    parts: tuple[str, ...]
    write: Callable[[Transformer, Path], None]


def first_weights(config: ModelConfig, seed: int) -> Transformer:
    """A model before its first step."""
    torch.manual_seed(seed)
    model = Transformer(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            spread = 0.02 if "embed" in name else 1 / math.sqrt(weight.shape[1])
            depth = math.sqrt(2 * config.num_layers) if ".out" in name or ".down" in name else 1
            torch.nn.init.normal_(weight, std=spread / depth)
    for block in model.blocks:
        for norm in (block.q_norm, block.k_norm):
            if norm is not None:  # in float32 like the other norms, which read the residual stream
                norm.register_forward_pre_hook(lambda module, given: (given[0].float(),))
    return model


def train(recipe: Recipe, args: argparse.Namespace) -> None:
    """Trains from the last save in ``args.work`` (from the beginning without one), then writes the checkpoint to ``args.out``."""
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    model = first_weights(recipe.config, args.seed)
    matrices = [w for n, w in model.named_parameters() if w.dim() == 2 and n.startswith("blocks")]
    others = [w for n, w in model.named_parameters() if w.dim() != 2 or not n.startswith("blocks")]
    optimizers = [
        torch.optim.Muon(matrices, lr=args.rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    first, save = 0, work / "state.pt"
    if save.exists():
        state = torch.load(save, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        first = state["step"]

    def store(step: int) -> None:
        state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}
        torch.save(state, work / "state.part")
        (work / "state.part").replace(save)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    saved = time.monotonic()
    with Progress(*columns) as bar, (work / "log.jsonl").open("a") as log:
        task = bar.add_task(f"{parameter_count(recipe.config) / 1e6:.2f} M parameters", total=args.steps, completed=first)
        for step, batch in zip(range(first, args.steps), recipe.batches(tokenizer, args.batch, first), strict=False):
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = args.rate * learning_rate(step, args.steps, args.decay)
            loss, right = losses(model, batch)
            (loss[0] + args.mask_weight * loss[1]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            line = {"step": step + 1}
            line |= {f"{name}_loss": round(one.item(), 4) for name, one in zip(recipe.parts, loss, strict=True)}
            line |= {f"{name}_right": round(one.item(), 4) for name, one in zip(recipe.parts, right, strict=True)}
            log.write(json.dumps(line) + "\n")
            told = "  ".join(f"{name} {one:.3f}" for name, one in zip(recipe.parts, loss, strict=True))
            bar.update(task, completed=step + 1, description=f"{told}  right " + " ".join(f"{one:.3f}" for one in right))
            if time.monotonic() - saved > 60 * args.minutes_per_save or step + 1 == args.steps:
                log.flush()
                store(step + 1)
                saved = time.monotonic()
    recipe.write(model, Path(args.out))
    write_texts(tokenizer, Path(args.out))


def write_texts(tokenizer: Tokenizer, out: Path) -> None:
    """What stands beside the weights in a checkpoint folder: the tokenizer with its chat template, and the held-out problems."""
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        mask_token="<mask>",
        pad_token="<pad>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out)
    lines = [
        json.dumps({"question": p.question, "solution": p.solution, "answer": p.answer})
        for p in itertools.islice(problems(HELD_OUT_SEED, held_out=True), HELD_OUT_PROBLEMS)
    ]
    (out / "held_out.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def arguments(description: str | None, *, work: str, out: str, steps: int = 2000, decay: float = 0.4) -> argparse.ArgumentParser:
    """The settings that the tools have; the arguments are defaults of those in which they differ."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default=work, help="folder for the resumable state and the log")
    parser.add_argument("--out", default=out, help="folder of the finished checkpoint")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--decay", type=float, default=decay, help="share of the steps at the end over which the rate goes to 0")
    parser.add_argument("--batch", type=int, default=64, help="problems per step")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--mask-weight", type=float, default=1.0, help="weight of the drafting rows' loss against the other one")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first weights")
    parser.add_argument("--minutes-per-save", type=float, default=2.0)
    return parser
