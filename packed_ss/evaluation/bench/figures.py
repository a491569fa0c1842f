"""The paper's figures from the summaries of a run, each as PNG and SVG.

figure-3, figure-4   ratios to linear and accuracy differences, with intervals, at temperature 0 and 1
figure-5             model and non-model time over linear's total
latency              one call against its rows, with the fitted tau + delta n
acceptance           share of accepted drafts by position           advances   how many tokens a call appends
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..plots import colour, new_figure, new_grid, save
from . import summary as sums
from .bootstrap import Interval
from .latency import title_of
from .plan import Candidate
from .summary import Summary, model_wall
from .tables import schedule_name

FORMATS = ("png", "svg")


def draw_all(summaries: Sequence[Summary], latency: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Draw what there are records for into ``folder`` and return the files."""
    main = [s for s in summaries if s.setting.study == "main"]
    cold, warm = [s for s in main if not s.setting.temperature], [s for s in main if s.setting.temperature]
    figures: list[tuple[str, Any]] = [
        ("figure-3-ratios-greedy", ratios(cold, "Greedy decoding")),
        ("figure-4-ratios-sampling", ratios(warm, "Temperature 1")),
        ("figure-5-time", stacked_times(cold)),
        ("latency", latency_lines(list(latency.values()))),
        ("acceptance", acceptance(main)),
        ("advances", advance_histograms(main)),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures:
        for ending in FORMATS if figure is not None else ():
            written.append(folder / f"{name}.{ending}")
            save(figure, written[-1])
    return written


def label(summary: Summary, window: int | None = None) -> str:
    """Name a setting in a word or two: checkpoint, task, and window and order of an ordered model."""
    shape = [] if window is None else [f"W={window}"]
    shape += [] if summary.setting.order in (None, "left_to_right") else [summary.setting.order]
    return "\n".join([summary.setting.model, summary.setting.task, *([", ".join(shape)] if shape else [])])


def own(summary: Summary, verification: Sequence[str] = ("auto", "greedy", "rejection")) -> list[Candidate]:
    """Our schedules under the paper's verification."""
    return [c for c in summary.candidates if not c.external and c.verification in verification]


#: Panels of figures 3 and 4: title and the interval of a candidate against linear.
_PANELS: tuple[tuple[str, Callable[[Summary, Candidate, Candidate], Interval | None]], ...] = (
    ("throughput / linear →", lambda s, c, base: s.ratio(sums.TOKENS_PER_SECOND, c, base)),
    ("tokens/NFE / linear →", lambda s, c, base: s.ratio(sums.TOKENS_PER_NFE, c, base)),
    ("time/NFE / linear ←", lambda s, c, base: s.ratio(sums.SECONDS_PER_NFE, c, base)),
    ("Δ accuracy (points) →", lambda s, c, base: _points(s, c, base)),
)


def _points(summary: Summary, c: Candidate, base: Candidate) -> Interval | None:
    if not summary.sums(base).scored:
        return None
    return Interval(*(100 * part for part in summary.difference(sums.ACCURACY, c, base)))


def ratios(summaries: Sequence[Summary], title: str) -> Any:
    """Draw figure 3 or 4: a group of points per setting, a colour per schedule, linear as the dashed line."""
    groups = []
    for summary in summaries:
        for window in dict.fromkeys(c.window for c in own(summary)):
            here = [c for c in own(summary) if c.window == window]
            base = next((c for c in here if c.schedule == "linear"), None)
            others = [c for c in here if c.schedule not in ("linear", "autoregressive")]
            if base is not None and others:
                groups.append((label(summary, window), summary, base, others))
    if not groups:
        return None
    figure, axes = new_figure(max(6.0, 1.5 * len(groups) + 2.5), 8.0, rows=len(_PANELS), sharex=True)
    names = list(dict.fromkeys(c.schedule for _, _, _, others in groups for c in others))
    for axis, (panel, of) in zip(axes[:, 0], _PANELS, strict=True):
        axis.axhline(0.0 if "accuracy" in panel else 1.0, color="0.4", linewidth=0.8, linestyle="--")
        for x, (_, summary, base, others) in enumerate(groups):
            for c in others:
                if (interval := of(summary, c, base)) is None:
                    axis.annotate("speed only", (x, 0.0), ha="center", fontsize=7, color="0.4")
                    continue
                at = x + 0.6 * ((names.index(c.schedule) + 0.5) / len(names) - 0.5)
                value, low, high = interval
                error = [[max(value - low, 0.0)], [max(high - value, 0.0)]] if np.isfinite([low, high]).all() else None
                axis.errorbar([at], [value], yerr=error, fmt="o", color=colour(c.schedule), markersize=5, capsize=3)
        axis.set_ylabel(panel, fontsize=8)
    axes[-1, 0].set_xticks(range(len(groups)), [name for name, *_ in groups])
    axes[-1, 0].set_xlim(-0.6, len(groups) - 0.4)
    for name in names:
        axes[0, 0].plot([], [], "o", color=colour(name), label=name)
    axes[0, 0].legend(frameon=False, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.3))
    figure.suptitle(f"{title}: ratios to linear, 95 % paired intervals over prompts", fontsize=10)
    return figure


def stacked_times(summaries: Sequence[Summary]) -> Any:
    """Draw figure 5: model and non-model time over linear's total, tasks of a checkpoint averaged with equal weight."""
    shares: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for summary in summaries:
        if summary.setting.order not in (None, "left_to_right"):
            continue
        for window in dict.fromkeys(c.window for c in own(summary)):
            here = [c for c in own(summary) if c.window == window and c.schedule != "autoregressive"]
            base = next((c for c in here if c.schedule == "linear"), None)
            linear = None if base is None else model_wall(summary, base)
            for c in here:
                if linear is not None and (split := model_wall(summary, c)) is not None:
                    name = summary.setting.model + ("" if window is None else f", W={window}")
                    total = sum(linear)
                    shares.setdefault(name, {}).setdefault(c.schedule, []).append((split[0] / total, split[1] / total))
    if not shares:
        return None
    figure, axes = new_figure(1.2 + 3.2 * len(shares), 3.6, columns=len(shares), sharey=True)
    for axis, (model, by_schedule) in zip(axes[0], shares.items(), strict=True):
        for x, (schedule, found) in enumerate(by_schedule.items()):
            inside, outside = np.mean(found, axis=0)
            shade = colour(schedule)
            axis.bar(x, inside, color=shade)
            axis.bar(x, outside, bottom=inside, color=shade, alpha=0.4, hatch="///", edgecolor="white")
            axis.annotate(f"{inside + outside:.3f}", (x, inside + outside), ha="center", va="bottom", fontsize=8)
        axis.axhline(1.0, color="0.4", linewidth=0.8, linestyle="--")
        axis.set_xticks(range(len(by_schedule)), list(by_schedule))
        axis.set_title(model, fontsize=9)
    axes[0, 0].set_ylabel("time / linear's total")
    axes[0, 0].bar([0], [0], color="0.4", label="model")
    axes[0, 0].bar([0], [0], color="0.4", alpha=0.4, hatch="///", edgecolor="white", label="outside the model")
    figure.legend(frameon=False, ncols=2, loc="outside lower center")
    return figure


def latency_lines(records: Sequence[Mapping[str, Any]]) -> Any:
    """Draw one call's time against its rows: medians, quartiles, the lines tau + delta n, and the floor of the weights."""
    if not records:
        return None
    figure, axes = new_figure(6.0 * len(records), 4.2, columns=len(records))
    for axis, record in zip(axes[0], records, strict=True):
        points = record["points"]
        rows, median = [p["rows"] for p in points], np.array([p["median_ms"] for p in points])
        spread = [median - [p["p25_ms"] for p in points], [p["p75_ms"] for p in points] - median]
        axis.errorbar(rows, median, yerr=np.maximum(spread, 0), fmt="o", markersize=4, capsize=2, label="median, quartiles")
        for i, fit in enumerate(record["fits"]):
            low, high = fit["rows"]
            axis.plot(
                [low, high],
                [fit["tau_ms"] + fit["delta_ms"] * n for n in (low, high)],
                "--" if i else "-",
                label=f"{low} to {high} rows: {fit['tau_ms']:.3g} ms + {1e3 * fit['delta_ms']:.3g} µs · n",
            )
        floor = f"weights at {record['copy_gb_s']:.0f} GB/s: {record['floor_ms']:.3g} ms"
        axis.axhline(record["floor_ms"], color="0.5", linewidth=1, linestyle=":", label=floor)
        axis.set_title(title_of(record), fontsize=9)
        axis.set_xlabel("rows n of a call")
        axis.set_ylabel("time of a call (ms)")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8)
    return figure


def accepted_by_position(advances: Sequence[Sequence[int]], schedule: str, width: int) -> tuple[list[int], list[int]]:
    """(tested, accepted) drafts by position 1 ... W after the prefix, over the calls of responses.

    A draft is tested when all before it are accepted.  How many drafts a call had follows from the schedule: W (linear, and
    every call after the first), W - 1 (quadratic), W - a after an advance of a (packed).  A response's last call is left out:
    a stop or the limit cuts its advance.
    """
    tested, accepted = [0] * width, [0] * width
    for calls in advances:
        drafts, verifying = width, [a for a in calls[1:] if a]  # linear's proposing calls advance by 0
        for a in verifying[:-1]:
            h = min(a - 1, drafts)
            for i in range(min(h + 1, drafts)):
                tested[i] += 1
                accepted[i] += i < h
            drafts = {"packed": max(width - a, 0), "quadratic": width - 1}.get(schedule, width)
    return tested, accepted


def acceptance(summaries: Sequence[Summary]) -> Any:
    """Draw the share of accepted among tested drafts by position, block layout: a line per schedule and verification."""
    panels = [s for s in summaries if s.setting.order is None and any(c.schedule in _DRAFTING for c in own(s, _ALL))]
    if not panels:
        return None
    figure, axes = new_grid(len(panels), 4.6, 3.4, sharey=True)
    for axis, summary in zip(axes.flat, panels, strict=False):
        for c in own(summary, _ALL):
            b = summary.block_size(c)
            if c.schedule not in _DRAFTING or b is None:
                continue
            tested, accepted = accepted_by_position([r.advances or [] for r in summary.responses[c.name]], c.schedule, b - 1)
            x = [i for i, n in enumerate(tested) if n >= _FEWEST]
            if not x:
                continue
            axis.plot(
                [i + 1 for i in x],
                [accepted[i] / tested[i] for i in x],
                _LINES.get(c.verification, "-"),
                marker=".",
                color=colour(c.schedule),
                label=f"{schedule_name(c)}, B={b}",
            )
        axis.set_title(f"{label(summary)}, temperature {summary.setting.temperature:g}".replace("\n", ", "), fontsize=9)
        axis.set_xlabel("position after the prefix")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_ylim(0, 1.02)
        if axis.lines:
            axis.legend(frameon=False, fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("accepted / tested drafts")
    return figure


_DRAFTING = ("linear", "packed", "quadratic")
_ALL = ("auto", "greedy", "rejection", "coupled", "match")
_LINES = {"match": ":", "coupled": "--"}
#: Positions that were tested less often are not drawn.
_FEWEST = 10


def advance_histograms(summaries: Sequence[Summary]) -> Any:
    """Draw the share of the calls that append a tokens, a line per schedule; calls that only propose do not count."""
    panels = [s for s in summaries if any(c.schedule != "autoregressive" for c in own(s))]
    if not panels:
        return None
    figure, axes = new_grid(len(panels), 4.6, 3.4, sharey=True)
    for axis, summary in zip(axes.flat, panels, strict=False):
        windows = list(dict.fromkeys(c.window for c in own(summary)))
        for c in own(summary):
            counts = Counter(a for r in summary.responses[c.name] for a in (r.advances or [])[1:] if a)
            if c.schedule != "autoregressive" and counts:
                x = range(1, max(counts) + 1)
                name = c.schedule + ("" if c.window is None else f", W={c.window}")
                axis.step(
                    x,
                    [counts[a] / counts.total() for a in x],
                    where="mid",
                    color=colour(c.schedule),
                    linestyle=("-", "--", ":", "-.")[windows.index(c.window) % 4],
                    label=f"{name}: mean {sum(a * n for a, n in counts.items()) / counts.total():.2f}",
                )
        axis.set_title(f"{label(summary)}, temperature {summary.setting.temperature:g}".replace("\n", ", "), fontsize=9)
        axis.set_xlabel("tokens appended by a call")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False, fontsize=7)
    for axis in axes[:, 0]:
        axis.set_ylabel("share of calls")
    return figure
