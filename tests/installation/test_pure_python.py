"""A machine without the tools for the native module still installs and computes, and says what it lacks."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from .project import build_ext, copy_sources, run

USE = """
import torch, packed_ss.ops as ops
from packed_ss.ops import native
u = torch.ops.packed_ss.uniform_noise(torch.tensor([0]), torch.tensor([[0]], dtype=torch.int32), 0, 3)
print(ops.__file__, native.available(), native.reason(), u.shape[-1], sep="|")
"""


def test_installs_and_computes_without_a_compiler(tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    site = tmp_path / "site"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    done = run(["-m", "pip", "install", *options, "--target", str(site), str(source)], tmp_path, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not list(site.glob("packed_ss/_C*"))

    done = run(["-c", USE], tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    file, available, reason, size = done.stdout.strip().split("|")
    assert Path(file).is_relative_to(site)
    assert (available, size) == ("False", "3")
    assert "no C++ compiler was found" in reason


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PACKED_SS_NO_NATIVE": "1"}, "PACKED_SS_NO_NATIVE=1"),
        ({"CXX": "no-such-compiler"}, "no C++ compiler was found (no-such-compiler"),
        ({"CXX": "false", "PACKED_SS_CUDA": "off"}, "cmake failed"),
    ],
)
def test_says_why_nothing_was_compiled(tmp_path: Path, environment: dict[str, str], reason: str) -> None:
    source, output = copy_sources(tmp_path / "source"), tmp_path / "output"
    done = build_ext(source, output, **environment)
    assert done.returncode == 0, done.stderr
    assert f"WARNING: packed_ss installs without native kernels: {reason}" in done.stderr
    record = json.loads((output / "packed_ss" / "_build.json").read_text())
    assert record["built"] is False
    assert reason in record["reason"]


def test_a_failed_build_removes_the_module_of_an_earlier_one(tmp_path: Path) -> None:
    source, output = copy_sources(tmp_path / "source"), tmp_path / "output"
    old = output / "packed_ss" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"of an earlier build")
    assert build_ext(source, output, PACKED_SS_NO_NATIVE="1").returncode == 0
    assert not old.exists()


def test_fails_where_the_native_module_is_required(tmp_path: Path) -> None:
    source, output = copy_sources(tmp_path / "source"), tmp_path / "output"
    done = build_ext(source, output, PACKED_SS_REQUIRE_NATIVE="1", CXX="no-such-compiler")
    assert done.returncode != 0
    assert "packed_ss: the native kernels were not built: no C++ compiler was found" in done.stderr


@pytest.mark.parametrize("environment", [{"PACKED_SS_CUDA": "yes"}, {"PACKED_SS_NO_NATIVE": "true"}])
def test_refuses_an_unknown_setting(tmp_path: Path, environment: dict[str, str]) -> None:
    done = build_ext(copy_sources(tmp_path / "source"), tmp_path / "output", **environment)
    assert done.returncode != 0
    [(name, value)] = environment.items()
    assert f"{name} must be " in done.stderr
    assert repr(value) in done.stderr
