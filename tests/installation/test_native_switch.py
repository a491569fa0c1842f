"""PACKED_SS_NATIVE: native kernels for all, none or some operators, and the same texts every time."""

from __future__ import annotations

import pytest

from packed_ss.ops import native

from .project import ROOT, run

MIXTURES = ("0", "argmax_rows,tail_attention,uniform_noise", "rope_store,pack_block,verify_rows,draw_rows")
SHOW = "from packed_ss.ops import kernels; print(*sorted(name for name, kind in kernels('cpu').items() if kind == 'native'))"


def need_native() -> None:
    if not native.available():
        pytest.skip(f"no native kernels: {native.reason()}")


@pytest.mark.parametrize("setting", MIXTURES)
def test_the_listed_operators_alone_are_native(setting: str) -> None:
    need_native()
    done = run(["-c", SHOW], ROOT, PACKED_SS_NATIVE=setting)
    assert done.stdout.split() == ([] if setting == "0" else sorted(setting.split(","))), done.stderr


def test_all_are_native_unless_told_otherwise() -> None:
    need_native()
    everything = sorted(native.info()["kernels"]["cpu"])
    for setting in ("", "1", ",".join(everything)):
        assert run(["-c", SHOW], ROOT, PACKED_SS_NATIVE=setting).stdout.split() == everything


def test_a_name_that_is_no_operators_is_refused() -> None:
    done = run(["-c", SHOW], ROOT, PACKED_SS_NATIVE="tail_attention,tale_attention")
    assert done.returncode != 0
    assert "PACKED_SS_NATIVE names 'tale_attention', but it must be 0, 1 or a list" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("setting", MIXTURES)
def test_texts_are_the_reference_s_whichever_kernels_run(setting: str) -> None:
    """tests/decoder/test_lossless.py compares every schedule, mode and batch with the reference in float64."""
    need_native()
    done = run(
        ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/decoder/test_lossless.py"], ROOT, PACKED_SS_NATIVE=setting
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout.splitlines()[-1] and "skipped" not in done.stdout.splitlines()[-1]
