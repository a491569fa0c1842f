"""Tables and figures of a run, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import draw_all
from .plan import plan_from
from .run_records import FILE, Run, read_run
from .summary import Summary, summarise
from .table import Table, check_columns
from .tables import all_tables


def read_folder(folder: Path) -> Run:
    """The records of an output folder.  Raise ValueError where there are none, or malformed ones."""
    path = folder / FILE
    run = read_run(path) if path.is_file() else None
    if run is None:
        raise ValueError(f"{folder} holds no records: run packed-ss bench --out {folder} first")
    return run


def write_report(folder: Path, columns: Sequence[str] = (), figures: bool = True) -> list[Table]:
    """Write tables/*.md and *.csv, figures/*.png and *.svg, and report.md, which has all of the tables; returns these.

    ``columns``: only these, in this order, in every table that has any of them.  Raise ValueError for a column that no table
    has, before anything is written.
    """
    check_columns(columns)
    run = read_folder(folder)
    plan = plan_from(run.plan)
    summaries = summarise(plan, run)
    tables = [table.select(columns) if columns else table for table in all_tables(summaries, _unavailable(run))]
    (folder / "tables").mkdir(exist_ok=True)
    for table in tables:
        (folder / "tables" / f"{table.name}.md").write_text(table.markdown(), encoding="utf-8")
        (folder / "tables" / f"{table.name}.csv").write_text(table.csv(), encoding="utf-8")
    drawn = draw_all(summaries, run.latency, folder / "figures") if figures else []
    (folder / "report.md").write_text(_text(run, summaries, tables, drawn), encoding="utf-8")
    return tables


def _unavailable(run: Run) -> dict[str, dict[str, str]]:
    """By model, the baselines that the first start could not run, and why."""
    return next((note["baselines"] for note in run.notes if "baselines" in note), {})


def _text(run: Run, summaries: Sequence[Summary], tables: Sequence[Table], drawn: Sequence[Path]) -> str:
    lines = ["# What was measured", "", *_about(run, summaries), ""]
    for table in tables:
        lines += [table.markdown()]
    for path in drawn:
        if path.suffix == ".png":
            lines += [f"![{path.stem}](figures/{path.name})", ""]
    return "\n".join(lines)


def _about(run: Run, summaries: Sequence[Summary]) -> list[str]:
    """What the tables were measured on and how, a line each."""
    starts = [note for note in run.notes if note.get("what") == "start"]
    lines = [
        "Batch 1, candidates in turns within each prompt. Wall time includes prefill and all decoding work; every forward "
        "is one NFE, prompt and first proposal together one, also at temperature 1; rates are of totals; brackets are 95 % "
        "percentile intervals of 20,000 paired resamples over prompts, and say nothing of the machine's noise."
    ]
    if starts:
        first: dict[str, Any] = starts[0]["environment"]
        kernels = sorted(set(first["kernels"].values()))
        lines += [
            "",
            f"{first['machine']}, {run.plan['threads']} of {first['cores']} cores, {run.plan['dtype']}, "
            f"torch {first['torch']}, transformers {first['transformers']}, {' and '.join(kernels)} kernels; load average "
            "at the start " + ", ".join(str(start["environment"]["load_average"]) for start in starts) + ".",
        ]
        if len(starts) > 1:
            lines += ["", f"The run was stopped and continued {len(starts) - 1} times."]
    separate = any(response.timed for response in run.responses.values())
    lines += [
        "",
        "Model time is that of responses of their own, which wait for every replay; non-model time is the others' "
        "wall time minus it."
        if separate
        else "Model time is taken inside the same responses, around each forward.",
    ]
    if left := sum(s.incomplete for s in summaries):
        lines += ["", f"The run is not finished: {left} prompts that some candidate has not decoded are left out."]
    return lines
