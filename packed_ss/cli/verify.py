"""``packed-ss verify``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ..evaluation.verify import Report, verify
from ..models.loading import load_model
from ..models.tokenizer import load_tokenizer

_NEEDED = {"model": str, "prompt_tokens": list, "tokens": list}


def run(path: Path | None, model: str | None, float64: bool, *, as_json: bool) -> None:
    """Check one record of ``generate --json``; exit with code 1 where a token is not what AR emits."""
    record = read_record(path)
    temperature = record.get("temperature", 0.0)
    if temperature >= 1e-5 and record.get("verification") != "coupled":
        raise ValueError(
            f"the output was sampled at temperature {temperature} with verification "
            f"{record.get('verification')!r}, but only greedy and coupled outputs are a function of the model"
        )
    if record.get("order", "left_to_right") != "left_to_right" or record.get("schedule") == "native":
        what = "schedule 'native'" if record.get("schedule") == "native" else f"order {record['order']!r}"
        raise ValueError(
            f"the output was decoded with {what}, but only left_to_right outputs of the other schedules are what plain AR emits"
        )
    name = model or record["model"]
    network = load_model(name, dtype=torch.float64 if float64 else None)
    for token in record["prompt_tokens"] + record["tokens"]:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < network.config.vocab_size:
            raise ValueError(f"the record holds token {token!r}, but ids must be in [0, {network.config.vocab_size})")
    if not record["prompt_tokens"]:
        raise ValueError("the record's prompt_tokens is empty, but at least one token is needed")
    report = verify(
        network,
        record["prompt_tokens"],
        record["tokens"],
        temperature=temperature,
        **{key: record[key] for key in ("top_k", "top_p", "seed") if key in record},
    )
    if as_json:
        print(
            json.dumps(
                {"tokens": report.tokens, "smallest_gap": report.smallest_gap, "mismatches": [vars(m) for m in report.mismatches]}
            )
        )
    else:
        show(report, load_tokenizer(name))
    if report.mismatches:
        sys.exit(1)


def read_record(path: Path | None) -> dict[str, Any]:
    """The record to check.  Raise ValueError for a file that is not one."""
    where = "standard input" if path is None or str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if path is None or str(path) == "-" else path.read_text(encoding="utf-8")
        record = json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"{where} is not the JSON that 'packed-ss generate --json' prints: {error}") from error
    for key, kind in _NEEDED.items():
        if not isinstance(record, dict) or not isinstance(record.get(key), kind):
            raise ValueError(f"{where} has no {key!r}, but the JSON that 'packed-ss generate --json' prints is needed")
    return record


def show(report: Report, tokenizer: Any) -> None:
    """The verdict, and every mismatch with both tokens and the score gap between them."""
    console = Console()
    if not report.mismatches:
        gap = f"; the closest call was token {report.smallest_gap_index}, {report.smallest_gap:.3g} above its runner-up"
        console.print(f"all {report.tokens} tokens are what plain AR emits{gap if report.tokens else ''}")
        return
    console.print(f"{len(report.mismatches)} of {report.tokens} tokens are not what plain AR emits")
    table = Table()
    for name in ("index", "token", "AR emits", "gap"):
        table.add_column(name)
    for m in report.mismatches:
        table.add_row(str(m.index), repr(tokenizer.decode([m.token])), repr(tokenizer.decode([m.expected])), f"{m.gap:.4g}")
    console.print(table)
