"""Torch's side of the CUDA kernels compiles, and has all that it names, where torch itself has no CUDA to build it for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from tests.host_cuda import build
from tests.support import cuda_toolkit

from .project import ROOT

CSRC = ROOT / "csrc"
BINDINGS = sorted((CSRC / "cuda").glob("bindings*.cpp"))
#: What CMake fills in, and torch's build of the header of that name.
GENERATED = {
    "build_info.h": "".join(f'#define PACKED_SS_{name} ""\n'
                            for name in ("COMPILER", "FLAGS", "THREADS", "TORCH_VERSION", "CUDA_STATUS")),
    "c10/cuda/impl/cuda_cmake_macros.h": "#define C10_CUDA_BUILD_SHARED_LIBS\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """ops.cpp and csrc/cuda/bindings*.cpp as in a build with a CUDA torch, by name."""
    compiler, toolkit = shutil.which("c++"), cuda_toolkit.home()
    if compiler is None or toolkit is None:
        pytest.skip("no C++ compiler, or no CUDA toolkit")
    pybind11 = pytest.importorskip("pybind11")
    folder = tmp_path_factory.mktemp("bindings")
    for name, text in GENERATED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#pragma once\n{text}")
    of_torch = Path(torch.__file__).parent / "include"
    system = (of_torch, of_torch / "torch" / "csrc" / "api" / "include", folder, pybind11.get_include(),
              sysconfig.get_path("include"), toolkit / "include")  # fmt: skip
    command = [compiler, "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-DPACKED_SS_WITH_CUDA",
               f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{CSRC}", f"-I{CSRC / 'include'}",
               *(f"-isystem{path}" for path in system)]  # fmt: skip
    found = {source.stem: folder / f"{source.stem}.o" for source in (CSRC / "ops.cpp", *BINDINGS)}
    for source in (CSRC / "ops.cpp", *BINDINGS):
        done = subprocess.run([*command, "-c", str(source), "-o", str(found[source.stem])], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
    return found


def symbols(path: Path, *, defined: bool) -> set[str]:
    """Names of functions of packed_ss::cuda in an object or library."""
    done = build.run(["nm", "-C", str(path)])
    kinds = "[TtWw]" if defined else "U"
    return set(re.findall(rf"^[0-9a-f ]* {kinds} (packed_ss::cuda::.*)$", done.stdout, re.MULTILINE))


def test_module_has_the_bindings_that_it_names(objects: dict[str, Path]) -> None:
    wanted = symbols(objects["ops"], defined=False)
    assert any("define_device_loop" in name for name in wanted)
    bound = set().union(*(symbols(objects[source.stem], defined=True) for source in BINDINGS))
    assert wanted - bound == set()


def test_every_launcher_that_is_called_is_there(objects: dict[str, Path]) -> None:
    called = set().union(*(symbols(objects[source.stem], defined=False) for source in BINDINGS))
    assert any("launch_advance_block" in name for name in called)
    built = set().union(*(symbols(build.library(name), defined=True) for name in ("kernels", "device_loop")))
    assert called - built == set()
