"""The native module is loaded exactly when it fits, and its absence is explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from packed_ss.ops import native

from .project import ROOT, run


def test_what_was_built_is_loaded() -> None:
    record = ROOT / "packed_ss" / "_build.json"
    if not record.exists():
        pytest.skip("this checkout was not installed")
    assert native.available() is json.loads(record.read_text())["built"], native.reason()


def test_info_describes_the_build() -> None:
    info = native.info()
    assert info["available"] is native.available()
    if not native.available():
        assert info["reason"]
        pytest.skip(f"no native kernels: {native.reason()}")
    assert info["reason"] == ""
    assert info["torch"] == torch.__version__
    assert "uniform_noise" in info["kernels"]["cpu"]
    assert info["compiler"] in native.describe()


def test_the_environment_switches_it_off() -> None:
    show = "from packed_ss.ops import native; print(native.available(), native.reason())"
    done = run(["-c", show], ROOT, PACKED_SS_NATIVE="0")
    assert done.stdout.strip() == "False the environment has PACKED_SS_NATIVE=0.", done.stderr


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"built": False, "reason": "no C++ compiler.", "torch": ""}, "no C++ compiler."),
        ({"built": True, "reason": "", "torch": "1.0"}, "compiled against torch 1.0, but torch"),
        (None, "not installed by its setup.py"),
    ],
)
def test_a_module_that_does_not_fit_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, object] | None, reason: str
) -> None:
    monkeypatch.setattr(native, "_RECORD", tmp_path / "_build.json")
    monkeypatch.setattr(native, "_module", None)
    monkeypatch.setattr(native, "_reason", "")
    monkeypatch.delenv("PACKED_SS_NATIVE", raising=False)
    if record is not None:
        (tmp_path / "_build.json").write_text(json.dumps(record))
    native.load(())
    assert not native.available()
    assert reason in native.reason()
    assert reason in native.describe()
