"""`make sanitize`: the kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

1. AddressSanitizer with UndefinedBehaviorSanitizer: a copy of the sources is built with them, CPU operators included, and
   runs tests/kernels and tests/host_cuda, of each test a few cases (sample.py), or all with the argument --all.
2. ThreadSanitizer: races.py runs the CUDA kernels, whose threads are fibers, on small grids.
Each must also catch the faults that are planted for it. What the compiler does not have is skipped, and said so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from . import build

SOURCES = ("packed_ss", "triton_kernels", "csrc", "tests", "setup.py", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE")
COPY = build.ROOT / "build" / "sanitize"
ADDRESS_FLAGS = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"

# Planted races, with what stands on a line that ThreadSanitizer must name.
RACES = {
    "no_barrier": "of_warp[warp]",
    "shuffle": "mailbox[neighbour]",
    "no_release_fence": "args.partial[row * args.splits + i]",
    "no_acquire_fence": "args.partial[row * args.splits + i]",
    "plain_ticket": "args.ticket[row]++",
}
# Planted faults of the CUDA sources, and what the report must say.
FAULTS = {
    "shared_overrun": "heap-buffer-overflow",
    "dynamic_overrun": "heap-buffer-overflow",
    "global_overrun": "heap-buffer-overflow",
    "overflow": "signed integer overflow",
}
# And one of the CPU operators: a tensor that claims more memory than it has.
CPU_FAULT = """
import numpy, torch, packed_ss.ops
from packed_ss.ops import native
assert native.available(), native.reason()
short = numpy.zeros(1, dtype=numpy.int32)
position = torch.from_numpy(numpy.lib.stride_tricks.as_strided(short, (1, 64), (256, 4)))
torch.ops.packed_ss.uniform_noise(torch.tensor([0]), position, 0, 16)
"""


class Failed(Exception):
    """A check went wrong; the message says what."""


class Skipped(Exception):
    """The compiler lacks something; the message says what."""


def address() -> str:
    """Runs the tests under AddressSanitizer and UndefinedBehaviorSanitizer."""
    selection = [] if "--all" in sys.argv else ["-p", "tests.host_cuda.sample"]
    preload = [_runtime_library(name) for name in ("libasan.so", "libstdc++.so.6")]
    _probe("-fsanitize=address,undefined")
    _copy_sources()
    environment = os.environ | {
        "CMAKE_BUILD_TYPE": "Sanitize",  # of which CMakeLists.txt knows no flags
        "CXXFLAGS": ADDRESS_FLAGS,
        "PACKED_SS_CUDA": "off",
        "PACKED_SS_REQUIRE_NATIVE": "1",
    }
    _check(_run(["setup.py", "--quiet", "build_ext", "--inplace"], environment), "the CPU operators do not build")
    _compile_libraries("address")

    environment = os.environ | {
        "PACKED_SS_HOST_CUDA_SANITIZER": "address",
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONMALLOC": "malloc",  # ctypes arrays, too, with AddressSanitizer's marks around them
    }
    tests = ["-m", "pytest", "-q", "--benchmark-disable", "-p", "no:cacheprovider", *selection]
    tests += ["tests/kernels", "tests/host_cuda"]
    _check(_run(tests, environment, show=True), "tests fail")
    for name, report in FAULTS.items():
        _must_catch(name, _run(["-m", "tests.host_cuda.examples", "argmax", name], environment), [report, "argmax_kernel"])
    _must_catch("a short tensor", _run(["-c", CPU_FAULT], environment), ["heap-buffer-overflow", "packed_ss::cpu::uniform_noise"])
    return f"the tests pass, and {len(FAULTS) + 1} planted faults are caught"


def threads() -> str:
    """Runs the race checks under ThreadSanitizer."""
    preload = _runtime_library("libtsan.so")
    prefix = _probe("-fsanitize=thread")
    _copy_sources()
    _compile_libraries("thread")
    environment = os.environ | {
        "LD_PRELOAD": preload,
        "OMP_NUM_THREADS": "1",
        "PACKED_SS_HOST_CUDA_SANITIZER": "thread",
        "PACKED_SS_NATIVE": "0",
    }
    done = _run(["-m", "tests.host_cuda.races"], environment, prefix)
    _check(done, "kernels are not clean")
    source = (build.HERE / "examples.cu").read_text().splitlines()
    for name, text in RACES.items():
        lines = [f"examples.cu:{number}" for number, line in enumerate(source, 1) if text in line]
        done = _run(["-m", "tests.host_cuda.examples", "argmax", name], environment, prefix)
        if not any(line in done.stderr for line in lines):
            raise Failed(f"{name}: the race at {' or '.join(lines)} is not reported.\n{done.stdout}{done.stderr}")
        _must_catch(name, done, ["WARNING: ThreadSanitizer: data race"])
    return f"all kernels are clean, and {len(RACES)} planted races are caught"


def _compile_libraries(sanitizer: str) -> None:
    """In the copy, before a sanitizer's runtime is preloaded."""
    compile_all = f"from tests.host_cuda import build; [build.library(name, {sanitizer!r}) for name in build.libraries()]"
    _check(_run(["-c", compile_all], dict(os.environ)), "the CUDA sources do not build")


def _probe(flag: str) -> list[str]:
    """Compiles and runs a program with `flag`; returns what must stand before a command for it to run."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe.cpp", Path(folder) / "probe"
        source.write_text("int main() { return 0; }\n")
        if build.run([*build.compiler(), flag, str(source), "-o", str(program)]).returncode != 0:
            raise Skipped(f"the compiler has no {flag}.")
        # Some kernels place memory at random where ThreadSanitizer keeps its own.
        for prefix in ([], ["setarch", "-R"]):
            if (not prefix or shutil.which("setarch")) and build.run([*prefix, str(program)]).returncode == 0:
                return prefix
    raise Skipped(f"a program compiled with {flag} does not run here.")


def _runtime_library(name: str) -> str:
    path = build.run([*build.compiler(), f"-print-file-name={name}"]).stdout.strip()
    if not Path(path).is_absolute():
        raise Skipped(f"the compiler has no {name} to preload.")
    return path


def _copy_sources() -> None:
    """The sources as they are now; what was built from them before stays, for what has not changed."""
    COPY.mkdir(parents=True, exist_ok=True)
    for old in COPY.iterdir():
        if old.name != "build":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "_build.json")
    for name in SOURCES:
        source = build.ROOT / name
        if source.is_dir():
            shutil.copytree(source, COPY / name, ignore=ignore)
        elif source.exists():
            shutil.copy2(source, COPY / name)


def _run(
    arguments: list[str], environment: dict[str, str], prefix: Iterable[str] = (), show: bool = False
) -> subprocess.CompletedProcess[str]:
    """Python in the copy, behind the command `prefix`. With `show`, output goes to the terminal."""
    streams = {} if show else {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    clean = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
    return subprocess.run([*prefix, sys.executable, *arguments], cwd=COPY, env=clean, text=True, errors="replace", **streams)


def _check(done: subprocess.CompletedProcess[str], message: str) -> None:
    if done.returncode != 0:
        raise Failed(f"{message} (exit code {done.returncode}).\n{done.stdout or ''}{done.stderr or ''}")


def _must_catch(name: str, done: subprocess.CompletedProcess[str], words: list[str]) -> None:
    if done.returncode == 0 or any(word not in done.stderr for word in words):
        raise Failed(f"{name}: the planted fault is not caught (exit code {done.returncode}).\n{done.stdout}{done.stderr}")


def main() -> int:
    """Runs both; the exit code is 1 if one fails."""
    checks: dict[str, Callable[[], str]] = {
        "AddressSanitizer and UndefinedBehaviorSanitizer": address,
        "ThreadSanitizer": threads,
    }
    failed = False
    for name, check in checks.items():
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            result = check()
        except (Skipped, build.NotBuilt) as reason:
            result = f"skipped: {reason}"
        except Failed as reason:
            failed, result = True, f"FAILED: {reason}"
        print(f"{result} ({time.monotonic() - start:.0f} s)", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
