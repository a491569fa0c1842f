"""``packed-ss bench``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from ..evaluation.bench.plan import Plan, Setting, Wanted, model_settings
from ..evaluation.bench.report import write_report
from ..evaluation.bench.run_records import recording
from ..evaluation.bench.runner import Models, baselines_of, environment, run_plan
from ..evaluation.bench.table import FORMATS, Table, check_columns
from ..evaluation.extras import need
from ..evaluation.tasks import Task, load_task
from ..models.loading import BUNDLED, resolve_folder

#: Folder of a proposal-only adapter inside a checkpoint's.
ADAPTER = "linear_spec_lora"
DTYPES = ("float32", "bfloat16", "float16", "float64")
#: What the terminal shows of the tables, by the beginning of their names; all of it is in the report.
_SHOWN = {
    "table-03": ("model", "schedule", "B", "tokens/s"),
    "table-06": ("model", "schedule", "B", "tokens/NFE", "ms/NFE", "tokens/s", "accuracy"),
    "table-07": ("model", "schedule", "B", "tokens/NFE", "ms/NFE", "tokens/s", "accuracy"),
    "table-09-": ("model", "W", "order", "schedule", "tokens/NFE", "tokens/s"),
    "table-10": ("model", "order", "baseline", "temperature", "throughput ratio"),
    "table-12": ("model", "baseline", "throughput ratio", "tokens/NFE ratio"),
    "table-13": ("model", "baseline", "throughput ratio", "tokens/NFE ratio"),
    "baselines": ("model", "decoder", "tokens/s", "tokens/s, × transformers", "note"),
}


def run(
    names: Sequence[str],
    tasks: Sequence[str],
    wanted: Wanted,
    out: Path,
    *,
    overwrite: bool = False,
    report_only: bool = False,
    columns: Sequence[str] = (),
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    latency_seconds: float = 20.0,
    lora: bool = True,
    data: Sequence[str] = (),
    allow_code_execution: bool = False,
) -> None:
    """Measure what the records in ``out`` lack, then write tables and figures; or only the latter."""
    need("packed-ss bench", "matplotlib", "scipy")
    check_columns(columns)
    if report_only:
        _finish(write_report(out, columns), out)
        return
    if threads is not None:
        torch.set_num_threads(threads)
    files = _data_files(data)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, but it must be one of {', '.join(DTYPES)}")
    models = Models(device, None if dtype is None else getattr(torch, dtype))
    settings: list[Setting] = []
    read: dict[tuple[str, str], Task] = {}
    unavailable = {}
    for name in dict.fromkeys(names or BUNDLED):
        model = models.model(name)
        greedy, sampling, reasons = baselines_of(model)
        unavailable[name] = reasons if wanted.baselines else {}
        adapter = ADAPTER if lora and (resolve_folder(name) / ADAPTER).is_dir() else None
        # Every task is read before anything runs, so that what is wrong with one shows at once.
        here = {
            task: load_task(task, files.get(task, files.get("")), resolve_folder(name), allow_code_execution=allow_code_execution)
            for task in tasks
        }
        read |= {(name, task): loaded for task, loaded in here.items()}
        settings += model_settings(
            name, model.config, list(here.values()), wanted, adapter=adapter, baselines=greedy, sampling_baselines=sampling
        )
        kind = str(model.head.weight.dtype).removeprefix("torch.")
    plan = Plan(
        tuple(settings), seed=seed, device=device, dtype=kind, threads=torch.get_num_threads(), latency_seconds=latency_seconds
    )
    with recording(out, plan.as_dict(), overwrite) as recorder:
        if recorder.resumed:
            Console(stderr=True).print(f"going on with the {len(recorder.run.responses)} responses in {recorder.path}")
        recorder.note("note", {"what": "start", "environment": environment(device), "baselines": unavailable})
        with _progress(settings, latency_seconds) as progress:
            run_plan(plan, lambda setting: read[setting.model, setting.task], models, recorder, progress)
    _finish(write_report(out, columns), out)


def _data_files(data: Sequence[str]) -> dict[str, Path]:
    """Return the paths of tasks' files: by task from TASK=PATH, and for all others, under "", from a folder's path alone."""
    found = {}
    for text in data:
        task, equals, path = text.rpartition("=")
        if not path or (equals and not task):
            raise ValueError(f"--data is {text!r}, but a folder or TASK=PATH is needed")
        found[task] = Path(path)
    return found


@contextlib.contextmanager
def _progress(settings: Sequence[Setting], latency_seconds: float) -> Iterator[Callable[[str, int | None], None]]:
    """A bar over all responses; what is in the records already passes at once."""
    total = sum(setting.responses for setting in settings)
    total += len({setting.model for setting in settings}) if latency_seconds else 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def progress(what: str, count: int | None) -> None:
            bar.update(task, description=what, advance=count is None)

        yield progress


def _finish(tables: Sequence[Table], out: Path) -> None:
    console = Console()
    for table in tables:
        for name, columns in _SHOWN.items():
            if table.name.startswith(name):
                console.print(_shown(table.select(columns)))
    console.print(f"{len(tables)} tables in {out / 'tables'}, figures in {out / 'figures'}, all of them in {out / 'report.md'}")


def _shown(table: Table) -> Any:
    """A table for the terminal."""
    shown = RichTable(title=table.title, box=SIMPLE, padding=(0, 1), show_edge=False, title_justify="left")
    for column in table.columns:
        shown.add_column(column, justify="right" if FORMATS[column] else "left")
    for row in table.cells():
        shown.add_row(*row)
    return shown
