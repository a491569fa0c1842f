"""Figures: what they count, and that they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from packed_ss.evaluation.bench.figures import accepted_by_position, draw_all
from packed_ss.evaluation.bench.plan import Candidate
from packed_ss.evaluation.bench.summary import summarise

from .made import CANDIDATES, plan, response, run_of, setting

LATENCY = {
    "m": {
        "model": "m",
        "dtype": "float32",
        "device": "CPU (AVX2)",
        "threads": 2,
        "copy_gb_s": 9.0,
        "floor_ms": 0.5,
        "prefix": 9,
        "mask": "packed",
        "points": [{"rows": n, "median_ms": 1 + n, "p25_ms": 0.9 + n, "p75_ms": 1.2 + n} for n in (1, 4, 8)],
        "fits": [{"rows": [1, 8], "tau_ms": 1.0, "delta_ms": 1.0}],
    }
}


def test_acceptance_counts_what_was_tested():
    # W = 3.  Linear: h = 3, then 1; the last call, which may have been cut, does not count.
    assert accepted_by_position([[1, 4, 0, 2, 0, 1]], "linear", 3) == ([2, 2, 1], [2, 1, 1])
    # Packed: 3 drafts after prefill, 3 - 2 = 1 after each advance of 2, 3 - 1 after that of 1; h = 1, 1, 0, 0.
    assert accepted_by_position([[1, 2, 2, 1, 1, 1]], "packed", 3) == ([4, 1, 0], [2, 0, 0])
    # Quadratic: 3 drafts, then 2 each time.
    assert accepted_by_position([[1, 4, 3, 1]], "quadratic", 3) == ([2, 2, 1], [2, 2, 1])
    assert accepted_by_position([[]], "packed", 2) == ([0, 0], [0, 0])


def _files(tmp_path: Path) -> dict[str, Path]:
    warm = setting(temperature=1.0)
    kinds = [Candidate(f"{s}, W=8", s, window=8, order="left_to_right") for s in ("native", "linear", "packed")]
    ordered = setting(candidates=kinds, order="left_to_right", model="o")
    settings = (setting(), warm, ordered)
    made = [
        response(
            where,
            c,
            prompt,
            40,
            12,
            1.0 + 0.1 * i,
            score=1.0,
            model_seconds=0.8,
            first_model_seconds=0.1,
            advances=[1] + [2, 1] * 20,
        )
        for where in settings
        for i, c in enumerate(where.candidates)
        for prompt in "ab"
    ]
    summaries = summarise(plan(*settings), run_of(plan(*settings), made))
    return {path.name: path for path in draw_all(summaries, LATENCY, tmp_path)}


def test_figures_are_written(tmp_path: Path):
    files = _files(tmp_path / "1")
    names = ("figure-3-ratios-greedy", "figure-4-ratios-sampling", "figure-5-time", "latency", "acceptance", "advances")
    assert sorted(files) == sorted(f"{name}.{ending}" for name in names for ending in ("png", "svg"))
    for name, path in files.items():
        data = path.read_bytes()
        assert len(data) > 5000, name
        assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")


def test_nothing_is_drawn_of_nothing(tmp_path: Path):
    assert draw_all([], {}, tmp_path) == []
    alone = setting(candidates=CANDIDATES[:1], prompts=1)
    made = [response(alone, CANDIDATES[0], "a", 5, 5, 1.0, advances=[1] * 5)]
    assert draw_all(summarise(plan(alone), run_of(plan(alone), made)), {}, tmp_path) == []


@pytest.mark.parametrize("schedule", ["linear", "packed", "quadratic"])
def test_no_draft_is_accepted_untested(schedule: str):
    tested, accepted = accepted_by_position([[1, 3, 1, 2, 4, 1, 1]], schedule, 4)
    assert all(a <= t for a, t in zip(accepted, tested, strict=True)) and tested == sorted(tested, reverse=True)
