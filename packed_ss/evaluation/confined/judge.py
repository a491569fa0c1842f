"""Judges an answer by a task's own tests: ``python -I judge.py FOLDER IN OUT``.

Standard input holds ``{"setup": [...], "tests": ..., "names": [...], "call": ..., "limits": {...}}``; IN and OUT are pipes
of the process that holds the answer, whose functions ``names`` stand for here.  The verdict goes to standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from confine import CannotConfine, confine
from messages import decode, encode, receive, send


class AnswerFailed(Exception):
    """An exception in the answer."""


def remote(name: str, incoming: BinaryIO, outgoing: BinaryIO) -> Callable:
    """A function of the answer: its arguments go there, its value comes back, both as plain copies."""

    def call(*args: Any, **kwargs: Any) -> Any:
        send(outgoing, encode((name, args, kwargs)))
        reply = receive(incoming)
        if "value" not in reply:
            raise AnswerFailed(str(reply["error"])[:80])
        return decode(reply["value"])

    return call


def judge(task: dict, incoming: BinaryIO, outgoing: BinaryIO) -> str:
    """Why the answer is wrong; empty where every test passes."""
    if reason := receive(incoming)["error"]:
        return f"the code ends in {str(reason)[:80]}"
    names = {name: remote(name, incoming, outgoing) for name in task["names"]}
    scope: dict[str, Any] = {"__name__": "tests"}
    for source in task["setup"]:
        exec(compile(source, "<setup>", "exec", dont_inherit=True), scope)
    scope |= names
    exec(compile(task["tests"], "<tests>", "exec", dont_inherit=True), scope)
    if task["call"]:
        scope[task["call"]](names[task["names"][0]])
    return ""


def main() -> None:
    """Confines itself, judges, and writes ``{"refused": ..., "wrong": ...}``."""
    folder, incoming, outgoing = sys.argv[1], os.fdopen(int(sys.argv[2]), "rb"), os.fdopen(int(sys.argv[3]), "wb")
    verdict = os.fdopen(os.dup(1), "w")
    task = json.loads(sys.stdin.buffer.read())
    for descriptor in (0, 1):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    refused = wrong = ""
    try:
        confine(folder, **task["limits"])
        refused = receive(incoming)["refused"]
        wrong = refused or judge(task, incoming, outgoing)
    except CannotConfine as error:
        refused = str(error)
    except EOFError:
        wrong = "the code ended its process"
    except AnswerFailed as error:
        wrong = f"a call ends in {error}"
    except BaseException as error:  # an assertion that does not hold, mostly
        wrong = f"a test ends in {type(error).__name__}"
    json.dump({"refused": refused, "wrong": wrong}, verdict)
    verdict.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
