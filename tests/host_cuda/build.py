"""Compiles the CUDA sources with a C++ compiler (csrc/testing/host_cuda.h), into build/host_cuda, on demand.

Objects are kept under a hash of everything that goes into them, so that only what changed is compiled again. The variable
PACKED_SS_HOST_CUDA_SOURCES may name another csrc, such as a copy with a change; its builds lie beside it.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.support import cuda_toolkit

ROOT = Path(__file__).resolve().parents[2]
CSRC = Path(os.environ.get("PACKED_SS_HOST_CUDA_SOURCES", ROOT / "csrc")).resolve()
HERE = Path(__file__).resolve().parent
CACHE = CSRC.parent / "build" / "host_cuda"

_INCLUDE_FOLDERS = (CSRC / "testing" / "shim", CSRC / "include")
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

_FLAGS = (
    *("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Wno-unknown-pragmas"),
    *(f"-I{folder}" for folder in _INCLUDE_FOLDERS),
)  # fmt: skip
SANITIZERS = {
    "": ("-g1", "-Werror"),
    "address": ("-g1", "-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"),
    "thread": ("-g1", "-fsanitize=thread", "-DPACKED_SS_TSAN"),
}
_RUNTIME = tuple(CSRC / "testing" / f"{name}.cpp" for name in ("fiber", "block", "collectives", "host_cuda"))

KERNELS = tuple(sorted((CSRC / "cuda").glob("*.cu")))
LIBRARIES = {
    "kernels": (*KERNELS, CSRC / "testing" / "exports.cpp"),
    "examples": (HERE / "examples.cu", HERE / "examples_exports.cpp"),
    "device_loop": (CSRC / "cuda" / "device_loop.cu", CSRC / "cuda" / "device_loop_graph.cpp", HERE / "graph_runtime.cpp"),
}
# Compiled against the toolkit's headers, where the shim has nothing.
_HOST_SOURCES = LIBRARIES["device_loop"][1:]


class NotBuilt(RuntimeError):
    """There is no compiler, or something else that a build needs; the message is one sentence."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The C++ compiler, as a command: the variable CXX, or c++, g++ or clang++."""
    for command in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        words = shlex.split(command)
        if shutil.which(words[0]):
            return tuple(words)
    raise NotBuilt("no C++ compiler was found.")


def libraries() -> list[str]:
    """Those of LIBRARIES whose headers are here."""
    return [name for name, sources in LIBRARIES.items() if cuda_toolkit.home() or not {*sources} & {*_HOST_SOURCES}]


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
    if source in _HOST_SOURCES:
        if (toolkit := cuda_toolkit.home()) is None:
            raise NotBuilt("no CUDA toolkit was found.")
        flags += ("-isystem", str(toolkit / "include"))
    command = (*_FLAGS, *flags, "-x", "c++", "-c", str(source))
    parts = (path.read_bytes() for path in sorted({source, *_included(source)}))
    target = folder / f"{_digest(*parts, *command)}-{source.name}.o"
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


@functools.cache
def _included(source: Path) -> frozenset[Path]:
    """Headers of ours that a file includes, itself or by way of others."""
    found: set[Path] = set()
    unread = [source]
    while unread:
        path = unread.pop()
        for name in _INCLUDE.findall(path.read_text(encoding="utf-8")):
            header = next((f / name for f in (path.parent, *_INCLUDE_FOLDERS) if (f / name).is_file()), None)
            if header is not None and (header := header.resolve()) not in found:
                found.add(header)
                unread.append(header)
    return frozenset(found)


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256(_version())
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _version() -> bytes:
    return run([*compiler(), "--version"]).stdout.encode()
