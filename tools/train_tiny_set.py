"""Trains the bundled checkpoint "tiny-set" and writes it in the public SetDLM format.

    python tools/train_tiny_set.py --work build/tiny-set --minutes-per-save 2
    python tools/train_tiny_set.py --work build/tiny-set --evaluate     # exact answers with the last save, left to right

Set diffusion with duplicate masks: every position of an answer stands there as a token and as a MASK at the same position id,
and an order of the answer says who sees whom.

* Clean rows: the prompt, causal, then the answer's tokens in the order, each seeing the prompt, the tokens before it and itself.
* Verifier masks, one per answer token: each sees the prompt, the tokens before its own in the order, and itself, and predicts
  its own position.
* Drafting masks, `DRAFT_ROWS` per problem: each is at an open position of the window after some cut of the order (a position
  after the end is an end token too), and sees the prompt, the tokens before the cut, and itself.

No mask row sees another mask.  The order is left to right for a share of the problems.  For the others position j gets the time
j + U * 2S with a uniform U of its own, and the order is that of time: a token comes before another one to its left only if they
are less than 2S apart, so that orders stay inside windows of 2S positions.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from problems import Problem, final_answer, problems
from tokenizers import Tokenizer
from torch import Tensor
from training import (
    EOS,
    HELD_OUT_PROBLEMS,
    HELD_OUT_SEED,
    MASK,
    PAD,
    VOCABULARY,
    Batch,
    Recipe,
    Text,
    arguments,
    encode,
    hidden,
    text_batches,
    train,
    train_tokenizer,
)

from packed_ss.models.config import ModelConfig, RopeConfig
from packed_ss.models.export import write_setdlm
from packed_ss.models.transformer import Transformer

DRAFT_ROWS = 32
LEFT_TO_RIGHT = 0.7  # share of problems in that order
SPREADS = (8, 16, 32)  # 2S of the others' orders; the largest is the horizon
WINDOWS = (8, 16)  # W of the drafting masks
NEW_TOKENS = 160  # the most that an evaluated answer may take


def tiny_set_config() -> ModelConfig:
    """3 M parameters; a tied head, q/k norms, and head_dim x heads is not the hidden size.

    A mask row needs a layer to read the token before it, hence one layer more than "tiny" has.
    """
    return ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_layers=6,
        intermediate_size=512,
        num_heads=6,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-6,
        mask_token_id=MASK,
        eos_token_ids=(EOS,),
        max_position=1024,
        qk_norm=True,
        tie_word_embeddings=True,
        dtype="bfloat16",
        model_type="bd3lm",
        rope=RopeConfig(theta=10_000.0),
        layout="ordered",
        horizon=max(SPREADS),
        excluded_token_ids=(MASK,),
    )


def draw_order(length: int, r: random.Random) -> list[int]:
    """An order of the answer positions 0 ... length - 1."""
    if r.random() < LEFT_TO_RIGHT:
        return list(range(length))
    spread = r.choice(SPREADS)
    time = [j + spread * r.random() for j in range(length)]
    return sorted(range(length), key=time.__getitem__)


def draw_drafts(order: Sequence[int], r: random.Random) -> list[tuple[int, int]]:
    """`DRAFT_ROWS` pairs of a cut of the order and an open answer position in the window after it, which may be after the end."""
    length, drawn = len(order), []
    rank = {j: k for k, j in enumerate(order)}
    leftmost = [min(order[cut:]) for cut in range(length)]
    for _ in range(DRAFT_ROWS):
        cut, window = r.randrange(length), r.choice(WINDOWS)
        first = leftmost[cut]
        drawn.append((cut, r.choice([j for j in range(first, first + window) if rank.get(j, length) >= cut])))
    return drawn


def make_batch(texts: list[Text], r: random.Random) -> Batch:
    """Lays out problems of similar length, each with an order of its own."""
    n, clean, answers = len(texts), max(len(p) + len(a) for p, a in texts), max(len(a) for _, a in texts)
    rows = clean + answers + DRAFT_ROWS
    ids = torch.full((n, rows), PAD)
    positions = torch.zeros((n, rows), dtype=torch.long)
    targets = torch.full((n, rows), -100)
    seen = torch.zeros((n, rows), dtype=torch.long)  # the clean rows from the first on that a row sees
    for i, (prompt, answer) in enumerate(texts):
        p, a = len(prompt), len(answer)
        order = draw_order(a, r)
        drafts = draw_drafts(order, r)
        verifier, drafting = slice(clean, clean + a), slice(clean + answers, None)
        ids[i, : p + a] = torch.tensor(prompt + [answer[j] for j in order])
        ids[i, verifier], ids[i, drafting] = MASK, MASK
        positions[i, : p + a] = torch.tensor([*range(p), *(p + j for j in order)])
        positions[i, verifier] = positions[i, p : p + a]
        positions[i, drafting] = torch.tensor([p + j for _, j in drafts])
        targets[i, verifier] = ids[i, p : p + a]
        targets[i, drafting] = torch.tensor([answer[j] if j < a else EOS for _, j in drafts])
        seen[i, : p + a] = torch.arange(1, p + a + 1)
        seen[i, verifier] = torch.arange(p, p + a)
        seen[i, drafting] = torch.tensor([p + cut for cut, _ in drafts])
    parts = slice(clean, clean + answers), slice(clean + answers, None)
    return Batch(ids, positions, visibility(seen, clean), targets, clean, parts)


def visibility(seen: Tensor, clean: int) -> Tensor:
    """[N, 1, R, R]: each row sees itself and the clean rows before ``seen`` [N, R]; no mask row sees another one."""
    visible = torch.eye(seen.shape[1], dtype=torch.bool).repeat(seen.shape[0], 1, 1)
    visible[:, :, :clean] |= torch.arange(clean) < seen[..., None]
    return visible.unsqueeze(1)


def batches(tokenizer: Tokenizer, size: int, step: int) -> Iterator[Batch]:
    """Batches from ``step`` on."""
    for texts, _, r in text_batches(tokenizer, size, step, lambda r: None):
        yield make_batch(texts, r)


@torch.no_grad()
def answers_left_to_right(model: Transformer, prompts: list[list[int]], most: int = NEW_TOKENS) -> list[list[int]]:
    """Greedy answers of at most ``most`` tokens, end token included, by full recomputation with one MASK at the next position."""
    texts = [list(prompt) for prompt in prompts]
    running = list(range(len(prompts)))
    for _ in range(most):
        if not running:
            break
        last = max(len(texts[i]) for i in running)
        ids = torch.tensor([texts[i] + [MASK] + [PAD] * (last - len(texts[i])) for i in running])
        rows = torch.arange(last + 1).expand(len(running), -1)
        at = torch.tensor([len(texts[i]) for i in running])
        batch = Batch(ids, rows, (rows[:1, :, None] >= rows[:1, None]).unsqueeze(1), ids, last, ())
        x = hidden(model, batch)[torch.arange(len(running)), at]
        logits = model.head(model.norm(x))
        logits[:, list(model.config.excluded_token_ids)] = -torch.inf
        for i, token in zip(running, logits.argmax(-1).tolist(), strict=True):
            texts[i].append(token)
        running = [i for i in running if texts[i][-1] != EOS]
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


def right_answers(model: Transformer, tokenizer: Tokenizer, tested: list[Problem], size: int = 50) -> int:
    """How many of the problems get the right final answer, greedy and left to right."""
    right = 0
    for begin in range(0, len(tested), size):
        part = tested[begin : begin + size]
        for problem, answer in zip(part, answers_left_to_right(model, [encode(tokenizer, p)[0] for p in part]), strict=True):
            right += final_answer(tokenizer.decode(answer)) == problem.answer
    return right


def evaluate(args: argparse.Namespace) -> None:
    """Prints the share of right answers to the held-out problems with the last save."""
    state = torch.load(Path(args.work) / "state.pt", weights_only=True)
    model = Transformer(tiny_set_config()).requires_grad_(False).eval()
    model.load_state_dict(state["model"])
    tested = list(itertools.islice(problems(HELD_OUT_SEED, held_out=True), args.tested))
    print(f"step {state['step']}: {right_answers(model, train_tokenizer(), tested)} of {len(tested)} answers are right")


def main() -> None:
    parser = arguments(__doc__, work="build/tiny-set", out="packed_ss/assets/tiny-set", steps=1600, decay=0.25)
    parser.add_argument("--evaluate", action="store_true", help="do not train; answer the held-out problems with the last save")
    parser.add_argument("--tested", type=int, default=HELD_OUT_PROBLEMS, help="held-out problems to answer at the end")
    args = parser.parse_args()
    if not args.evaluate:
        train(
            Recipe(
                tiny_set_config(), batches, ("verifier", "draft"), lambda model, out: write_setdlm(model, out, pad_token_id=PAD)
            ),
            args,
        )
    evaluate(args)


if __name__ == "__main__":
    main()
