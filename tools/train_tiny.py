"""Trains the bundled checkpoint "tiny" and writes it in the public Nemotron-Labs-Diffusion format.

    python tools/train_tiny.py --work build/tiny --minutes-per-save 2

One network, two losses, as in the public dual-mode models:

* next token on clean rows under a causal mask;
* the rows of all-mask blocks: ``[last token, MASK ... MASK]`` starting anywhere in the answer, which see the clean rows
  before the block and their own block both ways; every mask row predicts its own position.

Both are in one forward pass: clean rows first, then the blocks, under one attention mask.  Data is a pure function of
the seed and the step, so a run that is stopped goes on from its last save and ends in the same weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from problems import Problem, problems
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F

from packed_ss.models.config import ModelConfig, RopeConfig, parameter_count
from packed_ss.models.export import write_nemotron
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
MASK_ROWS = 64  # mask rows per problem and step, whatever the block size
HELD_OUT_PROBLEMS, HELD_OUT_SEED, TRAIN_SEED = 200, 7, 20_261_130


def tiny_config() -> ModelConfig:
    """3 M parameters; head_dim x heads is not the hidden size; YaRN and the query scale act from position 64 on."""
    rope = RopeConfig(theta=10_000.0, yarn_factor=16.0, original_max_position=64, mscale=1.0, mscale_all_dim=1.0,
                      llama_4_scaling_beta=0.1)
    return ModelConfig(vocab_size=VOCABULARY, hidden_size=256, num_layers=5, intermediate_size=512, num_heads=6,
                       num_kv_heads=2, head_dim=32, rms_norm_eps=1e-5, mask_token_id=MASK, eos_token_ids=(EOS,),
                       block_size=16, max_position=1024, dtype="bfloat16", model_type="nemotron_labs_diffusion", rope=rope)


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE over the problems' own text; every digit is a token of its own, with the space before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r" ?\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(SPECIAL), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    sample = itertools.islice(problems(TRAIN_SEED - 1), 20_000)
    tokenizer.train_from_iterator((text for p in sample for text in (p.question, p.solution)), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, problem: Problem) -> tuple[list[int], list[int]]:
    """Prompt ids and answer ids, the chat template applied."""
    prompt = [BOS, USER, *tokenizer.encode(problem.question, add_special_tokens=False).ids, ASSISTANT]
    return prompt, [*tokenizer.encode(problem.solution, add_special_tokens=False).ids, EOS]


@dataclass
class Batch:
    """One step's rows: clean rows, then mask blocks.  ``targets`` is -100 where a row has no loss."""

    ids: Tensor  # [N, R]
    positions: Tensor  # [N, R]
    visible: Tensor  # [N, 1, R, R] bool
    targets: Tensor  # [N, R]
    clean_rows: int


def make_batch(texts: list[tuple[list[int], list[int]]], block: int, r: random.Random) -> Batch:
    """Lays out problems of similar length with ``MASK_ROWS / block`` mask blocks each."""
    n, blocks = len(texts), MASK_ROWS // block
    clean = max(len(p) + len(a) for p, a in texts)
    rows = clean + blocks * block
    ids = torch.full((n, rows), PAD)
    positions = torch.zeros((n, rows), dtype=torch.long)
    positions[:, :clean] = torch.arange(clean)
    targets = torch.full((n, rows), -100)
    start = torch.zeros((n, blocks), dtype=torch.long)  # position of each block's first row
    for i, (prompt, answer) in enumerate(texts):
        text = torch.tensor(prompt + answer)
        ids[i, : len(text)] = text
        targets[i, len(prompt) - 1: len(text) - 1] = text[len(prompt):]
        for b in range(blocks):
            first = r.randrange(len(prompt) - 1, len(text) - 1)
            at = clean + b * block
            ids[i, at], ids[i, at + 1: at + block] = text[first], MASK
            positions[i, at: at + block] = torch.arange(first, first + block)
            open_ = text[first + 1: first + block]
            targets[i, at + 1: at + 1 + len(open_)] = open_
            start[i, b] = first
    visible = torch.zeros((n, rows, rows), dtype=torch.bool)
    visible[:, :clean, :clean] = torch.ones(clean, clean).tril().bool()
    owner = torch.arange(blocks).repeat_interleave(block)
    visible[:, clean:, :clean] = torch.arange(clean) < start[:, owner, None]
    visible[:, clean:, clean:] = owner[:, None] == owner[None]
    return Batch(ids, positions, visible.unsqueeze(1), targets, clean)


def batches(tokenizer: Tokenizer, size: int, step: int):
    """Batches from ``step`` on.  Each pool of 32 batches is drawn by its own seed and grouped by length."""
    pool_steps = 32
    for pool in itertools.count(step // pool_steps):
        r = random.Random(TRAIN_SEED * 1_000_003 + pool)
        stream = problems(r.randrange(2**62))
        texts = sorted((encode(tokenizer, next(stream)) for _ in range(size * pool_steps)), key=lambda t: len(t[0]) + len(t[1]))
        order = list(range(pool_steps))
        r.shuffle(order)
        for k, chunk in enumerate(order):
            block = r.choice((8, 16, 16, 32))
            seed = r.randrange(2**62)
            if pool * pool_steps + k >= step:
                yield make_batch(texts[chunk * size: (chunk + 1) * size], block, random.Random(seed))


def losses(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Next-token loss, mask loss (both in nats per predicted token), and the share predicted right of each."""
    cos, sin, scale = angles(model.config.rope, model.frequencies, batch.positions)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, cos, sin) * scale[..., None, None].to(q.dtype), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                             attn_mask=batch.visible, enable_gqa=True)
        return out.transpose(1, 2)

    with torch.autocast("cpu", torch.bfloat16):
        x, update = model.embed(batch.ids), None
        for block in model.blocks:
            x, update = block(x, update, attend)
        x = x + update
        out = []
        for part in (slice(None, batch.clean_rows), slice(batch.clean_rows, None)):
            wanted = batch.targets[:, part] >= 0
            out.append((model.head(model.norm(x[:, part][wanted])).float(), batch.targets[:, part][wanted]))
    loss = [F.cross_entropy(logits, target) for logits, target in out]
    right = [(logits.argmax(-1) == target).float().mean() for logits, target in out]
    return loss[0], loss[1], right[0], right[1]


def learning_rate(step: int, steps: int, warm: int = 100) -> float:
    """Factor on the peak rate: linear warm-up, flat, then linear to zero over the last 40 %."""
    return min(1.0, (step + 1) / warm, (steps - step) / (0.4 * steps))


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    work = Path(args.work)
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    config = tiny_config()
    model = Transformer(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            spread = 0.02 if "embed" in name else 1 / math.sqrt(weight.shape[1])
            depth = math.sqrt(2 * config.num_layers) if ".out" in name or ".down" in name else 1
            torch.nn.init.normal_(weight, std=spread / depth)
    matrices = [w for n, w in model.named_parameters() if w.dim() == 2 and n.startswith("blocks")]
    others = [w for n, w in model.named_parameters() if w.dim() != 2 or not n.startswith("blocks")]
    optimizers = [torch.optim.Muon(matrices, lr=args.rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                  torch.optim.AdamW(others, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)]
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
        task = bar.add_task(f"{parameter_count(config) / 1e6:.2f} M parameters", total=args.steps, completed=first)
        for step, batch in zip(range(first, args.steps), batches(tokenizer, args.batch, first), strict=False):
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = args.rate * learning_rate(step, args.steps)
            ar, mask, ar_right, mask_right = losses(model, batch)
            (ar + args.mask_weight * mask).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            line = {"step": step + 1, "ar_loss": round(ar.item(), 4), "mask_loss": round(mask.item(), 4),
                    "ar_right": round(ar_right.item(), 4), "mask_right": round(mask_right.item(), 4)}
            log.write(json.dumps(line) + "\n")
            bar.update(task, completed=step + 1,
                       description=f"ar {ar:.3f}  mask {mask:.3f}  right {ar_right:.3f} {mask_right:.3f}")
            if time.monotonic() - saved > 60 * args.minutes_per_save or step + 1 == args.steps:
                log.flush()
                store(step + 1)
                saved = time.monotonic()
    write(model, tokenizer, Path(args.out))


def write(model: Transformer, tokenizer: Tokenizer, out: Path) -> None:
    """The checkpoint folder: weights and config, tokenizer with its chat template, and the held-out problems."""
    from transformers import PreTrainedTokenizerFast

    write_nemotron(model, out)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", mask_token="<mask>",
                                      pad_token="<pad>", additional_special_tokens=["<|user|>", "<|assistant|>"],
                                      clean_up_tokenization_spaces=False, model_max_length=1024)
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out)
    lines = [json.dumps({"question": p.question, "solution": p.solution, "answer": p.answer})
             for p in itertools.islice(problems(HELD_OUT_SEED, held_out=True), HELD_OUT_PROBLEMS)]
    (out / "held_out.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="build/tiny", help="folder for the resumable state and the log")
    parser.add_argument("--out", default="packed_ss/assets/tiny", help="folder of the finished checkpoint")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64, help="problems per step")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--mask-weight", type=float, default=1.0, help="weight of the mask loss against the next-token loss")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first weights")
    parser.add_argument("--minutes-per-save", type=float, default=2.0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
