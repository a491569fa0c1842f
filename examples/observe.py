"""Print what each model call appends, with an observer: no subclass of the decoder, and no second loop."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import packed_ss

QUESTION = "Maya has 14 shells. She finds 9 more at the beach. Then she loses 5 of them. How many shells are left?"


class Calls(packed_ss.Observer):
    """Prints rows, advance and text of each call of a generation of one prompt."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.calls, self.length = tokenizer, 0, 0

    def generation_begins(self, state: Any, request: Any) -> None:
        self.calls, self.length = 0, int(state.length[0])

    def resolve_ends(self, call: Any, outputs: Tensor, state: Any) -> None:
        begin, self.length = self.length, int(state.length[0])
        self.calls += 1
        text = self.tokenizer.decode(state.tokens[0, begin : self.length])
        print(f"call {self.calls:2}: {call.rows:2} rows, advance {self.length - begin:2}  {text!r}")


def main() -> None:
    model, tokenizer = packed_ss.load_model("tiny"), packed_ss.load_tokenizer("tiny")
    chat = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    # Reading the state in between is for the eager runtime: a captured iteration calls nothing while it is replayed.
    decoder = packed_ss.Decoder(model, schedule="packed", max_length=256, runtime="eager", observer=Calls(tokenizer))
    decoder.generate(prompt, max_new_tokens=128)


if __name__ == "__main__":
    main()
