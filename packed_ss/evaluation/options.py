"""Decoder options as the command line and the benches name them: schedules, widths and orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.config import ModelConfig
from ..schedules import NAMES, ORDERED_NAMES, Branched

#: Schedules to compare where none are named, by layout.
SCHEDULES = {"block": NAMES, "ordered": ("autoregressive", "native", "linear", "packed", "quadratic")}


def parse_schedule(text: str) -> str | Branched:
    """Return the schedule called ``text``, which may be ``branched:0,4,8``.  Raise ValueError for anything else."""
    if text in ORDERED_NAMES:
        return text
    kind, _, cuts = text.partition(":")
    if kind == "branched" and all(c.strip().isdigit() for c in cuts.split(",")):
        return Branched(int(c) for c in cuts.split(","))
    raise ValueError(f"schedule is {text!r}, but it must be one of {', '.join(ORDERED_NAMES)} or branched:0,4,... with its cuts")


def decoder_options(
    config: ModelConfig, *, block_size: int | None = None, window: int | None = None, order: str | None = None
) -> dict[str, Any]:
    """Return a decoder's keyword arguments; an ordered model's window is by default half of its horizon (App. E.1)."""
    if config.layout == "ordered" and window is None and config.horizon is not None:
        window = max(1, config.horizon // 2)
    return {"block_size": block_size, "window": window, "order": order}


def decoders_by_name(
    config: ModelConfig,
    schedules: Sequence[str],
    orders: Sequence[str] = (),
    *,
    block_size: int | None = None,
    window: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Return a decoder's keyword arguments for every schedule in every order that it has, by the name to list it under.

    No schedules: those of the layout.  Raise ValueError for an unknown one.
    """
    found: dict[str, dict[str, Any]] = {}
    for schedule in schedules or SCHEDULES[config.layout]:
        has_orders = config.layout != "ordered" or schedule not in ("autoregressive", "native")
        own: Sequence[str | None] = orders if orders and has_orders else [None]
        for order in own:
            name = schedule if order in (None, "left_to_right") else f"{schedule}, {order}"
            options = decoder_options(config, block_size=block_size, window=window, order=order)
            found[name] = {"schedule": parse_schedule(schedule), **options}
    return found
