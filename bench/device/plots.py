"""The figures of a record.  Neither torch nor packed_ss is needed to draw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def draw(record: Mapping[str, Any], path: Path) -> list[Path]:
    """Draws what the record has beside it, and returns the files: <record>-latency.png, -iterations.png, -kernels.png."""
    values = {stage["name"]: stage.get("values", {}) for stage in record["stages"]}
    figures: list[tuple[str, Callable[[Path], None]]] = []
    if records := values.get("latency", {}).get("records"):
        figures.append(("latency", lambda target: plot_latency(records, target)))
    if entries := values.get("iterations", {}).get("iterations"):
        figures.append(("iterations", lambda target: _iterations(entries, target)))
    if panels := list(_kernel_panels(values)):
        figures.append(("kernels", lambda target: _kernels(panels, target)))
    drawn = []
    for name, figure in figures:
        target = path.with_name(f"{path.stem}-{name}.png")
        figure(target)
        drawn.append(target)
    return drawn


def latency_title(record: dict[str, Any]) -> str:
    """What was measured, on one line."""
    many = "s" if record["threads"] > 1 else ""
    threads = f", {record['threads']} thread{many}" if record["device"].startswith("CPU") else ""
    return f"{record['model']}, {record['dtype']}, prefix {record['prefix']}, {record['mask']}, {record['device']}{threads}"


def plot_latency(records: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel per record: medians with quartiles, the fitted lines, the floor.  The format follows the file's ending."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(records), figsize=(6.4 * len(records), 4.4), squeeze=False, layout="constrained")
    for axis, record in zip(axes[0], records, strict=True):
        rows = [point["rows"] for point in record["points"]]
        medians = [point["median_ms"] for point in record["points"]]
        spread = [[abs(point["median_ms"] - point[edge]) for point in record["points"]] for edge in ("p25_ms", "p75_ms")]
        axis.errorbar(rows, medians, yerr=spread, fmt="o", markersize=4, capsize=2, color="C0", label="median, quartiles")
        for i, fit in enumerate(record["fits"]):
            ends = fit["rows"]
            label = f"{ends[0]} to {ends[1]} rows: {fit['tau_ms']:.3g} ms + {1e3 * fit['delta_ms']:.3g} µs · n"
            line = [fit["tau_ms"] + fit["delta_ms"] * n for n in ends]
            axis.plot(ends, line, f"C{i + 1}{'--' if i else '-'}", linewidth=1.2, label=label)
        axis.axhline(
            record["floor_ms"],
            color="0.5",
            linewidth=1,
            linestyle=":",
            label=f"weights at {record['copy_gb_s']:.0f} GB/s: {record['floor_ms']:.3g} ms",
        )
        axis.set_xlabel("rows of the call, n")
        axis.set_ylabel("time of a call (ms)")
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.set_title(latency_title(record), fontsize=9)
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    _save(plt, figure, path)


def _iterations(entries: list[dict[str, Any]], target: Path) -> None:
    """A bar per iteration: its calls, what is outside them, and the floors as marks."""
    plt = _pyplot()
    names = [entry["name"] for entry in entries]
    inside, whole = ([entry["times"][part]["median_ms"] for entry in entries] for part in ("calls", "iteration"))
    figure, axis = plt.subplots(figsize=(9, 0.5 * len(names) + 1.6), layout="constrained")
    axis.barh(names, inside, color="C0", label="model calls alone")
    axis.barh(
        names,
        [max(b - a, 0) for a, b in zip(inside, whole, strict=True)],
        left=inside,
        color="C1",
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
    axis.spines[["top", "right"]].set_visible(False)
    _save(plt, figure, target)


def _kernel_panels(values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """(title, microseconds by contender, floors by name) of every group that was measured."""
    merged: dict[int, tuple[dict[str, float], float]] = {}
    for entry in values.get("attention", {}).get("attention", []):  # the last of a contender's times at a prefix counts
        times, _ = merged.get(entry["prefix"], ({}, 0.0))
        merged[entry["prefix"]] = ({**times, **entry["us"]}, entry["floor_us"])
    for prefix, (times, floor) in merged.items():
        yield f"attention, prefix {prefix}", times, {"one read": floor}
    for entry in values.get("resolves", {}).get("resolves", []):
        times = dict(entry["us"])
        yield f"resolve, {entry['case']}", times, {"the logits, read once": times.pop("read", entry["floor_us"])}
    for entry in values.get("head", {}).get("groups", []):
        yield entry["group"], entry["us"], {"its bytes": entry["floor_us"]}


def _kernels(panels: list[tuple[str, dict[str, float], dict[str, float]]], target: Path) -> None:
    """A panel per group: a bar per contender on a logarithmic axis, the floor as a line."""
    plt = _pyplot()
    columns = 3
    rows = -(-len(panels) // columns)
    tallest = max(len(times) for _, times, _ in panels)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.2 * columns, (0.34 * tallest + 1.1) * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
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
        axis.spines[["top", "right"]].set_visible(False)
    _save(plt, figure, target)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(plt: Any, figure: Any, target: Path) -> None:
    try:
        figure.savefig(target, dpi=140)
    finally:
        plt.close(figure)
