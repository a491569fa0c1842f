"""The figures of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packed_ss.evaluation.bench.figures import latency_lines
from packed_ss.evaluation.plots import colour, new_figure, new_grid, save


def draw(record: Mapping[str, Any], path: Path) -> list[Path]:
    """Draw what the record has beside it and return the files: <record>-latency.png, -iterations.png, -kernels.png."""
    values = {stage["name"]: stage.get("values", {}) for stage in record["stages"]}
    figures: list[tuple[str, Callable[[], Any]]] = []
    if records := values.get("latency", {}).get("records"):
        figures.append(("latency", lambda: latency_lines(records)))
    if entries := values.get("iterations", {}).get("iterations"):
        figures.append(("iterations", lambda: _iterations(entries)))
    if panels := list(_kernel_panels(values)):
        figures.append(("kernels", lambda: _kernels(panels)))
    drawn = []
    for name, figure in figures:
        target = path.with_name(f"{path.stem}-{name}.png")
        save(figure(), target)
        drawn.append(target)
    return drawn


def _iterations(entries: list[dict[str, Any]]) -> Any:
    """Draw a bar per iteration: its calls, what is outside them, and the floors as marks."""
    names = [entry["name"] for entry in entries]
    inside, whole = ([entry["times"][part]["median_ms"] for entry in entries] for part in ("calls", "iteration"))
    figure, ((axis,),) = new_figure(9, 0.5 * len(names) + 1.6)
    axis.barh(names, inside, color=[colour(name) for name in names], label="model calls alone")
    axis.barh(
        names,
        [max(b - a, 0) for a, b in zip(inside, whole, strict=True)],
        left=inside,
        color="0.8",
        label="the rest of the iteration",
    )
    for i, entry in enumerate(entries):
        axis.plot(
            [entry["floor_ms"]] * 2, [i - 0.4, i + 0.4], color="0.2", label="weights at the copy's bandwidth" if i == 0 else None
        )
        text = f" {whole[i]:.3f} ms, {entry['attained']:.0%} of the floor"
        axis.annotate(text, (max(inside[i], whole[i]), i), va="center", fontsize=8)
    axis.set_xlim(0, 1.45 * max(*inside, *whole))
    axis.invert_yaxis()
    axis.set_xlabel("time of an iteration (ms)")
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _kernel_panels(values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """(title, microseconds by candidate, floors by name) of every group that was measured."""
    merged: dict[int, tuple[dict[str, float], float]] = {}
    for entry in values.get("attention", {}).get("attention", []):  # the last of a candidate's times at a prefix counts
        times, _ = merged.get(entry["prefix"], ({}, 0.0))
        merged[entry["prefix"]] = ({**times, **entry["us"]}, entry["floor_us"])
    for prefix, (times, floor) in merged.items():
        yield f"attention, prefix {prefix}", times, {"one read": floor}
    for entry in values.get("resolves", {}).get("resolves", []):
        times = dict(entry["us"])
        yield f"resolve, {entry['case']}", times, {"the logits, read once": times.pop("read", entry["floor_us"])}
    for entry in values.get("head", {}).get("groups", []):
        yield entry["group"], entry["us"], {"its bytes": entry["floor_us"]}


def _kernels(panels: list[tuple[str, dict[str, float], dict[str, float]]]) -> Any:
    """Draw a panel per group: a bar per candidate on a logarithmic axis, the floor as a line."""
    tallest = max(len(times) for _, times, _ in panels)
    figure, axes = new_grid(len(panels), 5.2, 0.34 * tallest + 1.1)
    for axis, (title, times, floors) in zip(axes.flat, panels, strict=False):
        bars = axis.barh(list(times), list(times.values()), color=[f"C{i}" for i in range(len(times))])
        axis.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
        for name, floor in floors.items():
            axis.axvline(floor, color="0.3", linewidth=1, linestyle=":", label=f"{name}: {floor:.1f}")
        axis.set_xscale("log")
        known = [value for value in (*times.values(), *floors.values()) if value > 0]
        axis.set_xlim(0.6 * min(known), 3 * max(known))
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("µs", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.legend(frameon=False, fontsize=7)
    return figure
