"""``packed-ss bench``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..evaluation.bench.items import Item, load_items
from ..evaluation.bench.plan import Cell, Plan, Wanted, model_cells
from ..evaluation.bench.records import recording
from ..evaluation.bench.report import write_report
from ..evaluation.bench.runner import Models, environment, peers_of, run_plan
from ..evaluation.bench.tables import Table, check_columns
from ..models.loading import BUNDLED, resolve_folder

#: Folder of a proposal-only adapter inside a checkpoint's.
ADAPTER = "linear_spec_lora"
DTYPES = ("float32", "bfloat16", "float16", "float64")
#: What the terminal shows of the tables; all of them are in the report.
_SHOWN = ("table-06", "table-07", "table-09-", "table-10", "table-12", "table-13", "peers")


def run(names: Sequence[str], wanted: Wanted, out: Path, *, overwrite: bool, report_only: bool, columns: Sequence[str], seed: int,
        device: str | None, dtype: str | None, threads: int | None, latency_seconds: float, lora: bool,
        task_files: Sequence[str], allow_code_execution: bool) -> None:
    """Measures what the records in ``out`` lack, then writes tables and figures; or only the latter."""
    check_columns(columns)
    if report_only:
        _finish(write_report(out, columns), out)
        return
    if threads is not None:
        torch.set_num_threads(threads)
    files = _files(task_files)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, but it must be one of {', '.join(DTYPES)}")
    models = Models(where, None if dtype is None else getattr(torch, dtype))
    cells: list[Cell] = []
    obstacles = {}
    for name in names or BUNDLED:
        model = models.model(name)
        greedy, sampling, reasons = peers_of(model)
        obstacles[name] = reasons if wanted.peers else {}
        adapter = ADAPTER if lora and (resolve_folder(name) / ADAPTER).is_dir() else None
        cells += model_cells(name, model.config, wanted, adapter=adapter, peers=greedy, sampling_peers=sampling)
        kind = str(model.head.weight.dtype).removeprefix("torch.")
    plan = Plan(tuple(cells), seed=seed, device=where, dtype=kind, threads=torch.get_num_threads(),
                latency_seconds=latency_seconds)
    items = _items(cells, files, allow_code_execution)
    with recording(out, plan.as_dict(), overwrite) as recorder:
        if recorder.resumed:
            Console(stderr=True).print(f"going on with the {len(recorder.run.responses)} responses in {recorder.path}")
        recorder.note("note", {"what": "start", "environment": environment(where), "peers": obstacles})
        with _progress(cells, items, latency_seconds) as progress:
            run_plan(plan, items, models, recorder, progress)
    _finish(write_report(out, columns), out)


def _files(task_files: Sequence[str]) -> dict[str, Path]:
    """By task, from "task=path"."""
    found = {}
    for text in task_files:
        task, equals, path = text.partition("=")
        if not equals or not task or not path:
            raise ValueError(f"a task file is {text!r}, but TASK=PATH is needed")
        found[task] = Path(path)
    return found


def _items(cells: Sequence[Cell], files: dict[str, Path], allow_code_execution: bool) -> Callable[[Cell], list[Item]]:
    """The prompts of a cell; every task is read at once, so that what is wrong with one shows before anything runs."""
    read: dict[tuple[str, str], list[Item]] = {}
    for cell in cells:
        if (cell.model, cell.task) not in read:
            read[cell.model, cell.task] = load_items(cell.task, resolve_folder(cell.model), None, files.get(cell.task),
                                                     allow_code_execution)
    return lambda cell: read[cell.model, cell.task][: cell.prompts]


@contextlib.contextmanager
def _progress(cells: Sequence[Cell], items: Callable[[Cell], list[Item]],
              latency_seconds: float) -> Iterator[Callable[[str, int | None], None]]:
    """A bar over all responses; what is in the records already passes at once."""
    total = sum(len(items(cell)) * cell.repeats * len(cell.contenders) for cell in cells)
    total += len({cell.model for cell in cells}) if latency_seconds else 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def progress(what: str, count: int | None) -> None:
            bar.update(task, description=what, advance=count is None)

        yield progress


def _finish(tables: Sequence[Table], out: Path) -> None:
    console: Any = Console()
    for table in tables:
        if table.name.startswith(_SHOWN):
            console.print(Markdown(table.markdown()))
    console.print(f"{len(tables)} tables in {out / 'tables'}, figures in {out / 'figures'}, all of them in {out / 'report.md'}")
