"""Prompts of different lengths in one batch, each with its own sampling settings and seed, and stop sequences for all."""

from __future__ import annotations

import packed_ss

QUESTIONS = (
    "Tom starts with 33 marbles. He loses 8 of them. Then he sells 2 marbles. How many marbles are there in the end?",
    "Maya makes 10 muffins in each of 2 batches. The family eats 2 of them. How many muffins are left?",
    "Maya has 14 shells. She finds 9 more at the beach. Then she loses 5 of them. How many shells are left?",
)


def main() -> None:
    model, tokenizer = packed_ss.load_model("tiny"), packed_ss.load_tokenizer("tiny")
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False)
        for text in QUESTIONS
    ]
    decoder = packed_ss.Decoder(model, schedule="packed", max_length=256, batch_size=len(prompts))
    out = decoder.generate(
        prompts,
        max_new_tokens=96,
        temperature=[0.0, 0.7, 1.0],  # the first is greedy
        top_k=[0, 20, 0],
        top_p=[1.0, 1.0, 0.9],
        seed=[1, 2, 3],
        # Token sequences: a text is found where it is tokenised the same way.
        stop_sequences=[tokenizer.encode("The answer", add_special_tokens=False)],
    )
    for question, tokens, reason, nfe in zip(QUESTIONS, out.tokens, out.finish_reason, out.nfe, strict=True):
        print(f"{question}\n{tokenizer.decode(tokens, skip_special_tokens=True)}")
        print(f"[{len(tokens)} tokens in {nfe} calls; ended by {reason}]\n")


if __name__ == "__main__":
    main()
