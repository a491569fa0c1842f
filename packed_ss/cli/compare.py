"""``packed-ss compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..evaluation.compare import compare
from ..evaluation.extras import need
from ..evaluation.options import decoders_by_name, parse_schedule
from ..evaluation.problems import read_problems
from ..evaluation.totals import Totals
from ..models.loading import load_model, resolve_folder
from ..models.tokenizer import load_tokenizer


def run(
    model: str,
    problems: Path | None,
    limit: int | None,
    schedules: list[str] | None,
    *,
    block_size: int | None,
    window: int | None,
    orders: list[str],
    as_json: bool,
    plot: Path | None,
    **sampling: Any,
) -> None:
    """Measure, then print a table (or JSON) and write the figure if one is asked for."""
    if schedules is not None and not schedules:
        raise ValueError("no schedule was given, but at least one is needed")
    for schedule in schedules or ():
        parse_schedule(schedule)
    if plot is not None:
        need("--plot", "matplotlib")
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"the figure is {plot}, but its ending must be .png, .svg or .pdf")
    folder = resolve_folder(model)
    records = read_problems(problems or folder / "held_out.jsonl", limit)
    network, tokenizer = load_model(model), load_tokenizer(model)
    compared = decoders_by_name(network.config, schedules or (), orders, block_size=block_size, window=window)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=as_json) as bar:
        task = bar.add_task("decoding", total=len(records) * len(compared))
        totals = compare(network, tokenizer, records, compared, progress=lambda: bar.advance(task), **sampling)
    if network.config.layout == "block":
        shape: dict[str, Any] = {"block_size": block_size or network.config.block_size}
        shown = f"B = {shape['block_size']}"
    else:
        shape = {"window": next(iter(compared.values()))["window"], "orders": orders or ["left_to_right"]}
        shown = f"W = {shape['window']}" + (f", {orders[0].replace('_', ' ')}" if len(orders) == 1 else "")
    title = f"{model}, {shown}, {len(records)} problems, temperature {sampling['temperature']:g}"
    if plot is not None:
        from ..evaluation.plots import plot_comparison

        plot_comparison(totals, plot, title)
    if as_json:
        print(json.dumps({"model": model, **shape, **sampling, "schedules": [s.as_dict() for s in totals]}))
    else:
        Console().print(table(totals, title))


def table(totals: list[Totals], title: str) -> Table:
    """Tabulate the rates of every schedule, and their ratio to linear's where linear was run."""
    linear = next((s for s in totals if s.schedule == "linear"), None)
    out = Table(title=title, box=SIMPLE, padding=(0, 1), show_edge=False)
    for name in ("schedule", "tokens/NFE", "ms/NFE", "tokens/s", "accuracy", "same"):
        out.add_column(name, justify="left" if name == "schedule" else "right", no_wrap=True)

    def cell(one: Totals, rate: str, digits: int) -> str:
        value, base = getattr(one, rate), getattr(linear, rate, 0.0)
        ratio = f" {value / base:5.2f}x" if base else ""
        return f"{value:.{digits}f}{ratio}"

    for s in totals:
        out.add_row(
            s.schedule,
            cell(s, "tokens_per_nfe", 2),
            cell(s, "ms_per_nfe", 2),
            cell(s, "tokens_per_second", 0),
            f"{100 * s.correct:.1f} %",
            "random" if s.equal is None else f"{s.equal}/{s.prompts}",
        )
    against = f"x: against {linear.schedule}; " if linear else ""
    out.caption = f"{against}same: outputs equal to those of {totals[0].schedule}"
    return out
