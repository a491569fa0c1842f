"""``packed-ss generate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..decoder import GenerateOutput
from ..evaluation.compare import chat_prompt, decoder_for, parse_schedule, settings_for
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
    """Reads the prompt, decodes it, prints the answer and a line of figures (on standard error), or one JSON object."""
    text = read_prompt(prompt, file)
    parsed = parse_schedule(schedule)
    network, tokenizer = load_model(model), load_tokenizer(model)
    ids = tokenizer.encode(text, add_special_tokens=True) if raw else chat_prompt(tokenizer, text)
    if not ids:
        raise ValueError("the prompt is empty, but at least one token is needed")
    settings = settings_for(network.config, block_size=block_size, window=window, order=order)
    decoder = decoder_for(network)(network, parsed, max_length=len(ids) + max(max_new_tokens, 0), **settings)
    streamer = None if as_json else _streamer(tokenizer)
    stops = [tokenizer.encode(one, add_special_tokens=False) for one in stop]
    if network.head.weight.is_cuda:  # captures the iteration, so that the time below is the decoding's
        decoder.generate(ids, max_new_tokens=min(max_new_tokens, 1), stop_sequences=stops, **sampling)
    out = decoder.generate(ids, max_new_tokens=max_new_tokens, stop_sequences=stops, streamer=streamer, **sampling)
    if as_json:
        record = {
            "model": model,
            "schedule": schedule,
            **decoder.steps.settings,
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
    """One line about a single-prompt generation."""
    count, nfe = len(out.tokens[0]), out.nfe[0]
    return (
        f"[{count} tokens in {nfe} calls, {count / max(nfe, 1):.2f} per call; {out.seconds:.3f} s, "
        f"{count / max(out.seconds, 1e-9):.0f} tokens/s; ended by {out.finish_reason[0]}]"
    )


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from the argument, a file, or standard input.  Raises ValueError where there is none or it is empty."""
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
