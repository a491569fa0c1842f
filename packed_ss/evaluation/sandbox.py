"""Run code that a model wrote, confined, and judge it from another process.

The answer's process never learns the tests and never decides: the judge's process runs the task's own tests, whose calls go
through pipes to the answer's and come back as plain values (numbers, text, collections).  Ending early, catching exceptions,
printing, patching the interpreter, or values whose ``==`` is always true therefore do not make an answer right.

Contained, in both processes:

* files: nothing outside of a temporary folder can be written, made, removed or changed (Landlock; a mount namespace with every
  file system read-only and the folder in memory, where the kernel lets the user have one; either is required);
* processes: none can be made, no other program started, no thread, no signal sent elsewhere (seccomp, required), so killing
  the two processes, as is done at the end, leaves nothing behind; they also die with the process that asked;
* network: no sockets (seccomp), an empty network namespace where there can be one;
* CPU time, wall time, address space, size of a file, number of open files (resource limits); privileges are given up.

Not contained: reading.  The code can read every file that the user can, but has no way to send it anywhere: what comes out is
right or wrong.  The sum of many files' sizes is bounded by time alone where there is no mount namespace.  A fault in the
kernel would not be contained: run code of a model that you do not trust at all in a virtual machine.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO, cast

SCRIPTS = Path(__file__).parent / "confined"


@dataclass(frozen=True)
class Limits:
    """Of each process: CPU seconds, bytes of address space, bytes of a file."""

    cpu_seconds: int = 10
    memory: int = 2**30
    file_size: int = 2**24


@dataclass(frozen=True)
class Checks:
    """What judges an answer.

    ``setup``: sources that run before; ``source``: the tests; ``names``: functions of the answer that they call; ``call``: a
    function of ``source`` that takes the first of ``names`` (empty: running ``source`` is the test).
    """

    source: str
    names: Sequence[str]
    setup: Sequence[str] = ()
    call: str = ""


class CannotRun(RuntimeError):
    """This system cannot confine code, so none was run; the message says why."""


def judge(sources: Sequence[str], tests: Checks, limits: Limits = Limits(), wall_seconds: float = 60.0) -> str:
    """Why the answer is wrong, in a few words; empty where it is right.

    ``sources`` are run in order in one module.  ``wall_seconds`` is for all of it, start of the processes included.  Raises
    `CannotRun` where nothing could be confined.
    """
    task = {"setup": list(tests.setup), "tests": tests.source, "names": list(tests.names), "call": tests.call}
    pipes = [*os.pipe(), *os.pipe()]
    from_judge, to_answer, from_answer, to_judge = pipes
    processes: list[subprocess.Popen[bytes]] = []
    root = tempfile.mkdtemp(prefix="packed-ss-")
    try:
        for script, given, ends in (
            ("answer", {"sources": list(sources)}, (from_judge, to_judge)),
            ("judge", task, (from_answer, to_answer)),
        ):
            folder = os.path.join(root, script)
            os.mkdir(folder)
            processes.append(_start(script, folder, given | {"limits": asdict(limits)}, ends))
        while pipes:
            os.close(pipes.pop())
        verdict = _read(_output(processes[1]), time.monotonic() + wall_seconds)
    finally:
        for end in pipes:
            os.close(end)
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _output(process).close()
        shutil.rmtree(root, ignore_errors=True)
    if verdict is None:
        return "out of time"
    try:
        result = json.loads(verdict)
    except ValueError:
        return "the tests used up their limits"
    if result["refused"]:
        raise CannotRun(result["refused"])
    return result["wrong"]


@cache
def unavailable() -> str:
    """Why code cannot be run here, in a sentence; empty where it can."""
    if sys.platform != "linux":
        return f"confinement is for Linux, not {sys.platform}"
    try:
        return judge(["def one(): return 1"], Checks("assert one() == 1", ["one"]), wall_seconds=120.0)
    except CannotRun as error:
        return str(error)


def _start(script: str, folder: str, given: dict, ends: tuple[int, int]) -> subprocess.Popen[bytes]:
    """A process of its own session, with an environment that tells nothing."""
    environment = {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps(given).encode())
        stdin.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-B", str(SCRIPTS / f"{script}.py"), folder, *map(str, ends)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=ends,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", process.stdout)


def _read(pipe: IO[bytes], deadline: float) -> bytes | None:
    """All that comes until the other side ends; None where that takes too long."""
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left)[0]:
            part = os.read(pipe.fileno(), 4096)
            if not part or len(text) > 2**16:
                return text
            text += part
    return None
