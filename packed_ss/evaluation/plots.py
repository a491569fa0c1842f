"""Figures of measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .compare import Summary


def plot_comparison(summaries: Sequence[Summary], path: Path, title: str) -> None:
    """Three panels, one bar per schedule: tokens per call, milliseconds per call, tokens per second.

    The format follows the file's ending (png, svg, pdf).  Raises ValueError for an ending that matplotlib cannot write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = (
        ("tokens / NFE", "higher is better", [s.tokens_per_nfe for s in summaries]),
        ("ms / NFE", "lower is better", [s.ms_per_nfe for s in summaries]),
        ("tokens / s", "higher is better", [s.tokens_per_second for s in summaries]),
    )
    names = [s.schedule for s in summaries]
    figure, axes = plt.subplots(1, 3, figsize=(3.6 * 3, 0.5 * len(names) + 1.9), sharey=True, layout="constrained")
    for axis, (label, better, values) in zip(axes, panels, strict=True):
        bars = axis.barh(names, values, color=[f"C{i}" for i in range(len(names))])
        axis.bar_label(bars, fmt="%.2f" if max(values) < 100 else "%.0f", padding=3)
        axis.set_xlabel(f"{label}  ({better})")
        axis.set_xlim(0, 1.22 * max(values))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=160)
    finally:
        plt.close(figure)
