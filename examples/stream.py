"""Decode in a thread and read the text while it grows, with transformers' TextIteratorStreamer."""

from __future__ import annotations

from threading import Thread

from transformers import TextIteratorStreamer

import packed_ss

QUESTION = "Maya has 14 shells. She finds 9 more at the beach. Then she loses 5 of them. How many shells are left?"


def main() -> None:
    model, tokenizer = packed_ss.load_model("tiny"), packed_ss.load_tokenizer("tiny")
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    decoder = packed_ss.Decoder(model, schedule="packed", max_length=256)
    # The timeout keeps the reader from waiting forever should the thread fail.
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60, skip_special_tokens=True)
    thread = Thread(target=decoder.generate, args=(prompt, 128), kwargs={"streamer": streamer})
    thread.start()
    for text in streamer:
        print(text, end="", flush=True)
    thread.join()


if __name__ == "__main__":
    main()
