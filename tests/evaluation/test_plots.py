"""Figures leave the caller's matplotlib alone, and one colour stands for one schedule; missing extras are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from packed_ss.evaluation import extras
from packed_ss.evaluation.plots import COLOURS, colour, plot_comparison
from packed_ss.evaluation.totals import Totals

TOTALS = [Totals(name, 1, 10, 5, 1.0, 1.0, 1) for name in ("linear", "packed", "packed, confidence")]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_figure_is_written_the_same_every_time(tmp_path: Path, ending: str) -> None:
    files = []
    for name in "ab":
        path = tmp_path / f"{name}.{ending}"
        plot_comparison(TOTALS, path, "title")
        files.append(path.read_bytes())
    assert files[0] == files[1] and len(files[0]) > 2000


def test_the_callers_backend_and_settings_stay(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, matplotlib\nmatplotlib.use('svg')\nmatplotlib.rcParams['font.size'] = 31\n"
        "from packed_ss.evaluation.plots import plot_comparison\nfrom packed_ss.evaluation.totals import Totals\n"
        "plot_comparison([Totals('packed', 1, 10, 5, 1.0, 1.0, 1)], pathlib.Path(sys.argv[1]), 'title')\n"
        "print(matplotlib.get_backend(), matplotlib.rcParams['font.size'], 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.png")], capture_output=True, text=True)
    assert done.stdout == "svg 31.0 False\n", done.stderr
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_schedule_has_one_colour_whatever_follows_its_name() -> None:
    for name in ("packed", "packed, confidence", "packed (match)", "packed, W=8", "packed, greedy, fused head"):
        assert colour(name) == COLOURS["packed"]
    assert len(set(COLOURS.values())) == len(COLOURS) and colour("branched:0,1") not in COLOURS.values()


def test_a_missing_extra_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^a figure needs matplotlib, which is not installed: pip install packed-ss\[bench\]$"):
        plot_comparison(TOTALS, tmp_path / "a.png", "title")
    with pytest.raises(ValueError, match=r"^x needs a and b, which are not installed: pip install packed-ss\[bench\]$"):
        extras.need("x", "a", "b")
