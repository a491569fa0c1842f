"""The command itself: without a GPU, listing, a whole run on a CPU, and a record from elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from device.stages import STAGES
from device.workspace import ROOT, prepare, tool_settings

from .conftest import BENCH

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def device_check(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, str(BENCH / "device_check.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**base, "OMP_NUM_THREADS": "1", **environment},
    )


@NO_GPU
def test_without_a_gpu_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    done = device_check("--out", str(tmp_path / "out"), "--workdir", str(tmp_path / "work"))
    assert done.returncode == 2 and not done.stderr
    assert done.stdout.startswith("device_check needs an NVIDIA GPU, but torch ") and done.stdout.count("\n") == 1
    assert done.stdout.endswith(".\n") and not list(tmp_path.iterdir())


def test_a_dry_run_lists_the_stages_with_what_they_take() -> None:
    lines = device_check("--dry-run", "--skip", "tests").stdout.splitlines()
    kept = [stage for stage in STAGES if stage.name != "tests"]
    assert [line.split()[0] for line in lines[:-1]] == [stage.name for stage in kept]
    assert f"about {kept[0].estimate:4.0f} s, at most {kept[0].limit:4.0f} s  {kept[0].title}" in lines[0]
    assert lines[-1] == f"together    about {sum(stage.estimate for stage in kept):4.0f} s, with a budget of 480 s"


def test_an_earlier_record_of_the_day_is_kept(tmp_path: Path) -> None:
    import device_check as script

    path = tmp_path / "card-2026-01-02.json"
    assert script.unused(path) == path
    for name in ("card-2026-01-02.json", "card-2026-01-02-2.json"):
        (tmp_path / name).touch()
    assert script.unused(path) == tmp_path / "card-2026-01-02-3.json"


def test_an_unknown_stage_is_refused() -> None:
    done = device_check("--only", "latency,speed")
    assert done.returncode == 2 and "no stage is called speed; there are build, operators, " in done.stderr


def test_a_whole_run_on_a_cpu_from_a_checkout_without_an_install(tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    arguments = ["--device", "cpu", "--only", "latency,resolves", "--budget", "300", "--out", str(out), "--workdir", str(work)]
    # The driver itself must get along without packed_ss, which on a GPU cannot be imported from a plain checkout.
    program = (
        f"import sys; sys.modules['torch'] = sys.modules['packed_ss'] = None; sys.path.insert(0, {str(BENCH)!r}); "
        f"import device_check; sys.exit(device_check.main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = out.glob("cpu-*.json")
    record = json.loads(path.read_text())
    assert [(stage["name"], stage["status"]) for stage in record["stages"]] == [("latency", "ok"), ("resolves", "ok")]
    assert record["machine"]["torch"] == torch.__version__ and record["sizes"]["prefix"] == 12
    figures = [f"{path.stem}-{name}.png" for name in ("kernels", "latency")]
    assert sorted(file.name for file in out.iterdir()) == [*figures, path.name, path.stem + ".log"]
    text = path.read_text() + path.with_suffix(".log").read_text()
    assert str(tmp_path) not in text and str(ROOT) not in text and str(Path.home()) + "/" not in text
    assert "rejection by" in done.stdout and f"record: {path.name}, {figures[1]}, {figures[0]}\n" in done.stdout

    (out / f"{path.stem}-kernels.png").unlink()
    shown = device_check("--show", str(path))
    assert shown.returncode == 0 and "== resolves: ok in " in shown.stdout and (out / f"{path.stem}-kernels.png").exists()


# ---- The copy of the sources -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("copies") / "copy")


def test_the_copy_has_the_triton_kernels_as_a_subpackage(workspace: Path) -> None:
    show = "import packed_ss, packed_ss.triton_kernels as kernels; print(packed_ss.__file__, kernels.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", show],
        cwd="/",
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{workspace}:{Path(torch.__file__).parents[1]}"},
    )  # -S: no editable install's hooks
    folder = workspace / "packed_ss"
    assert done.stdout.split() == [str(folder / "__init__.py"), str(folder / "triton_kernels" / "__init__.py")], done.stderr
    assert not (ROOT / "packed_ss" / "triton_kernels").exists()


def test_a_second_preparation_keeps_the_build_and_nothing_else(workspace: Path) -> None:
    (workspace / "build").mkdir(exist_ok=True)
    (workspace / "build" / "object.o").touch()
    (workspace / "csrc" / "gone.cpp").touch()
    prepare(workspace)
    assert (workspace / "build" / "object.o").exists() and not (workspace / "csrc" / "gone.cpp").exists()
    ours, theirs = ROOT / "csrc" / "ops.cpp", workspace / "csrc" / "ops.cpp"
    assert ours.read_bytes() == theirs.read_bytes() and ours.stat().st_mtime_ns == theirs.stat().st_mtime_ns  # no compiling anew


def test_only_the_settings_of_tools_are_copied(workspace: Path) -> None:
    assert (
        tool_settings('[project]\nname = "x"\n\n[tool.a]\nb = ["[x]",\n  1]\n[other]\n[tool.c.d]\ne = 1\n')
        == '[tool.a]\nb = ["[x]",\n  1]\n[tool.c.d]\ne = 1\n'
    )
    text = (workspace / "pyproject.toml").read_text()
    assert "[tool.pytest.ini_options]" in text and "[project]" not in text and "[build-system]" not in text


# ---- What setup.py tells CMake -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "want"),
    [("90-real", "-DCMAKE_CUDA_ARCHITECTURES=90-real"), ("", ""), ("80-real;100a", "-DCMAKE_CUDA_ARCHITECTURES=80-real;100a")],
)
def test_architectures_reach_cmake(tmp_path: Path, workspace: Path, given: str, want: str) -> None:
    pytest.importorskip("setuptools")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cmake", "ninja", "c++"):
        (tools / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tmp_path}/{name}\nexit 1\n')
        (tools / name).chmod(0o755)
    python = tools / "python"  # setup.py looks for tools beside its Python first
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    arguments = ["setup.py", "-q", "build_ext", "--build-lib", str(tmp_path)]
    program = (
        f"import sys; sys.executable, sys.argv = {str(python)!r}, {arguments!r}; "
        "exec(open('setup.py').read(), {'__file__': 'setup.py', '__name__': '__main__'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=workspace,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PACKED_SS_CUDA": "off",
            "PACKED_SS_CUDA_ARCHITECTURES": given,
        },
    )
    asked = (tmp_path / "cmake").read_text().splitlines() if (tmp_path / "cmake").exists() else [done.stdout + done.stderr]
    assert [line for line in asked if "ARCHITECTURES" in line] == ([want] if want else []) and "-DPACKED_SS_CUDA=off" in asked


def test_a_malformed_architecture_is_refused(workspace: Path, tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path)],
        cwd=workspace,
        capture_output=True,
        text=True,
        env={**os.environ, "PACKED_SS_CUDA_ARCHITECTURES": "hopper"},
    )
    assert done.returncode != 0
    assert "PACKED_SS_CUDA_ARCHITECTURES must be such as 90 or 80-real;90-real, got 'hopper'." in done.stderr
