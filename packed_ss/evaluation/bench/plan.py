"""What a run measures: settings, in each of which candidates take turns on the same prompts.

A plan is a function of what was asked for and of the checkpoints' configurations, so that the same command has the same plan,
and a stopped run is recognised by it.  The one thing it leaves open are block sizes: those of the main settings follow from the
probe's records (App. F.1: each schedule's fastest), unless they are given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...layouts.ordered_layout import ORDERS
from ...models.config import ModelConfig
from ...request import whole_number
from ..tasks import Prompt, Task

#: Schedules of the paper's tables, by layout, in the order of their rows.
SCHEDULES = {
    "block": ("autoregressive", "linear", "quadratic", "packed"),
    "ordered": ("autoregressive", "native", "linear", "quadratic", "packed"),
}
MODES = ("greedy", "rejection", "coupled", "match")
#: What the published linear decoder does is compared by these.
_MATCHED = ("linear", "packed")
#: The probe (App. F.1): the first ten prompts, at most so many new tokens each, three times against the machine's noise.
PROBE_PROMPTS, PROBE_CAP, PROBE_REPEATS = 10, 512, 3


@dataclass(frozen=True)
class Candidate:
    """One way of decoding.  ``schedule`` is one of ours, or another decoder's name where ``external``.

    ``block_size`` None: as probed (block layout).  ``verification``: "auto" is greedy at temperature 0, else rejection.
    ``adapter``: folder of a proposal-only adapter inside the checkpoint, None for none.
    """

    name: str
    schedule: str
    block_size: int | None = None
    window: int | None = None
    order: str | None = None
    verification: str = "auto"
    adapter: str | None = None
    external: bool = False


@dataclass(frozen=True)
class Setting:
    """One checkpoint, task, temperature and order, over the first ``prompts`` of the task, whose texts ``digest`` tells from
    others.  ``study`` is what it is for: "probe" (table 3), "main" (the other tables) or "lora" (tables 4 and 5).
    ``repeats``: responses per prompt.  ``cap``: most new tokens."""

    study: str
    model: str
    task: str
    temperature: float
    candidates: tuple[Candidate, ...]
    prompts: int
    digest: str
    cap: int
    repeats: int = 1
    order: str | None = None

    @property
    def name(self) -> str:
        """Unique in a plan."""
        order = [] if self.order is None else [self.order]
        return "/".join([self.study, self.model, self.task, f"T{self.temperature:g}", *order])

    @property
    def responses(self) -> int:
        """How many are to be decoded."""
        return self.prompts * self.repeats * len(self.candidates)


@dataclass(frozen=True)
class Plan:
    """Cells in the order in which they run, and what holds for all of them."""

    settings: tuple[Setting, ...]
    seed: int
    device: str
    dtype: str
    threads: int
    #: Seconds of latency measurements per model; 0 for none.
    latency_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON and comparison: two runs with equal ones may share a file of records."""
        return asdict(self)


def plan_from(values: dict[str, Any]) -> Plan:
    """The inverse of `Plan.as_dict`."""
    settings = tuple(
        Setting(**(setting | {"candidates": tuple(Candidate(**c) for c in setting["candidates"])}))
        for setting in values["settings"]
    )
    return Plan(**(values | {"settings": settings}))


@dataclass(frozen=True)
class Wanted:
    """What was asked for.  None leaves the choice to the layout, the task or the probe."""

    modes: tuple[str, ...] = ("greedy", "rejection", "match")
    schedules: tuple[str, ...] | None = None
    block_size: int | None = None
    windows: tuple[int, ...] | None = None
    orders: tuple[str, ...] = ORDERS
    limit: int | None = None
    repeats: int | None = None
    cap: int | None = None
    baselines: bool = True


def model_settings(
    model: str,
    config: ModelConfig,
    tasks: Sequence[Task],
    wanted: Wanted,
    *,
    adapter: str | None = None,
    baselines: Sequence[str] = (),
    sampling_baselines: Sequence[str] = (),
) -> list[Setting]:
    """The settings of one checkpoint.  ``adapter``: its proposal-only adapter's folder; ``baselines`` of greedy decoding and
    ``sampling_baselines``: names of those that can run on it.

    Raise ValueError for schedules, modes, orders, windows or block sizes that there are not.
    """
    _check(config, wanted)
    if not tasks or any(not task.prompts for task in tasks):
        raise ValueError("no task with a prompt was given, but at least one is needed")
    if config.layout == "ordered":
        return _ordered_settings(model, config, tasks, wanted)
    beside = [
        [Candidate(baseline, baseline, external=True) for baseline in kind if wanted.baselines]
        for kind in (baselines, sampling_baselines)
    ]
    return _block_settings(model, config, tasks, wanted, adapter, *beside)


def _check(config: ModelConfig, wanted: Wanted) -> None:
    known = tuple(dict.fromkeys(schedule for layout in SCHEDULES.values() for schedule in layout))
    for what, values, accepted in (
        ("schedule", wanted.schedules or (), known),
        ("mode", wanted.modes, MODES),
        ("order", wanted.orders, ORDERS),
    ):
        for value in values:
            if value not in accepted:
                raise ValueError(f"{what} is {value!r}, but it must be one of {', '.join(accepted)}")
    if not _schedules(config, wanted):
        raise ValueError(
            f"none of the schedules {', '.join(wanted.schedules or ())} is one of a model of the {config.layout} "
            f"layout: {', '.join(SCHEDULES[config.layout])}"
        )
    if not wanted.modes or not wanted.orders:
        raise ValueError("no mode or no order was given, but at least one of each is needed")
    windows = [("window", window, 1) for window in wanted.windows or ()]
    rest = (("limit", wanted.limit, 1), ("repeats", wanted.repeats, 1), ("max new tokens", wanted.cap, 1))
    for name, given, least in (("block size", wanted.block_size, 2), *windows, *rest):
        if given is not None:
            whole_number(name, given, least=least)


def _schedules(config: ModelConfig, wanted: Wanted) -> list[str]:
    """Those wanted that the model's layout has."""
    return [s for s in SCHEDULES[config.layout] if wanted.schedules is None or s in wanted.schedules]


def _block_settings(
    model: str,
    config: ModelConfig,
    tasks: Sequence[Task],
    wanted: Wanted,
    adapter: str | None,
    baselines: list[Candidate],
    sampling_baselines: list[Candidate],
) -> list[Setting]:
    schedules = _schedules(config, wanted)
    drafting = [s for s in schedules if s != "autoregressive"]
    settings = []
    first = tasks[0]
    if wanted.block_size is None and drafting:
        sizes = [Candidate(f"{s}, B={b}", s, block_size=b) for s in drafting for b in probe_sizes(s, config.block_size or 16)]
        settings.append(
            _setting("probe", model, first, 0.0, sizes, wanted, most=PROBE_PROMPTS, cap=PROBE_CAP, repeats=PROBE_REPEATS)
        )
    ours = [Candidate(s, s, block_size=2 if s == "autoregressive" else wanted.block_size) for s in schedules]
    for task in tasks:
        if "greedy" in wanted.modes:
            settings.append(_setting("main", model, task, 0.0, [*ours, *baselines], wanted))
        if sampled := [mode for mode in wanted.modes if mode != "greedy"]:
            each = [_verified(c, mode) for mode in sampled for c in ours if mode != "match" or c.schedule in _MATCHED]
            beside = sampling_baselines if "rejection" in sampled else []
            settings.append(_setting("main", model, task, 1.0, [*each, *beside], wanted))
    if adapter is not None and "greedy" in wanted.modes and drafting:
        drafters = [c for c in ours if c.schedule in drafting]
        both = [*drafters, *(replace(c, name=f"{c.name} + LoRA", adapter=adapter) for c in drafters)]
        settings.append(_setting("lora", model, first, 0.0, both, wanted, cap=PROBE_CAP))
    return settings


def _ordered_settings(model: str, config: ModelConfig, tasks: Sequence[Task], wanted: Wanted) -> list[Setting]:
    """Windows and orders take the place of block sizes.

    Native and autoregressive have no order, and run beside left to right (table 9); native is greedy alone.
    """
    schedules = _schedules(config, wanted)
    windows = wanted.windows or (max(1, (config.horizon or 16) // 2),)  # the trained horizon is twice the window (App. E.1)
    settings = []
    for task in tasks:
        for order in wanted.orders:
            ours = [
                Candidate(f"{s}, W={w}", s, window=w, order=order)
                for w in windows
                for s in schedules
                if s not in ("native", "autoregressive") or order == "left_to_right"
            ]
            sampling = [c for c in ours if c.schedule != "native"]
            if "greedy" in wanted.modes and ours:
                settings.append(_setting("main", model, task, 0.0, ours, wanted, order=order))
            sampled = [mode for mode in wanted.modes if mode != "greedy"]
            if sampled and sampling and order == "left_to_right":  # as drafts are verified above temperature 0
                each = [_verified(c, mode) for mode in sampled for c in sampling if mode != "match" or c.schedule in _MATCHED]
                settings.append(_setting("main", model, task, 1.0, each, wanted, order=order))
    return settings


def _setting(
    study: str,
    model: str,
    task: Task,
    temperature: float,
    candidates: Sequence[Candidate],
    wanted: Wanted,
    *,
    order: str | None = None,
    most: int | None = None,
    cap: int | None = None,
    repeats: int | None = None,
) -> Setting:
    """A setting with the task's own cap and repetitions, where nothing else was asked for."""
    prompts = task.prompts[: wanted.limit][:most]
    caps = [one for one in (wanted.cap or task.max_new_tokens, cap) if one is not None]
    return Setting(
        study,
        model,
        task.name,
        temperature,
        tuple(candidates),
        prompts=len(prompts),
        digest=digest(prompts),
        cap=min(caps),
        repeats=repeats or wanted.repeats or task.repeats(temperature),
        order=order,
    )


def digest(prompts: Sequence[Prompt]) -> str:
    """Tell prompts from others by their ids and texts: 16 hexadecimal digits."""
    lines = "".join(f"{prompt.id}\0{prompt.text}\0" for prompt in prompts)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _verified(candidate: Candidate, mode: str) -> Candidate:
    name = candidate.name if mode == "rejection" else f"{candidate.name} ({mode})"
    return replace(candidate, name=name, verification=mode)


def probe_sizes(schedule: str, block_size: int) -> tuple[int, ...]:
    """Block sizes to try: around the checkpoint's own, and smaller for quadratic, whose rows grow with their square."""
    quarters = (0.125, 0.25, 0.5, 1.0) if schedule == "quadratic" else (0.25, 0.5, 1.0, 2.0)
    return tuple(sorted({max(2, round(block_size * quarter)) for quarter in quarters}))
