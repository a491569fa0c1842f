"""What a wheel holds: every module, the Triton folder under its import name, the assets, the command."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from .project import ROOT, copy_sources, run


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_sources(folder / "source")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    done = run(["-m", "pip", "wheel", *options, "-w", str(folder), str(source)], folder, PACKED_SS_NO_NATIVE="1")
    assert done.returncode == 0, done.stderr
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def files(folder: Path, pattern: str) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob(pattern) if path.is_file()]


def test_holds_every_module(wheel: zipfile.ZipFile) -> None:
    expected = {f"packed_ss/{name}" for name in files(ROOT / "packed_ss", "*.py")}
    expected |= {f"packed_ss/triton_kernels/{name}" for name in files(ROOT / "triton_kernels", "*.py")}
    held = {name for name in wheel.namelist() if name.endswith(".py")}
    assert held == expected


def test_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "packed_ss/py.typed" in wheel.namelist()


def test_holds_every_asset(wheel: zipfile.ZipFile) -> None:
    expected = {f"packed_ss/assets/{name}" for name in files(ROOT / "packed_ss" / "assets", "[!.]*") if not name.endswith(".tmp")}
    held = {name for name in wheel.namelist() if name.startswith("packed_ss/assets/")}
    assert held == expected


def test_names_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    [entry_points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "packed-ss = packed_ss.cli:main" in wheel.read(entry_points).decode()
    assert [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]


def test_triton_folder_is_a_subpackage(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    show = "import packed_ss.triton_kernels as k; print(k.__file__)"
    done = run(["-c", show], tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "packed_ss" / "triton_kernels" / "__init__.py"
