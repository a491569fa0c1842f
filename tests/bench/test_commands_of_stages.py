"""The stages that run other programs, build, tests and sanitizer, on stand-ins of those."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from device import build, machine, sanitizer, tests
from device.record import Results
from device.stages import Bench

from .conftest import BENCH, stopped_at

MakeBench = Callable[..., Bench]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with bench/ in it, and room for stand-ins of the rest."""
    (tmp_path / "bench").symlink_to(BENCH, target_is_directory=True)
    return tmp_path


# ---- build -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 1))
    monkeypatch.setattr(machine, "compiler", lambda: "13.0")


def package(checkout: Path, setup: str, import_line: str = "") -> None:
    """A setup.py, and a package that answers what the build asks, after ``import_line``."""
    (checkout / "setup.py").write_text("import os, sys\n" + setup)
    folder = checkout / "packed_ss"
    (folder / "ops").mkdir(parents=True)
    (folder / "__init__.py").write_text(f"import os\n{import_line}\n")
    (folder / "cuda.py").write_text(
        "def info():\n    return {'kernels': {'a': 'native', 'b': 'triton', 'c': 'torch'}, 'device_loop': '', 'glue': 'torch'}\n"
    )
    (folder / "ops" / "__init__.py").touch()
    (folder / "ops" / "native.py").write_text("def info():\n    return {'available': True}\n")


def test_a_build_is_for_the_card_alone(card: None, checkout: Path, bench: MakeBench, capfd: pytest.CaptureFixture[str]) -> None:
    package(
        checkout,
        "print('built', sys.argv[1:], *(os.environ['PACKED_SS_' + name] for name in "
        "('CUDA', 'CUDA_ARCHITECTURES', 'REQUIRE_NATIVE')))",
    )
    results = Results()
    build.run(bench(script=checkout / "bench" / "device_check.py"), results)
    assert "built ['build_ext', '--inplace'] on 121-real 1" in capfd.readouterr().out
    assert not results.failures and results.values["environment"] == {} and results.values["nvcc"] == "13.0"
    assert results.rows[0]["note"].startswith("sm_121, nvcc 13.0, ")
    assert results.rows[1]["measured"] == "1 native, 1 triton, 1 torch" and results.rows[1]["note"] == "b by triton, c by torch"


def test_a_failed_build_is_told_and_the_package_still_asked(card: None, checkout: Path, bench: MakeBench) -> None:
    package(checkout, "sys.exit('packed_ss: the native kernels were not built: nvcc was not found.')")
    results = Results()
    build.run(bench(script=checkout / "bench" / "device_check.py"), results)
    assert results.failures == [
        "the native module was not built: exit status 1: packed_ss: the native kernels were not built: nvcc was not found."
    ]
    assert results.rows[0]["what"] == "operators"


def test_what_keeps_the_package_from_being_imported_is_switched_off(card: None, checkout: Path, bench: MakeBench) -> None:
    package(checkout, "", "if os.environ.get('PACKED_SS_NATIVE') != '0': raise ImportError('undefined symbol')")
    results = Results()
    build.run(bench(script=checkout / "bench" / "device_check.py"), results)
    assert results.values["environment"] == {"PACKED_SS_NATIVE": "0"}
    assert results.failures == [
        "import packed_ss.cuda: ImportError: undefined symbol",
        "import packed_ss.cuda with PACKED_SS_TRITON=0: ImportError: undefined symbol",
    ]


def test_a_package_that_cannot_be_imported_at_all(card: None, checkout: Path, bench: MakeBench) -> None:
    package(checkout, "", "raise ImportError('no')")
    results = Results()
    build.run(bench(script=checkout / "bench" / "device_check.py"), results)
    assert len(results.failures) == 4 and "environment" not in results.values


# ---- tests -------------------------------------------------------------------------------------------------------------------

CASES = """
    import os, signal, time
    import pytest

    @pytest.mark.parametrize("backend", ["cpu", "cuda-on-host", "cuda", "triton"])
    def test_all(backend):
        pass

    @pytest.mark.parametrize("backend", ["cuda", "triton"])
    def test_wrong(backend):
        assert backend == "cuda", "4 of 9 differ"

    @pytest.mark.parametrize("backend", ["cuda"])
    def test_none(backend):
        pytest.skip("no such kernel")
"""


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests, "ON_CPU", tests.ON_GPU)


def write(checkout: Path, name: str, text: str) -> None:
    path = checkout / "tests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


def run_tests(checkout: Path, bench: MakeBench, **options: float) -> Results:
    results = Results()
    tests.run(bench(script=checkout / "bench" / "device_check.py", **options), results)
    return results


@pytest.mark.usefixtures("suites")
def test_counts_and_failures_of_each_backend(checkout: Path, bench: MakeBench) -> None:
    write(checkout, "kernels/test_a.py", CASES)
    write(checkout, "cuda/test_b.py", "def test_fine(): pass")
    results = run_tests(checkout, bench)
    cuda, ours, triton = results.values["suites"]
    assert cuda["counts"] == {"passed": 2, "skipped": 1} and cuda["skips"] == {"Skipped: no such kernel": 1}
    assert ours["counts"] == {"passed": 1} and triton["counts"] == {"passed": 1, "failed": 1}
    [failure] = triton["failures"]
    assert failure["id"] == "tests/kernels/test_a.py::test_wrong[triton]" and "AssertionError: 4 of 9 differ" in failure["why"]
    [told] = results.failures
    assert told.startswith("triton backend: 1 tests failed, the first tests/kernels/")
    assert results.rows[0]["measured"] == "2 passed, 0 failed, 1 skipped"


@pytest.mark.usefixtures("suites")
def test_a_hang_a_crash_and_a_broken_file(checkout: Path, bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    sign = checkout / "hanging"
    stopped_at(monkeypatch, sign)
    write(
        checkout,
        "kernels/test_a.py",
        f"""
        import os, pathlib, signal, time
        def test_cuda_first(): pass
        def test_cuda_hangs():
            pathlib.Path({str(sign)!r}).write_text("here")
            time.sleep(600)
        def test_triton(): os.kill(os.getpid(), signal.SIGSEGV)
    """,
    )
    write(checkout, "cuda/test_b.py", "import no_such_module")
    results = run_tests(checkout, bench)
    cuda, ours, triton = results.values["suites"]
    assert cuda["status"] is None and cuda["counts"] == {"passed": 1}
    assert cuda["unfinished"] == ["tests/kernels/test_a.py::test_cuda_hangs"]
    assert ours["counts"] == {"failed": 1} and "No module named 'no_such_module'" in ours["failures"][0]["why"]
    assert triton["unfinished"] == ["tests/kernels/test_a.py::test_triton"]
    assert [failure.split(":")[0] for failure in results.failures] == ["cuda backend", "packed_ss.cuda", "triton backend"]
    assert "stopped after" in results.failures[0] and "test_cuda_hangs" in results.failures[0]
    assert "pytest ended by SIGSEGV" in results.failures[2]


def test_processes_that_share_the_work_are_counted_once(
    checkout: Path, bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    write(checkout, "kernels/test_a.py", CASES)
    monkeypatch.setattr(Bench, "on_gpu", property(lambda self: True))
    monkeypatch.setattr(tests, "ON_GPU", [tests.ON_GPU[0]])
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    [suite] = run_tests(checkout, bench).values["suites"]
    assert suite["counts"] == {"passed": 2, "skipped": 1} and not suite["unfinished"]


def test_missing_tools_are_told(monkeypatch: pytest.MonkeyPatch, checkout: Path, bench: MakeBench) -> None:
    monkeypatch.setattr(tests, "lacking", lambda *names: ["hypothesis"])
    results = run_tests(checkout, bench)
    assert results.values == {"missing": ["hypothesis"]} and results.rows[0]["note"] == "hypothesis not installed"
    assert not results.failures


# ---- sanitizer ---------------------------------------------------------------------------------------------------------------


def sanitize(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bench: Bench, script: str) -> Results:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!{sys.executable}\nimport sys\nname = sys.argv[sys.argv.index('--tool') + 1]\n{textwrap.dedent(script)}")
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "cuda_tool", lambda name: str(tool))
    results = Results()
    sanitizer.run(bench, results)
    return results


def test_the_tools_run_the_few_cases_and_their_counts_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bench: MakeBench
) -> None:
    results = sanitize(
        monkeypatch,
        tmp_path,
        bench(),
        """
        assert sys.argv[-4:] == ["--stage", "few_operators", "--device", "cpu"], sys.argv
        if name == "memcheck":
            print("========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 0 errors")
        else:
            print("========= COMPUTE-SANITIZER\\n========= Error: Race reported between Write access at attend_kernel\\n"
                  "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)")
            sys.exit(77)
    """,
    )
    assert [(entry["tool"], entry["found"]) for entry in results.values["runs"]] == [("memcheck", 0), ("racecheck", 2)]
    assert results.failures == ["racecheck: 2 found, the first: Error: Race reported between Write access at attend_kernel"]
    assert [row["measured"] for row in results.rows] == ["0 found", "2 found"]


def test_a_card_that_the_tool_refuses_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bench: MakeBench) -> None:
    results = sanitize(monkeypatch, tmp_path, bench(), 'print("Error: Device not supported"); sys.exit(1)')
    assert not results.failures and {row["measured"] for row in results.rows} == {"not finished"}
    assert results.values["runs"][0]["reports"] == ["Error: Device not supported"]


def test_without_the_tool_it_says_so(monkeypatch: pytest.MonkeyPatch, bench: MakeBench) -> None:
    monkeypatch.setattr(sanitizer, "cuda_tool", lambda name: None)
    results = Results()
    sanitizer.run(bench(), results)
    assert results.rows[0]["measured"] == "not run" and not results.failures


# ---- machine -----------------------------------------------------------------------------------------------------------------


def test_the_state_of_the_card_is_asked_for_and_never_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool, log = tmp_path / "nvidia-smi", tmp_path / "asked"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\ncase "$1" in *event_reasons*) echo "not a valid field"; exit 2;; esac\n'
        'echo "1980 MHz, 1980 MHz, 3201 MHz, 41, 120.5 W, P0"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name, **_: str(tool))
    state = machine.state()
    assert state["clocks.sm"] == "1980 MHz" and state["pstate"] == "P0" and len(state) == 6
    assert all(line.startswith("--query-gpu=") and "--format=csv,noheader" in line for line in log.read_text().splitlines())


def test_the_probe_says_what_there_is() -> None:
    facts = machine.probe()
    assert facts["torch"] == torch.__version__ and bool(facts["reason"]) != torch.cuda.is_available()
    assert machine.lacking("json", "no_such_module") == ["no_such_module"]
