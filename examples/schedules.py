"""One prompt under every schedule: the same text in fewer model calls."""

from __future__ import annotations

import packed_ss

QUESTION = "Maya has 14 shells. She finds 9 more at the beach. Then she loses 5 of them. How many shells are left?"


def main() -> None:
    model, tokenizer = packed_ss.load_model("tiny"), packed_ss.load_tokenizer("tiny")
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    texts = []
    for schedule in ("autoregressive", "linear", "packed", packed_ss.Branched((0, 4, 8)), "quadratic"):
        decoder = packed_ss.Decoder(model, schedule, max_length=256)
        out = decoder.generate(prompt, max_new_tokens=128)
        tokens, nfe = out.tokens[0], out.nfe[0]
        texts.append(tokenizer.decode(tokens, skip_special_tokens=True))
        print(f"{decoder.schedule.name:15} {len(tokens):3} tokens in {nfe:2} calls, {len(tokens) / nfe:.2f} per call")
    print(f"one text: {len(set(texts)) == 1}", texts[0], sep="\n\n")


if __name__ == "__main__":
    main()
