"""Plans: which settings a checkpoint gets, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from packed_ss.evaluation.bench.plan import Plan, Wanted, digest, model_settings, plan_from, probe_sizes
from packed_ss.evaluation.bench.runner import keys_of
from tests.support.checkpoints import random_config, random_set_config

from .made import setting, task

TASKS = [task()]


def test_a_block_model_gets_probe_greedy_and_sampling_with_baselines():
    settings = model_settings(
        "m", random_config(block_size=16), TASKS, Wanted(), baselines=["transformers"], sampling_baselines=["flashinfer"]
    )
    assert [c.name for c in settings] == ["probe/m/t/T0", "main/m/t/T0", "main/m/t/T1"]
    probe, greedy, sampled = settings
    sizes = {"linear": (4, 8, 16, 32), "packed": (4, 8, 16, 32), "quadratic": (2, 4, 8, 16)}
    assert {(c.schedule, c.block_size) for c in probe.candidates} == {(s, b) for s in sizes for b in sizes[s]}
    assert [c.name for c in greedy.candidates] == ["autoregressive", "linear", "quadratic", "packed", "transformers"]
    assert {c.name: c.block_size for c in greedy.candidates}["packed"] is None  # as the probe will say
    assert [c.name for c in sampled.candidates] == [
        "autoregressive",
        "linear",
        "quadratic",
        "packed",
        "linear (match)",
        "packed (match)",
        "flashinfer",
    ]
    assert (greedy.repeats, sampled.repeats, greedy.cap, probe.repeats) == (1, 2, 12, 3)


def test_an_ordered_model_gets_windows_and_orders():
    settings = model_settings("m", random_set_config(), TASKS, Wanted(), baselines=["transformers"])
    assert [c.name for c in settings] == ["main/m/t/T0/left_to_right", "main/m/t/T1/left_to_right", "main/m/t/T0/confidence"]
    assert [c.name for c in settings[0].candidates] == [
        f"{s}, W=8" for s in ("autoregressive", "native", "linear", "quadratic", "packed")
    ]
    assert {c.schedule for c in settings[1].candidates} == {"autoregressive", "linear", "quadratic", "packed"}
    assert [c.schedule for c in settings[2].candidates] == ["linear", "quadratic", "packed"]
    assert all(c.block_size is None and c.window == 8 for one in settings for c in one.candidates)


def test_what_is_asked_for_is_what_runs():
    wanted = Wanted(modes=("greedy",), schedules=("linear", "packed"), block_size=8, limit=2, repeats=4, cap=5, baselines=False)
    (one,) = model_settings("m", random_config(), TASKS, wanted, baselines=["transformers"])
    assert [(c.name, c.block_size) for c in one.candidates] == [("linear", 8), ("packed", 8)]
    assert (one.prompts, one.repeats, one.cap) == (2, 4, 5)
    lora = model_settings("m", random_config(), TASKS, wanted, adapter="x")[1]
    assert [(c.name, c.adapter) for c in lora.candidates] == [
        ("linear", None),
        ("packed", None),
        ("linear + LoRA", "x"),
        ("packed + LoRA", "x"),
    ]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Wanted(schedules=("fast",)), "schedule is 'fast', but it must be one of autoregressive, linear"),
        (Wanted(schedules=("native",)), "none of the schedules native is one of a model of the block layout"),
        (Wanted(modes=("typical",)), "mode is 'typical'"),
        (Wanted(modes=()), "no mode"),
        (Wanted(orders=("random",)), "order is 'random'"),
        (Wanted(block_size=1), "block size is 1"),
        (Wanted(windows=(0,)), "window is 0"),
        (Wanted(limit=0), "limit is 0"),
    ],
)
def test_what_there_is_not_is_refused(wanted: Wanted, message: str):
    with pytest.raises(ValueError, match=message):
        model_settings("m", random_config(), TASKS, wanted)


def test_a_plan_survives_json_and_tells_prompts_apart():
    whole = Plan(tuple(model_settings("m", random_config(), TASKS, Wanted())), 0, "cpu", "float32", 1, 0.0)
    assert plan_from(json.loads(json.dumps(whole.as_dict()))) == whole
    assert digest(task().prompts) != digest(task(("4 1 7", "2 9 9 5", "6 9")).prompts)
    assert probe_sizes("quadratic", 4) == (2, 4) and probe_sizes("packed", 32) == (8, 16, 32, 64)


def test_candidates_take_turns_and_each_prompt_starts_with_another():
    where = setting(prompts=4, repeats=2)
    order = [(i, k, c.name) for i, k, c in keys_of(where)]
    assert len(set(order)) == len(order) == where.responses == 24
    first = [order[i][2] for i in range(0, 24, 3)]
    assert all({order[i + j][2] for j in range(3)} == {c.name for c in where.candidates} for i in range(0, 24, 3))
    assert all(a != b for a, b in pairwise(first)) and len(set(first)) == 3
