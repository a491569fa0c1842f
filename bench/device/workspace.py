"""A copy of the checkout to build in and to run from.

A plain checkout on PYTHONPATH has no packed_ss.triton_kernels: only an install makes one of the folder triton_kernels/.  In the
copy a link does, so that neither pip nor a change of the checkout is needed; the module is built inside the copy.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("packed_ss", "triton_kernels", "csrc", "tests", "bench", "CMakeLists.txt", "setup.py", "pyproject.toml", "README.md",
           "LICENSE")  # fmt: skip
_IGNORED = shutil.ignore_patterns("__pycache__", "results", "*.tmp", "*.egg-info")
#: Kept from one preparation to the next, so that a second build compiles what has changed.
_KEPT = ("build",)


def prepare(target: Path) -> Path:
    """Copy the sources to ``target``, in place of an earlier copy, and link packed_ss/triton_kernels; return ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        if old.is_dir() and not old.is_symlink():
            if old.name not in _KEPT:
                shutil.rmtree(old)
        else:
            old.unlink()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=_IGNORED)
        elif name == "pyproject.toml":
            (target / name).write_text(tool_settings(source.read_text(encoding="utf-8")), encoding="utf-8")
        elif source.exists():
            shutil.copy2(source, target / name)
    (target / "packed_ss" / "triton_kernels").symlink_to(Path("..") / "triton_kernels", target_is_directory=True)
    return target


def tool_settings(text: str) -> str:
    """The [tool.*] tables of a pyproject.toml: nothing that an older setuptools would refuse to build from."""
    tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    return "".join(table for table in tables if table.startswith("[tool."))
