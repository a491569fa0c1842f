"""Commands in processes of their own that end in time, whatever they do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A group and not a session: what outlives the terminal's session would outlive the machine's owner too.
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}

#: Seconds between asking a process to end and ending it.
GRACE = 3.0


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit status (negative: minus the signal; None: it was stopped at its limit), output, seconds."""

    status: int | None
    output: str
    seconds: float

    @property
    def timed_out(self) -> bool:
        return self.status is None

    def reason(self) -> str:
        """Why it is no success, in a few words; empty where it is one."""
        if self.status is None:
            return f"stopped after {self.seconds:.0f} s"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}" if self.status else ""


def run(command: Sequence[str], *, limit: float, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command for at most ``limit`` seconds; it and what it started are gone afterwards.

    ``environment`` is added to this process's own.  Output goes through a file, so that a process which outlives the command
    cannot hold it up.  A command that cannot be started has exit status 127.
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
                **_OWN_GROUP,
            )
        except OSError as error:
            return Ended(127, f"{command[0]}: {error.strerror}", 0.0)
        try:
            _wait(process, limit)
            status = process.poll()
        finally:
            _end(process)
        output.seek(0)
        return Ended(status, output.read().decode("utf-8", "replace"), time.monotonic() - begin)


def _wait(process: subprocess.Popen, limit: float) -> None:
    """Until the process ends, for at most ``limit`` seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(limit, 0.1))


def _end(process: subprocess.Popen) -> None:
    """End the process group: by SIGTERM, so that the process can end what it has started in other groups, then SIGKILL."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
