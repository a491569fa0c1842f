"""The paper's tables, with its columns, from the summaries of a run; Markdown and CSV.

table-03 block-size probe          table-04, 05 proposal-only LoRA       table-06, 07 absolute, temperature 0 and 1
table-08, 09 ordered models        table-10, 12, 13 paired efficiency    table-11 paired accuracy
baselines and acceptance have no counterpart in the paper.  A table without rows is not made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from . import summary as sums
from .bootstrap import Interval
from .plan import Candidate
from .summary import Summary, model_wall
from .table import Row, Table

_ABSOLUTE = ("accuracy", "tokens", "wall (s)", "NFE", "tokens/NFE", "ms/NFE", "tokens/s")


def all_tables(summaries: Sequence[Summary], unavailable: dict[str, dict[str, str]] | None = None) -> list[Table]:
    """The tables that have rows.  ``unavailable``: by model, the baselines that could not run and why."""
    main = [s for s in summaries if s.setting.study == "main"]
    block, ordered = [s for s in main if s.setting.order is None], [s for s in main if s.setting.order is not None]
    cold, warm = ([s for s in block if bool(s.setting.temperature) == sampled] for sampled in (False, True))
    ordered_cold = [s for s in ordered if not s.setting.temperature]
    lora = [s for s in summaries if s.setting.study == "lora"]
    tables = [
        _table(
            "table-03-block-size-probe",
            "Table 3: block-size probe",
            ("model", "task", "schedule", "B", "rows/call", "tokens", "NFE", "wall (s)", "tokens/s", "accuracy"),
            [s for s in summaries if s.setting.study == "probe"],
            absolute_rows,
            group=("model", "schedule"),
        ),
        _table(
            "table-04-lora",
            "Table 4: proposal-only LoRA",
            (
                "model",
                "task",
                "schedule",
                "weights",
                "B",
                "accuracy",
                "tokens",
                "NFE",
                "model (s)",
                "non-model (s)",
                "wall (s)",
                "tokens/s",
            ),
            lora,
            lora_rows,
            group=("model", "task", "weights"),
        ),
        _table(
            "table-05-lora-iteration",
            "Table 5: model time per iteration with proposal-only LoRA",
            (
                "model",
                "task",
                "schedule",
                "B",
                "iterations",
                "rows selected",
                "rows evaluated",
                "model ms/iteration, base",
                "model ms/iteration, LoRA",
            ),
            lora,
            lora_iteration_rows,
        ),
        _table(
            "table-06-absolute-greedy",
            "Table 6: absolute measurements at temperature 0",
            ("model", "task", "schedule", "B", "rows/call", *_ABSOLUTE),
            cold,
            own_rows,
        ),
        _table(
            "table-07-absolute-sampling",
            "Table 7: absolute measurements at temperature 1",
            ("model", "task", "schedule", "B", "rows/call", *_ABSOLUTE),
            warm,
            own_rows,
        ),
        _table(
            "table-08-ordered-left-to-right",
            "Table 8: ordered models, left to right and native",
            ("model", "task", "W", "schedule", "rows/call", *_ABSOLUTE),
            [s for s in ordered_cold if s.setting.order == "left_to_right"],
            own_rows,
            group=("model", "task", "W"),
        ),
        _table(
            "table-09-ordered-orders",
            "Table 9: ordered models by verification order",
            ("model", "task", "W", "order", "schedule", "rows/call", *_ABSOLUTE),
            ordered_cold,
            own_rows,
            group=("model", "task", "W", "order"),
        ),
        _table(
            "table-09b-ordered-sampling",
            "Ordered models at temperature 1 (not in the paper)",
            ("model", "task", "W", "order", "schedule", "rows/call", *_ABSOLUTE),
            [s for s in ordered if s.setting.temperature],
            own_rows,
            group=("model", "task", "W", "order"),
        ),
        _table(
            "table-10-ordered-paired",
            "Table 10: ordered models, packed against each baseline",
            ("model", "task", "W", "order", "baseline", "temperature", *_PAIRED),
            ordered,
            paired_rows,
        ),
        _table(
            "table-11-accuracy-paired",
            "Table 11: paired accuracy differences, packed minus baseline",
            (
                "model",
                "task",
                "temperature",
                "W",
                "order",
                "baseline",
                "accuracy of packed",
                "accuracy of baseline",
                "accuracy difference (points)",
            ),
            main,
            accuracy_rows,
        ),
        _table(
            "table-12-paired-greedy",
            "Table 12: packed against each baseline at temperature 0",
            ("model", "task", "baseline", *_PAIRED),
            cold,
            paired_rows,
        ),
        _table(
            "table-13-paired-sampling",
            "Table 13: packed against each baseline at temperature 1",
            ("model", "task", "baseline", *_PAIRED),
            warm,
            paired_rows,
        ),
        _table(
            "baselines",
            "What one would use instead, on the same weights",
            (
                "model",
                "task",
                "temperature",
                "decoder",
                "B",
                "same text as autoregressive",
                "tokens",
                "NFE",
                "tokens/NFE",
                "tokens/s",
                "tokens/s, × transformers",
                "note",
            ),
            block,
            baseline_rows,
            group=("model", "task", "temperature"),
        ),
        _table(
            "acceptance",
            "Acceptance by verification at temperature 1",
            ("model", "task", "schedule", "verification", "B", "tokens/NFE", "accepted drafts/call", "tokens/s", "accuracy"),
            warm,
            acceptance_rows,
            group=(),
        ),
    ]
    for i, table in enumerate(tables):
        if table.name == "baselines" and table.rows:
            missing = [
                {"model": model, "decoder": ", ".join(p for p in reasons if reasons[p] == why), "note": f"not run: {why}"}
                for model, reasons in (unavailable or {}).items()
                for why in dict.fromkeys(reasons.values())
            ]
            tables[i] = replace(table, rows=[*table.rows, *missing])
    return [table for table in tables if table.rows]


_PAIRED = ("wall difference (s)", "throughput ratio", "tokens/NFE ratio", "time/NFE ratio")


def _table(
    name: str,
    title: str,
    columns: tuple[str, ...],
    summaries: Sequence[Summary],
    make: Callable[[Summary], Iterator[Row]],
    group: tuple[str, ...] = ("model", "task"),
) -> Table:
    rows = [row for summary in summaries for row in make(summary)]
    best: dict[tuple, int] = {}
    for i, row in enumerate(rows):
        key = tuple(row.get(column) for column in group)
        speed = row.get("tokens/s")
        if group and isinstance(speed, float) and (key not in best or speed > rows[best[key]]["tokens/s"]):
            best[key] = i
    return Table(name, title, columns, rows, frozenset(best.values()))


def absolute_rows(summary: Summary, candidates: Sequence[Candidate] | None = None) -> Iterator[Row]:
    """Means per response and rates of totals, a row per candidate."""
    for c in summary.candidates if candidates is None else candidates:
        total, split = summary.sums(c), model_wall(summary, c)
        yield _setting(summary) | {
            "schedule": schedule_name(c),
            "verification": c.verification,
            "weights": "LoRA" if c.adapter else "base",
            "order": None if c.schedule == "native" else c.order,
            "W": c.window,
            "rows/call": summary.rows(c),
            "B": None if c.schedule == "autoregressive" else summary.block_size(c),
            "prompts": len(summary.prompts),
            "responses": int(total.responses),
            "accuracy": summary.value(c, sums.ACCURACY),
            "tokens": total.tokens / total.responses,
            "wall (s)": summary.value(c, sums.WALL),
            "NFE": total.nfe / total.responses,
            "tokens/NFE": summary.value(c, sums.TOKENS_PER_NFE),
            "ms/NFE": 1e3 * summary.value(c, sums.SECONDS_PER_NFE),
            "tokens/s": summary.value(c, sums.TOKENS_PER_SECOND),
            "model (s)": split and split[0],
            "non-model (s)": split and split[1],
        }


def _setting(summary: Summary) -> Row:
    return {"model": summary.setting.model, "task": summary.setting.task, "temperature": summary.setting.temperature}


def schedule_name(candidate: Candidate) -> str:
    """A candidate's schedule, with the verification where it is not the usual one."""
    return candidate.schedule + (f" ({candidate.verification})" if candidate.verification in ("coupled", "match") else "")


def own_rows(summary: Summary) -> Iterator[Row]:
    """`absolute_rows` of our schedules under the paper's verification: rejection above temperature 0."""
    usual = [c for c in summary.candidates if not c.external and c.verification not in ("coupled", "match")]
    yield from absolute_rows(summary, usual)


def lora_rows(summary: Summary) -> Iterator[Row]:
    """Base and adapter, schedule by schedule."""
    yield from absolute_rows(summary, sorted(summary.candidates, key=lambda c: c.adapter is not None))


def lora_iteration_rows(summary: Summary) -> Iterator[Row]:
    """Iterations after the first call, and the model's time of one; linear's iteration has both of its calls.

    Rows at most: ours computes an update for the proposal rows that it selects and for no other.
    """
    for c in summary.candidates:
        if c.adapter is not None:
            base = summary.candidate(c.name.removesuffix(" + LoRA"))
            b = summary.block_size(c) or 0
            rows = b * b if c.schedule == "quadratic" else b
            yield _setting(summary) | {
                "schedule": c.schedule,
                "B": b,
                "iterations": _iterations(summary, c)[0],
                "rows selected": rows,
                "rows evaluated": rows,
                "model ms/iteration, LoRA": _iterations(summary, c)[1],
                "model ms/iteration, base": None if base is None else _iterations(summary, base)[1],
            }


def _iterations(summary: Summary, c: Candidate) -> tuple[float, float]:
    """Iterations per response after the first call, and milliseconds of model time in one."""
    total = summary.sums(c)
    calls = 2 if c.schedule == "linear" else 1
    per_response = (total.nfe - total.responses) / total.responses / calls
    modelled = (total.modelled_nfe - total.modelled) / calls
    return per_response, 1e3 * (total.model - total.first_model) / modelled if modelled else math.nan


def pairs(summary: Summary) -> Iterator[tuple[Candidate, Candidate]]:
    """(packed, baseline): every other schedule of ours under the same window, order, verification and weights."""
    for packed in summary.candidates:
        if packed.schedule == "packed" and packed.verification not in ("coupled", "match"):
            for schedule in ("autoregressive", "linear", "quadratic", "native"):
                if (base := summary.like(schedule, packed)) is not None:
                    yield packed, base


def paired_rows(summary: Summary) -> Iterator[Row]:
    """Wall time, packed minus baseline, and ratios packed / baseline, with 95 % paired intervals."""
    for packed, base in pairs(summary):
        yield _setting(summary) | {
            "W": packed.window,
            "order": summary.setting.order,
            "baseline": base.schedule,
            "wall difference (s)": summary.difference(sums.WALL, packed, base),
            "throughput ratio": summary.ratio(sums.TOKENS_PER_SECOND, packed, base),
            "tokens/NFE ratio": summary.ratio(sums.TOKENS_PER_NFE, packed, base),
            "time/NFE ratio": summary.ratio(sums.SECONDS_PER_NFE, packed, base),
        }


def accuracy_rows(summary: Summary) -> Iterator[Row]:
    """Differences in percentage points; tasks that measure speed only have none."""
    for packed, base in pairs(summary):
        if summary.sums(packed).scored:
            difference = summary.difference(sums.ACCURACY, packed, base)
            yield _setting(summary) | {
                "W": packed.window,
                "order": summary.setting.order,
                "baseline": base.schedule,
                "accuracy of packed": summary.value(packed, sums.ACCURACY),
                "accuracy of baseline": summary.value(base, sums.ACCURACY),
                "accuracy difference (points)": Interval(*(100 * part for part in difference)),
            }


def baseline_rows(summary: Summary) -> Iterator[Row]:
    """Baselines beside all of our schedules, where there is one; throughput over transformers' with its paired interval."""
    if not any(c.external for c in summary.candidates):
        return
    base, plain = summary.candidate("transformers"), summary.candidate("autoregressive")
    texts = {(r.prompt, r.repeat): r.text for r in summary.responses.get("autoregressive", ())}
    for c, row in zip(summary.candidates, absolute_rows(summary), strict=True):
        own = summary.responses[c.name]
        same = sum(texts.get((r.prompt, r.repeat)) == r.text for r in own)
        comparable = plain is not None and not summary.setting.temperature
        yield row | {
            "decoder": c.name if c.external else f"ours: {c.name}",
            "same text as autoregressive": f"{same}/{len(own)}" if comparable else None,
            "tokens/s, × transformers": base and summary.ratio(sums.TOKENS_PER_SECOND, c, base),
        }


def acceptance_rows(summary: Summary) -> Iterator[Row]:
    """Every verification above temperature 0: accepted drafts of a call that may accept (advance - 1), and what follows."""
    ours = [c for c in summary.candidates if not c.external and c.schedule != "autoregressive"]
    if len({c.verification for c in ours}) > 1:
        for c, row in zip(ours, absolute_rows(summary, ours), strict=True):
            advances = [a for r in summary.responses[c.name] for a in (r.advances or [])[1:] if a]
            yield row | {"schedule": c.schedule, "accepted drafts/call": sum(a - 1 for a in advances) / max(len(advances), 1)}
