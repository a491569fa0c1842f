"""csrc/include and csrc/cuda compile without torch; CUDA for every target, without warnings and without spills."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .project import ROOT

INCLUDE = ROOT / "csrc" / "include"
HEADERS = sorted(INCLUDE.rglob("*.h"))
CUDA_SOURCES = sorted((ROOT / "csrc" / "cuda").rglob("*.cu"))
TARGETS = ("sm_80", "sm_90", "sm_100")


def find_nvcc() -> str | None:
    """nvcc on PATH, or in the usual places."""
    places = [os.environ.get("PATH", "")]
    places += [os.path.join(root, "bin") for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if root]
    return shutil.which("nvcc", path=os.pathsep.join(places))


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_header_compiles_alone(header: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    command = [compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-I", str(INCLUDE)]
    done = subprocess.run([*command, "-x", "c++", "-"], input=f'#include "{header}"\n', text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", CUDA_SOURCES, ids=lambda path: path.name)
def test_cuda_compiles_without_warnings_or_spills(source: Path, target: str, tmp_path: Path) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("no nvcc")
    command = [nvcc, "-std=c++17", f"-arch={target}", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    command += ["-Xptxas", "-v", "-I", str(INCLUDE), "-c", str(source), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert spills, f"ptxas reported no kernel:\n{done.stderr}"
    assert set(spills) == {("0", "0")}, done.stderr
