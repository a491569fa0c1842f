"""One command for a machine with an NVIDIA GPU: builds, checks and measures packed_ss there, within a budget of time.

    python bench/device_check.py --budget 480 --out bench/results

Stages run by priority (--dry-run lists them), each in a process of its own, so that a crash or a hang ends that stage alone; one
for which too little of the budget is left is skipped, and the last may take all that is left.  The record, which is
<out>/<card>-<date>.json, is written after every stage, and figures beside it at the end.  Everything is built and run in a copy
of the sources (--workdir), from what is installed; nothing is fetched, and the card's settings stay as they are.  Exit status: 0
where every stage that ran is in order, 1 otherwise, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

BEGIN = time.monotonic()
BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path[:0] = [str(BENCH), str(ROOT)]  # the stages' modules, and packed_ss where it is not installed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for everything (default 480)")
    parser.add_argument("--out", type=Path, default=BENCH / "results", help="folder of the record (default bench/results)")
    parser.add_argument("--only", default="", help="stages to run, separated by commas (default: all)")
    parser.add_argument("--skip", default="", help="stages to leave out")
    parser.add_argument(
        "--workdir",
        type=Path,
        default=ROOT / "build" / "device-check",
        help="where the sources are copied to and built; kept, so that a second run compiles little",
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: the stages' own code at small sizes, to find its faults before it meets a GPU",
    )
    parser.add_argument("--dry-run", action="store_true", help="list the stages and what they take")
    parser.add_argument("--show", type=Path, metavar="RECORD", help="print the table of a record, and draw its figures beside it")
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=600.0, help=argparse.SUPPRESS)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.probe:
        from device.machine import probe

        print(json.dumps(probe()))
        return 0
    if args.show:
        return show(args.show)
    if args.draw:
        print(drawn(json.loads(args.draw.read_text(encoding="utf-8")), args.draw))
        return 0
    if args.stage:
        return run_stage(args)
    return check(args, parser)


def check(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Every stage in turn."""
    from device.driver import Check
    from device.stages import FULL, NEEDS_GPU, SMALL, STAGES

    only, skip = ([name for name in text.split(",") if name] for text in (args.only, args.skip))
    if unknown := sorted({*only, *skip} - {stage.name for stage in STAGES}):
        parser.error(f"no stage is called {', '.join(unknown)}; there are {', '.join(stage.name for stage in STAGES)}")
    on_gpu = args.device == "cuda"
    stages = [
        stage
        for stage in STAGES
        if (not only or stage.name in only) and stage.name not in skip and (on_gpu or stage.name not in NEEDS_GPU)
    ]
    if args.dry_run:
        for stage in stages:
            print(f"{stage.name:11} about {stage.estimate:4.0f} s, at most {stage.limit:4.0f} s  {stage.title}")
        print(f"{'together':11} about {sum(stage.estimate for stage in stages):4.0f} s, with a budget of {args.budget:.0f} s")
        return 0
    machine = probed()
    if on_gpu and machine["reason"]:
        print(f"device_check needs an NVIDIA GPU, but {machine['reason']}.")
        return 2
    from device.processes import run
    from device.record import slug, table
    from device.workspace import prepare

    args.out.mkdir(parents=True, exist_ok=True)
    out, today = args.out.resolve(), date.today().isoformat()
    path = unused(out / f"{slug(machine['device'] if on_gpu else 'cpu')}-{today}.json")
    workdir = prepare(args.workdir.resolve())
    script = workdir / "bench" / "device_check.py"
    log = path.with_suffix(".log")
    log.unlink(missing_ok=True)
    record: dict[str, Any] = {
        "schema": 1,
        "date": today,
        "commit": commit(),
        "budget_s": args.budget,
        "machine": {name: value for name, value in machine.items() if name != "reason"} | {"checked on": args.device},
        "sizes": vars(FULL if on_gpu else SMALL),
    }
    checked = Check(
        stages,
        args.budget,
        path,
        record=record,
        cwd=workdir,
        log=log,
        spent=time.monotonic() - BEGIN,
        command=lambda stage, results, limit: [
            sys.executable,
            str(script),
            "--stage",
            stage.name,
            "--device",
            args.device,
            "--results",
            str(results),
            "--limit",
            f"{limit:.1f}",
        ],
        environment={"PYTHONPATH": f"{workdir}:{workdir / 'bench'}", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
    )
    record = checked.run()
    # In a process of its own, like the stages: this one gets along without packed_ss.
    figures = run([sys.executable, str(script), "--draw", str(path)], limit=60, environment=checked.environment)
    shown = figures.output.rstrip() if not figures.reason() else f" (no figures: {figures.reason()})"
    print(f"\n{title(record)}\n{table(record['stages'])}\n\nrecord: {path.name}{shown}")
    if not on_gpu:
        print("This was a CPU: the figures mean nothing.")
    return int(any(stage["status"] in ("failed", "timeout") for stage in record["stages"]))


def unused(path: Path) -> Path:
    """The path, or <stem>-2, -3 ... where there is such a file already."""
    names = (path.with_name(f"{path.stem}-{i}{path.suffix}") for i in itertools.count(2))
    return next(one for one in (path, *itertools.islice(names, 1000)) if not one.exists())


def run_stage(args: argparse.Namespace) -> int:
    """One stage, in this process; its results are in the file as they come."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that it ends what it has started
    import torch
    from device import machine
    from device.record import Results
    from device.stages import FULL, SMALL, Bench, function

    on_gpu = args.device == "cuda"
    bench = Bench(
        torch.device(args.device, 0) if on_gpu else torch.device("cpu"),
        FULL if on_gpu else SMALL,
        BEGIN + args.limit,
        Path(__file__).resolve(),
        sys.executable,
    )
    results = Results(args.results)
    clocks = [machine.state()] if on_gpu else []
    with torch.no_grad():
        function(args.stage)(bench, results)
    if any(clocks):
        results.put("card", {"before": clocks[0], "after": machine.state()})
    return 0


def probed() -> dict[str, Any]:
    """What the machine is, asked in a process of its own: this one never touches the GPU."""
    from device.processes import run

    asked = run([sys.executable, str(Path(__file__).resolve()), "--probe"], limit=120)
    try:
        return json.loads(asked.output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        why = asked.output.strip().splitlines()[-1:] or [asked.reason()]
        return {"reason": f"asking torch for one failed: {why[0]}"}


def commit() -> str | None:
    """The commit of the checkout, where git knows one."""
    ask = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def title(record: dict[str, Any]) -> str:
    """What was checked, on one line."""
    machine = record["machine"]
    return (
        f"{machine.get('device', 'CPU')}, torch {machine['torch']}, triton {machine['triton']}, CUDA {machine['cuda']}, "
        f"{record['date']}: {record['seconds']:.0f} of {record['budget_s']:.0f} s"
    )


def drawn(record: dict[str, Any], path: Path) -> str:
    """Draw the figures of a record beside it; return their names, or why there are none."""
    try:
        from device.plots import draw

        names = [figure.name for figure in draw(record, path)]
    except Exception as error:  # a record without figures is a record
        return f" (no figures: {error!r})"
    return "".join(f", {name}" for name in names)


def show(path: Path) -> int:
    """The table and the figures of a record from elsewhere."""
    from device.record import table

    record = json.loads(path.read_text(encoding="utf-8"))
    print(f"{title(record)}\n{table(record['stages'])}{drawn(record, path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
