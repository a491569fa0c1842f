"""Run an answer's code and calls its functions as the judge asks: ``python -I answer.py FOLDER IN OUT``.

Standard input holds ``{"sources": [...], "limits": {...}}``; IN and OUT are pipes of the judge.
"""

from __future__ import annotations

import json
import os
import sys
import types

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from confine import CannotConfine, confine
from messages import decode, encode, receive, send


def main() -> None:
    """Confines itself first, then says so, runs the code, says how that went, and answers calls until there are none."""
    folder, incoming, outgoing = sys.argv[1], os.fdopen(int(sys.argv[2]), "rb"), os.fdopen(int(sys.argv[3]), "wb")
    task = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        confine(folder, **task["limits"])
    except CannotConfine as error:
        send(outgoing, {"refused": str(error)})
        return
    send(outgoing, {"refused": ""})
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    sys.path.pop(0)
    try:
        for source in task["sources"]:
            exec(compile(source, "<answer>", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        send(outgoing, {"error": type(error).__name__})
        return
    send(outgoing, {"error": ""})
    while True:
        name, args, kwargs = decode(receive(incoming))
        try:
            reply = {"value": encode(module.__dict__[name](*args, **kwargs))}
        except BaseException as error:
            reply = {"error": type(error).__name__}
        send(outgoing, reply)


if __name__ == "__main__":
    main()
