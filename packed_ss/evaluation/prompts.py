"""Prompts for chat models."""

from __future__ import annotations

from typing import Any


def chat_prompt(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a user message under the checkpoint's chat template, ready for the answer."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return [int(token) for token in ids]
