"""math-verify in a process of its own: answers that it would compute with for ever end that process instead of this one."""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from .sandbox import SCRIPTS

#: Seconds for one comparison, and for the process to start.
SECONDS, START_SECONDS = 5.0, 120.0


class _Worker:
    """The process, started when first needed, and again after it was ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def equal(self, gold: str, answer: str, seconds: float) -> bool:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            try:
                self._to.write(json.dumps({"gold": gold, "answer": answer}).encode() + b"\n")
                line = self._line(seconds)
            except BrokenPipeError:
                line = b""
            if line not in (b"true\n", b"false\n"):
                self.stop()
            return line == b"true\n"

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._to.close()
            os.close(self._from)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._process = None

    def _start(self) -> None:
        self.stop()
        self._folder = tempfile.mkdtemp(prefix="packed-ss-")
        given, to = os.pipe()
        self._from, taken = os.pipe()
        self._to = open(to, "wb", buffering=0)  # noqa: SIM115 - closed by `stop`
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(SCRIPTS / "mathematics.py"), self._folder],
            stdin=given,
            stdout=taken,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"},
        )
        os.close(given)
        os.close(taken)
        if self._line(START_SECONDS) != b"ready\n":
            self.stop()
            raise RuntimeError("math-verify does not start in a process of its own")

    def _line(self, seconds: float) -> bytes:
        """The next line; an incomplete one where the process ends or takes too long."""
        line, deadline = b"", time.monotonic() + seconds
        while not line.endswith(b"\n") and (left := deadline - time.monotonic()) > 0:
            if select.select([self._from], [], [], left)[0]:
                part = os.read(self._from, 4096)
                if not part:
                    break
                line += part
        return line


_worker = _Worker()


def equal(gold: str, answer: str, seconds: float = SECONDS) -> bool:
    """Whether math-verify takes two final answers in LaTeX for the same; False where that takes longer than ``seconds``."""
    return _worker.equal(gold, answer, seconds)
