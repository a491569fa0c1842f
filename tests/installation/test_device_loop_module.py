"""The device loop with the CUDA runtime that it ships with: built by nvcc, linked, loaded, and asked, with or without a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import cuda_toolkit

from .project import ROOT
from .test_framework_free import find_nvcc

CSRC = ROOT / "csrc"
SHOW = """
import json
import device_loop_module as m

def error(*arguments):
    try:
        m.DeviceLoop(*arguments)
    except RuntimeError as refusal:
        return str(refusal)

print(json.dumps({"obstacle": m.device_loop_obstacle(), "first": error(0, 0, 1, 0, 5), "second": error(0, 0, 1, 0, 5)}))
"""


def compiled(folder: Path) -> None:
    """Builds device_loop_module in `folder`, of objects as CMake makes them."""
    nvcc, compiler, toolkit = find_nvcc(), shutil.which("c++"), cuda_toolkit.home()
    if nvcc is None or compiler is None or toolkit is None:
        pytest.skip("no nvcc, or no C++ compiler")
    pybind11 = pytest.importorskip("pybind11")
    include = ["-I", str(CSRC), "-I", str(CSRC / "include"), "-isystem", str(toolkit / "include")]
    python = ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include")]
    host = [compiler, "-fPIC", "-fvisibility=hidden", "-O1", "-Wall", "-Wextra", "-Werror"]
    cuda = CSRC / "cuda"
    commands = [
        [nvcc, "-std=c++17", "-arch=sm_80", "-Xcompiler", "-fPIC", *include[:4], "-c", cuda / "device_loop.cu", "-o", "kernel.o"],
        [*host, "-std=c++17", *include, "-c", cuda / "device_loop_graph.cpp", "-o", "graph.o"],
        [*host, "-std=c++20", *include, *python, "-c", cuda / "bindings_device_loop.cpp", "-o", "bindings.o"],
        [*host, "-std=c++20", *include, *python, "-c", Path(__file__).with_name("device_loop_module.cpp"), "-o", "module.o"],
        [nvcc, "-shared", "kernel.o", "graph.o", "bindings.o", "module.o", "-o",
         "device_loop_module" + sysconfig.get_config_var("EXT_SUFFIX")],
    ]  # fmt: skip
    for command in commands:
        done = subprocess.run([*map(str, command)], cwd=folder, text=True, capture_output=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_says_what_is_missing_and_refuses_without_a_crash(tmp_path: Path) -> None:
    compiled(tmp_path)
    done = subprocess.run([sys.executable, "-c", SHOW], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["first"] == said["second"]  # nothing of the first attempt is in the way
    if said["obstacle"] == "there is no CUDA driver.":
        assert said["first"] == "cudaGraphCreate failed: CUDA driver version is insufficient for CUDA runtime version."
    else:
        assert said["first"].startswith("cudaGraph")  # no iteration to repeat
    assert said["obstacle"] == "" or said["obstacle"].endswith(".")
