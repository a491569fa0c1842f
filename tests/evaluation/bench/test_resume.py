"""The command, killed in the middle of writing a record and run again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from packed_ss.cli.bench import run
from packed_ss.evaluation.bench.plan import Wanted
from packed_ss.evaluation.bench.report import write_report
from packed_ss.evaluation.bench.run_records import FILE, read_run

WANTED = Wanted(modes=("greedy", "rejection"), schedules=("linear", "packed"), block_size=8, limit=2, cap=8, baselines=False)
#: What does not depend on the clock.
COLUMNS = ["schedule", "B", "accuracy", "tokens", "NFE", "tokens/NFE", "tokens/NFE ratio"]

#: The same, with SIGKILL halfway through writing the fifth response.
KILLED = """
import os, signal, sys
from pathlib import Path
from packed_ss.evaluation.bench import run_records as records
import tests.evaluation.bench.test_resume as here
add = records.Recorder._write
def write(self, record):
    if len(self.run.responses) == 4:
        self._file.write(b'{"kind":"response","setting":"ma')
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, record)
records.Recorder._write = write
here.bench(Path(sys.argv[1]))
"""


def bench(folder: Path, **options) -> None:
    run(["tiny"], ["word-problems"], WANTED, folder, latency_seconds=0.0, threads=1, device="cpu", lora=False, **options)


def test_a_killed_run_goes_on_and_gives_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    bench(whole)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(broken)], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    torn = (broken / FILE).read_bytes()
    assert not torn.endswith(b"\n") and len(read_run(broken / FILE).responses) == 4
    assert not (broken / "tables").exists()
    bench(broken)
    assert (broken / FILE).read_bytes().startswith(torn[: torn.rindex(b"\n") + 1])
    assert "going on with the 4 responses" in capsys.readouterr().err
    texts = [
        {key: (r.text, r.nfe, r.seed, r.advances) for key, r in read_run(folder / FILE).responses.items()}
        for folder in (whole, broken)
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 8
    one, other = ([table.csv() for table in write_report(folder, COLUMNS, figures=False)] for folder in (whole, broken))
    assert one == other and len(one) == 5  # 6, 7, 11, 12, 13
    with pytest.raises(ValueError, match="another run, which differs in seed"):
        bench(broken, seed=1)
    bench(broken, report_only=True, columns=["tokens"])
    assert (broken / "figures" / "figure-3-ratios-greedy.svg").stat().st_size > 5000
    with pytest.raises(ValueError, match="the column is 'speed'"):
        bench(broken, columns=["speed"])
