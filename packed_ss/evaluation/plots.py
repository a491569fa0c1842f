"""The style of every figure, and the one of `packed-ss compare`.

Figures are made and written by matplotlib's objects, never by pyplot: whatever backend the caller has stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .extras import need
from .totals import Totals

#: One colour per schedule in every figure.
COLOURS = {"autoregressive": "0.55", "linear": "#4c72b0", "packed": "#c44e52", "quadratic": "#dd8452", "native": "#8172b3"}
#: The same file for the same records.
_STYLE: Any = {"svg.hashsalt": "packed-ss", "font.size": 9}


def colour(name: str) -> str:
    """Return the colour of a schedule, whatever follows its name."""
    return COLOURS.get(re.split(r"\W", name, maxsplit=1)[0], "0.2")


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """Return a figure and its axes [rows, columns].  Raise ValueError where matplotlib is not installed."""
    need("a figure", "matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def new_grid(panels: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """Return a figure with so many panels of this size, three in a row."""
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure, axes = new_figure(width * columns, height * rows, rows, columns, **options)
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    return figure, axes


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the file's ending.  Raise ValueError for one that matplotlib cannot write."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def plot_comparison(totals: Sequence[Totals], path: Path, title: str) -> None:
    """Draw three panels, one bar per schedule: tokens per call, milliseconds per call, tokens per second."""
    panels = (
        ("tokens / NFE", "higher is better", [one.tokens_per_nfe for one in totals]),
        ("ms / NFE", "lower is better", [one.ms_per_nfe for one in totals]),
        ("tokens / s", "higher is better", [one.tokens_per_second for one in totals]),
    )
    names = [one.schedule for one in totals]
    figure, axes = new_figure(3.6 * 3, 0.5 * len(names) + 1.9, columns=3, sharey=True)
    for axis, (label, better, values) in zip(axes[0], panels, strict=True):
        bars = axis.barh(names, values, color=[colour(name) for name in names])
        axis.bar_label(bars, fmt="%.2f" if max(values) < 100 else "%.0f", padding=3)
        axis.set_xlabel(f"{label}  ({better})")
        axis.set_xlim(0, 1.22 * max(values))
    axes[0, 0].invert_yaxis()
    figure.suptitle(title)
    save(figure, path)
