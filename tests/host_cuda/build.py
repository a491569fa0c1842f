"""Compiles the CUDA sources with a C++ compiler (csrc/testing/host_cuda.h), into build/host_cuda, on demand.

Objects are kept under a hash of everything that goes into them, so that only what changed is compiled again.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
HERE = Path(__file__).resolve().parent
CACHE = ROOT / "build" / "host_cuda"

_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Wno-unknown-pragmas"),
    *("-I", str(CSRC / "testing" / "shim"), "-I", str(CSRC / "include")),
)  # fmt: skip
SANITIZERS = {
    "": ("-g1", "-Werror"),
    "address": ("-g1", "-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"),
    "thread": ("-g1", "-fsanitize=thread", "-DPACKED_SS_TSAN"),
}
_RUNTIME = tuple(CSRC / "testing" / f"{name}.cpp" for name in ("fiber", "block", "host_cuda"))

KERNELS = tuple(sorted((CSRC / "cuda").glob("*.cu")))
LIBRARIES = {
    "kernels": (*KERNELS, CSRC / "testing" / "exports.cpp"),
    "examples": (HERE / "examples.cu", HERE / "examples_exports.cpp"),
}


class NotBuilt(RuntimeError):
    """There is no compiler, or it lacks what was asked for; the message is one sentence."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The C++ compiler, as a command: the variable CXX, or c++, g++ or clang++."""
    for command in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        words = shlex.split(command)
        if shutil.which(words[0]):
            return tuple(words)
    raise NotBuilt("no C++ compiler was found.")


def library(name: str, sanitizer: str = "") -> Path:
    """The shared library of LIBRARIES[name], compiled if it is not there yet."""
    folder = CACHE / (sanitizer or "plain")
    folder.mkdir(parents=True, exist_ok=True)
    flags = SANITIZERS[sanitizer]
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        objects = [_compile(source, folder, flags) for source in (*_RUNTIME, *LIBRARIES[name])]
        target = folder / f"{_digest(*(path.name for path in objects))}-{name}.so"
        # The sanitizer's runtime is left to the process that loads the library.
        _make(target, [*objects, *flags, "-shared", "-pthread"])
    return target


def run(command: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Runs a tool, without the sanitizer's runtime that this process may have; a failure is the caller's business."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([*command], text=True, errors="replace", capture_output=True, env=environment)


def _compile(source: Path, folder: Path, flags: tuple[str, ...]) -> Path:
    # ThreadSanitizer must not take the fibers' own book-keeping for memory that threads share.
    if source in _RUNTIME:
        flags = tuple(flag for flag in flags if flag != "-fsanitize=thread")
    command = (*_FLAGS, *flags, "-x", "c++", "-c", str(source))
    target = folder / f"{_digest(source.read_bytes(), _headers(), *command)}-{source.name}.o"
    _make(target, command)
    return target


def _make(target: Path, arguments: Iterable[object]) -> None:
    if target.exists():
        return
    unfinished = target.with_suffix(".tmp")
    command = [*compiler(), *map(str, arguments), "-o", str(unfinished)]
    done = run(command)
    if done.returncode != 0:
        raise AssertionError(f"{shlex.join(command)}\n{done.stderr}")
    unfinished.replace(target)


def _headers() -> bytes:
    """Of all headers, which any source may include."""
    folders = (CSRC / "include", CSRC / "cuda", CSRC / "testing", HERE)
    found = sorted(path for folder in folders for ending in ("h", "cuh") for path in folder.rglob(f"*.{ending}"))
    return _digest(*(path.read_bytes() for path in found)).encode()


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256(_version())
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _version() -> bytes:
    return run([*compiler(), "--version"]).stdout.encode()
