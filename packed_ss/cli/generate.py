"""``packed-ss generate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..decoder import Decoder, GenerateOutput
from ..evaluation.options import decoder_options, parse_schedule
from ..evaluation.prompts import chat_prompt
from ..models.loading import load_model
from ..models.tokenizer import load_tokenizer


def run(
    prompt: str | None,
    file: Path | None,
    *,
    model: str,
    schedule: str,
    block_size: int | None,
    window: int | None,
    order: str | None,
    stop: list[str],
    raw: bool,
    as_json: bool,
    max_new_tokens: int,
    **sampling: Any,
) -> None:
    """Read the prompt, decode it, print the answer and a line of figures (on standard error), or one JSON object."""
    text = read_prompt(prompt, file)
    parsed = parse_schedule(schedule)
    network, tokenizer = load_model(model), load_tokenizer(model)
    ids = tokenizer.encode(text, add_special_tokens=True) if raw else chat_prompt(tokenizer, text)
    if not ids:
        raise ValueError("the prompt is empty, but at least one token is needed")
    options = decoder_options(network.config, block_size=block_size, window=window, order=order)
    decoder = Decoder(network, parsed, max_length=len(ids) + max(max_new_tokens, 0), **options)
    streamer = None if as_json else _streamer(tokenizer)
    stops = [tokenizer.encode(one, add_special_tokens=False) for one in stop]
    if decoder.runtime.name == "captured":  # captures the iteration, so that the time below is the decoding's
        decoder.generate(ids, max_new_tokens=min(max_new_tokens, 1), stop_sequences=stops, **sampling)
    out = decoder.generate(ids, max_new_tokens=max_new_tokens, stop_sequences=stops, streamer=streamer, **sampling)
    if as_json:
        record = {
            "model": model,
            "schedule": schedule,
            **decoder.layout.settings,
            "prompt": text,
            "prompt_tokens": ids,
            "tokens": out.tokens[0].tolist(),
            "text": tokenizer.decode(out.tokens[0], skip_special_tokens=True),
            "finish_reason": out.finish_reason[0],
            "nfe": out.nfe[0],
            "advances": out.advances[0],
            "seconds": out.seconds,
            "max_new_tokens": max_new_tokens,
            "stop_sequences": stops,
            **sampling,
        }
        print(json.dumps(record))
    else:
        print(figures(out), file=sys.stderr)


def figures(out: GenerateOutput) -> str:
    """Sum up a single-prompt generation on one line."""
    count, nfe = len(out.tokens[0]), out.nfe[0]
    return (
        f"[{count} tokens in {nfe} calls, {count / max(nfe, 1):.2f} per call; {out.seconds:.3f} s, "
        f"{count / max(out.seconds, 1e-9):.0f} tokens/s; ended by {out.finish_reason[0]}]"
    )


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, a file, or standard input.  Raise ValueError where there is none or it is empty."""
    if prompt is not None and file is not None:
        raise ValueError("both a prompt and --file were given, but only one of them is needed")
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{file} cannot be read as UTF-8 text: {error}") from error
    elif prompt is None or prompt == "-":
        if sys.stdin.isatty():
            raise ValueError("no prompt was given: pass it as an argument, with --file, or on standard input")
        text = sys.stdin.read()
    else:
        text = prompt
    if not text.strip():
        raise ValueError("the prompt is empty, but some text is needed")
    return text.rstrip("\n")


def _streamer(tokenizer: Any) -> Any:
    from transformers import TextStreamer

    return TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
