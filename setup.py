"""Packages, and the native module packed_ss._C, which CMake builds (CMakeLists.txt).

The module is optional: without the tools for it the package installs as pure Python, which computes the same results.
Environment variables:
    PACKED_SS_NO_NATIVE=1       do not build it
    PACKED_SS_REQUIRE_NATIVE=1  fail where it cannot be built
    PACKED_SS_CUDA=auto|on|off  CUDA kernels where nvcc works (default) | or fail | never
    PACKED_SS_CUDA_ARCHITECTURES=90-real   for these cards only, separated by semicolons (CMAKE_CUDA_ARCHITECTURES)
    MAX_JOBS=n                  compile n files at a time

Build with `pip install --no-build-isolation`, so that it compiles against the torch that will load it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
RECORD = "_build.json"  # beside the module: how the build went, read by packed_ss.ops.native


class NotBuilt(Exception):
    """The native module cannot be built; the message is one sentence that says why."""


def flag(name: str) -> bool:
    """True when the environment variable `name` is set to 1 (unset, empty and 0 are false)."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise SystemExit(f"{name} must be 0 or 1, got {value!r}.")
    return value == "1"


def cuda_setting() -> str:
    """PACKED_SS_CUDA: "auto", "on" or "off"."""
    value = os.environ.get("PACKED_SS_CUDA", "auto")
    if value not in ("auto", "on", "off"):
        raise SystemExit(f"PACKED_SS_CUDA must be auto, on or off, got {value!r}.")
    return value


def cuda_architectures() -> list[str]:
    """What PACKED_SS_CUDA_ARCHITECTURES adds to CMake's command line."""
    value = os.environ.get("PACKED_SS_CUDA_ARCHITECTURES", "")
    if value and not re.fullmatch(r"\d+[af]?(-real|-virtual)?(;\d+[af]?(-real|-virtual)?)*", value):
        raise SystemExit(f"PACKED_SS_CUDA_ARCHITECTURES must be such as 90 or 80-real;90-real, got {value!r}.")
    return [f"-DCMAKE_CUDA_ARCHITECTURES={value}"] if value else []


def find_tool(name: str) -> str:
    """Path of cmake or ninja: beside this Python, on PATH, or inside the Python package of that name."""
    places = [str(Path(sys.executable).parent)]
    try:
        module = __import__(name)
        places.append(getattr(module, "BIN_DIR", None) or getattr(module, "CMAKE_BIN_DIR", ""))
    except ImportError:
        pass
    path = shutil.which(name, path=os.pathsep.join(filter(None, places))) or shutil.which(name)
    if path is None:
        raise NotBuilt(f"{name} was not found on PATH or as a Python package.")
    return path


def check_compiler() -> None:
    """Refuses a PATH without a C++ compiler, in words of our own (CMake would also look elsewhere)."""
    wanted = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in wanted):
        raise NotBuilt(f"no C++ compiler was found ({', '.join(wanted)}; the variable CXX names another one).")


def torch_version() -> str:
    """Version of the torch to build against; also asks for pybind11."""
    try:
        import pybind11  # noqa: F401
        import torch
    except ImportError as error:
        raise NotBuilt(f"{error.name} cannot be imported; install it first and pass --no-build-isolation to pip.") from None
    return torch.__version__


def run(command: list[str]) -> None:
    """Runs one step of the build; its output is shown, and the first error in it is repeated in the exception."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    print(done.stdout, flush=True)
    if done.returncode != 0:
        raise NotBuilt(f"{Path(command[0]).name} failed: {first_error(done.stdout)}")


def first_error(output: str) -> str:
    """The first error message of CMake or of a compiler, on one line (-Werror in a command is not one)."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if re.search(r"(?<![-\w])error\b", line, re.IGNORECASE):
            return " ".join(lines[i : i + 2]) if line.endswith(":") else line
    return lines[-1] if lines else "it printed nothing."


def compile_module(output: Path, version: str) -> None:
    """Configures and builds packed_ss._C into `output`; in auto mode a failure with CUDA is followed by a build without."""
    check_compiler()
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    build = ROOT / "build" / f"native-{sys.implementation.cache_tag}-torch-{version}"
    setting = cuda_setting()
    for cuda in [setting, "off"] if setting == "auto" else [setting]:
        # Objects are kept, but compilers are looked for anew, and a folder copied along with its sources works.
        (build / "CMakeCache.txt").unlink(missing_ok=True)
        try:
            run(
                [
                    cmake,
                    "-S",
                    str(ROOT),
                    "-B",
                    str(build),
                    "-G",
                    "Ninja",
                    f"-DCMAKE_MAKE_PROGRAM={ninja}",
                    f"-DPython_EXECUTABLE={sys.executable}",
                    f"-DPACKED_SS_OUTPUT_DIR={output}",
                    f"-DPACKED_SS_CUDA={cuda}",
                    *cuda_architectures(),
                ]
            )
            run([cmake, "--build", str(build), "--parallel", os.environ.get("MAX_JOBS") or str(min(os.cpu_count() or 1, 8))])
            return
        except NotBuilt as error:
            if cuda != "auto":
                raise
            print(f"WARNING: packed_ss: trying again without CUDA: {error}", file=sys.stderr, flush=True)


class CMakeBuild(build_ext):
    """Builds packed_ss._C with CMake, or records beside its place why it could not."""

    def output(self) -> Path:
        """Folder of the module: the sources for an editable install, else what becomes the wheel."""
        return (ROOT if self.inplace else Path(self.build_lib).resolve()) / "packed_ss"

    def run(self) -> None:
        output = self.output()
        output.mkdir(parents=True, exist_ok=True)
        for old in output.glob(f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"):
            old.unlink()  # the module of an earlier build must not outlive a failed one
        (output / RECORD).unlink(missing_ok=True)
        try:
            if flag("PACKED_SS_NO_NATIVE"):
                raise NotBuilt("PACKED_SS_NO_NATIVE=1 was set when it was installed.")
            version = torch_version()
            compile_module(output, version)
            record = {"built": True, "reason": "", "torch": version}
        except NotBuilt as error:
            if flag("PACKED_SS_REQUIRE_NATIVE"):
                raise SystemExit(f"packed_ss: the native kernels were not built: {error}") from None
            print(f"WARNING: packed_ss installs without native kernels: {error}", file=sys.stderr, flush=True)
            record = {"built": False, "reason": str(error), "torch": ""}
        (output / RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")

    def get_outputs(self) -> list[str]:
        return [str(path) for path in self.output().glob("_C*")] + [str(self.output() / RECORD)]


setup(
    # The folder triton_kernels/ is a subpackage: its bare name belongs to another package.
    package_dir={"packed_ss": "packed_ss", "packed_ss.triton_kernels": "triton_kernels"},
    packages=[
        *find_packages(str(ROOT), include=["packed_ss", "packed_ss.*"]),
        "packed_ss.triton_kernels",
        *(f"packed_ss.triton_kernels.{name}" for name in find_packages(str(ROOT / "triton_kernels"))),
    ],
    package_data={"packed_ss": ["py.typed", *(f"assets/**/*.{ending}" for ending in ("json", "jsonl", "jinja", "safetensors"))]},
    ext_modules=[Extension("packed_ss._C", sources=[], optional=True)],
    cmdclass={"build_ext": CMakeBuild},
)
