"""A copy of the sources to build in, and an environment in which nothing of the build in this folder shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IGNORED = shutil.ignore_patterns("__pycache__", "*.so", "_build.json", "*.egg-info")
SOURCES = ("packed_ss", "triton_kernels", "csrc", "setup.py", "pyproject.toml", "CMakeLists.txt", "MANIFEST.in", "README.md",
           "LICENSE")  # fmt: skip


def copy_sources(target: Path) -> Path:
    """Copies what a build needs into `target`, without anything that was built."""
    target.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=IGNORED)
        else:
            shutil.copy(source, target / name)
    return target


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with `command` in `cwd`; variables of setup.py and of native.py come from `environment` alone."""
    base = {k: v for k, v in os.environ.items() if not k.startswith("PACKED_SS_") and k not in ("CXX", "PYTHONPATH")}
    return subprocess.run([sys.executable, *command], cwd=cwd, env=base | environment, text=True, capture_output=True)


def build_ext(source: Path, output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The step of the installation that compiles, alone."""
    return run(["setup.py", "--quiet", "build_ext", "--build-lib", str(output)], source, **environment)
