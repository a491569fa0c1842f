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

import random
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
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
    text_batches,
    train,
)

from packed_ss.models.config import ModelConfig, RopeConfig
from packed_ss.models.export import write_nemotron

__all__ = ["EOS", "HELD_OUT_PROBLEMS", "HELD_OUT_SEED", "MASK", "batches", "encode", "make_batch", "tiny_config"]

MASK_ROWS = 64  # mask rows per problem and step, whatever the block size


def tiny_config() -> ModelConfig:
    """3 M parameters; head_dim x heads is not the hidden size; YaRN and the query scale act from position 64 on."""
    rope = RopeConfig(
        theta=10_000.0, yarn_factor=16.0, original_max_position=64, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1
    )
    return ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_layers=5,
        intermediate_size=512,
        num_heads=6,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-5,
        mask_token_id=MASK,
        eos_token_ids=(EOS,),
        block_size=16,
        max_position=1024,
        dtype="bfloat16",
        model_type="nemotron_labs_diffusion",
        rope=rope,
    )


def make_batch(texts: list[Text], block: int, r: random.Random) -> Batch:
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
        targets[i, len(prompt) - 1 : len(text) - 1] = text[len(prompt) :]
        for b in range(blocks):
            first = r.randrange(len(prompt) - 1, len(text) - 1)
            at = clean + b * block
            ids[i, at], ids[i, at + 1 : at + block] = text[first], MASK
            positions[i, at : at + block] = torch.arange(first, first + block)
            open_ = text[first + 1 : first + block]
            targets[i, at + 1 : at + 1 + len(open_)] = open_
            start[i, b] = first
    visible = torch.zeros((n, rows, rows), dtype=torch.bool)
    visible[:, :clean, :clean] = torch.ones(clean, clean).tril().bool()
    owner = torch.arange(blocks).repeat_interleave(block)
    visible[:, clean:, :clean] = torch.arange(clean) < start[:, owner, None]
    visible[:, clean:, clean:] = owner[:, None] == owner[None]
    return Batch(ids, positions, visible.unsqueeze(1), targets, clean, (slice(None, clean), slice(clean, None)))


def batches(tokenizer: Tokenizer, size: int, step: int) -> Iterator[Batch]:
    """Batches from ``step`` on, each with one block size."""
    for texts, block, r in text_batches(tokenizer, size, step, lambda r: r.choice((8, 16, 16, 32))):
        yield make_batch(texts, block, r)


def main() -> None:
    parser = arguments(__doc__, work="build/tiny", out="packed_ss/assets/tiny")
    train(Recipe(tiny_config(), batches, ("ar", "mask"), write_nemotron), parser.parse_args())


if __name__ == "__main__":
    main()
