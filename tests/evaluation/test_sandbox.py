"""Generated code is contained, and right only where it computes what the tests ask for."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter, OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from packed_ss.evaluation import sandbox
from packed_ss.evaluation.confined.messages import decode, encode
from packed_ss.evaluation.sandbox import Checks, Limits, judge

pytestmark = pytest.mark.skipif(bool(sandbox.unavailable()), reason=sandbox.unavailable())

SQUARE = Checks("assert square(2) == 4\nassert square(-3) == 9", ["square"])
QUICK = Limits(cpu_seconds=1, memory=2**28)


def test_right_and_wrong_answers():
    assert judge(["def square(x): return x * x"], SQUARE) == ""
    assert judge(["half = 0.5", "def square(x): return x ** (1 / half)"], SQUARE) == ""
    assert judge(["def square(x): return x + x"], SQUARE) == "a test ends in AssertionError"
    assert judge(["def square(x): return 1 / 0"], SQUARE) == "a call ends in ZeroDivisionError"
    assert judge(["def cube(x): return x * x"], SQUARE) == "a call ends in KeyError"
    assert judge(["def square(x) return x * x"], SQUARE) == "the code ends in SyntaxError"
    assert judge([""], SQUARE) == "a call ends in KeyError"
    assert judge(["def square(x): return object()"], SQUARE) == "a test ends in AssertionError"


def test_tests_with_a_set_up_and_a_function_to_call():
    checks = Checks(
        "def check(candidate):\n    for i in range(50):\n        assert abs(helper(candidate(i, step=2))) == i + 2",
        ["f"],
        setup=["def helper(x): return -x\ndef f(): pass"],
        call="check",
    )
    assert judge(["def helper(x): return 0", "def f(i, step): return i + step"], checks) == ""
    assert judge(["def f(i, step): return i + step + (i == 49)"], checks) == "a test ends in AssertionError"


#: Each would be right if it got away with it; the process count is bounded should one not be contained.
HOSTILE = {
    "sys.exit before the tests": ("import sys; sys.exit(0)", "SystemExit"),
    "os._exit before the tests": ("import os; os._exit(0)", "ended its process"),
    "os._exit in a test": ("import os\ndef square(x): os._exit(0)", "ended its process"),
    "sys.exit in a test": ("import sys\ndef square(x): sys.exit(0)", "SystemExit"),
    "an interrupt": ("def square(x): raise KeyboardInterrupt", "KeyboardInterrupt"),
    "a false verdict": (
        'import os\nfor fd in range(1, 30):\n    try: os.write(fd, b\'{"refused": "", "wrong": ""}\')\n'
        "    except OSError: pass\nos._exit(0)",
        "",
    ),
    "false markers": (
        'print(\'passed\'); print(\'OK\'); print(\'{"refused": "", "wrong": ""}\')\ndef square(x): return 0',
        "AssertionError",
    ),
    "an equal of everything": (
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef square(x): return E(0)",
        "AssertionError",
    ),
    "an object equal to everything": (
        "class E:\n    def __eq__(self, other): return True\ndef square(x): return E()",
        "AssertionError",
    ),
    "other assertions": (
        "import builtins, sys\nbuiltins.AssertionError = type('A', (BaseException,), {})\n"
        "sys.excepthook = sys.unraisablehook = lambda *_: None\ndef square(x):\n    try: assert False\n"
        "    except BaseException: return 0",
        "AssertionError",
    ),
    "everything caught": ("def square(x):\n    try: return 1 / 0\n    except Exception: pass", "AssertionError"),
    "an endless loop": ("while True: pass", ""),
    "an endless loop that ignores signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ndef square(x):\n    while True: pass",
        "",
    ),
    "forks": ("import os\ndef square(x):\n    for _ in range(3): os.fork()\n    return x * x", "PermissionError"),
    "another program": ("import subprocess\ndef square(x):\n    subprocess.run(['true']); return x * x", "PermissionError"),
    "a shell": ("import os\ndef square(x):\n    os.system('true') == 0 or 1 / 0; return x * x", "ZeroDivisionError"),
    "a thread": ("import threading\ndef square(x):\n    threading.Thread(target=print).start(); return x * x", "RuntimeError"),
    "much memory": ("def square(x):\n    bytearray(2 ** 33); return x * x", "MemoryError"),
    "much memory bit by bit": ("def square(x):\n    kept = []\n    while True: kept.append(bytearray(10 ** 6))", "MemoryError"),
    "a large file": (
        "def square(x):\n    with open('large', 'wb') as f:\n        for _ in range(64): f.write(bytes(2 ** 20))\n"
        "    return x * x",
        "",
    ),
    "a signal to the parent": ("import os\ndef square(x):\n    os.kill(os.getppid(), 0); return x * x", "PermissionError"),
    "a socket": ("import socket\ndef square(x):\n    socket.socket(); return x * x", "PermissionError"),
    "a value without end": ("def square(x):\n    a = []\n    a.append(a)\n    return a", "RecursionError"),
    "a value too long": ("def square(x): return 'x' * 2 ** 25", "ended its process"),
    "a name too long": ("raise type('E' * 10 ** 6, (Exception,), {})", "ends in EEE"),
    "standard input": ("def square(x): return int(input())", "EOFError"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_wrong(name):
    source, reason = HOSTILE[name]
    told = judge([source], SQUARE, QUICK, wall_seconds=4.0 if "ignores" in name else 60.0)
    assert told and reason in told
    assert len(told) < 200


def test_nothing_outside_is_written(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    source = f"""
        import os, shutil
        def square(x):
            open('inside', 'w').write('x'); os.mkdir('folder'); os.rename('inside', 'folder/inside'); shutil.rmtree('folder')
            done = []
            for harm in (lambda: open({str(tmp_path / "new")!r}, 'w'), lambda: open({str(kept)!r}, 'a'),
                         lambda: os.truncate({str(kept)!r}, 0), lambda: os.remove({str(kept)!r}),
                         lambda: os.mkdir({str(tmp_path / "new")!r}), lambda: os.chmod({str(kept)!r}, 0),
                         lambda: os.utime({str(kept)!r}, (0, 0)), lambda: os.rename({str(kept)!r}, 'x'),
                         lambda: os.link({str(kept)!r}, {str(tmp_path / "new")!r}), lambda: os.symlink('x', '/dev/shm/new'),
                         lambda: os.mkfifo('/var/tmp/new')):
                try: harm()
                except OSError: continue
                done.append(harm)
            return done and 0 or x * x
    """
    assert judge([textwrap.dedent(source)], Checks("assert square(2) == 4", ["square"])) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.read_text() == "kept" and kept.stat().st_mtime > 0 and kept.stat().st_mode & 0o600


def test_a_server_on_this_machine_is_out_of_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        source = (
            f"import socket\ndef square(x):\n    socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))\n"
            "    return x * x"
        )
        assert judge([source], SQUARE) == "a call ends in PermissionError"
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_environment_is_not_handed_on(monkeypatch):
    monkeypatch.setenv("A_SECRET", "1")
    assert judge(["import os\ndef square(x): return x * x if 'A_SECRET' not in os.environ else 0"], SQUARE) == ""


def test_what_takes_too_long_is_killed(monkeypatch):
    started = []
    real = sandbox._start

    def start(*args):
        started.append(real(*args))
        return started[-1]

    monkeypatch.setattr(sandbox, "_start", start)
    began = time.monotonic()
    assert judge(["import time\ntime.sleep(1000)"], SQUARE, wall_seconds=2.0) == "out of time"
    assert time.monotonic() - began < 60
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_both_processes_die_with_the_one_that_asked(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(sandbox.SCRIPTS.parent)!r}); import sandbox\nreal = sandbox._start\n"
        "def start(*a):\n    made = real(*a); print(made.pid, flush=True); return made\nsandbox._start = start\n"
        "sandbox.judge(['import time; time.sleep(1000)'], sandbox.Checks('f()', ['f']), wall_seconds=1000)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as asking:
        pids = [int(asking.stdout.readline()) for _ in range(2)]
        time.sleep(2)  # until they have confined themselves
        asking.kill()
    for _ in range(300):
        if not any(_runs(pid) for pid in pids):
            return
        time.sleep(0.1)
    raise AssertionError(pids)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tests_own_fault_is_not_the_parents():
    assert judge(["def f(): return 1"], Checks("while True: pass", ["f"]), QUICK) == "the tests used up their limits"
    assert judge(["def f(): return 1"], Checks("1 / 0", ["f"])) == "a test ends in ZeroDivisionError"


#: What is tried under `confine` with parts of it off; each line prints what came of it.
PROBE = """
import os, socket, sys
sys.path.insert(0, {scripts!r})
import confine
off = {off!r}
if "namespaces" in off: confine._own_namespaces = lambda *a, **k: False
if "landlock" in off: confine._landlock = lambda folder: False
try:
    confine.confine({folder!r}, cpu_seconds=5, memory=2**30, file_size=2**20)
except confine.CannotConfine as error:
    print(error); sys.exit()
def tried(name, do):
    try: do()
    except OSError: print(name, "refused")
    else: print(name, "done")
other = {outside!r}
tried("inside", lambda: open("file", "w").close())
tried("null", lambda: open("/dev/null", "w").close())
tried("reading", lambda: open(other).close())
tried("writing", lambda: open(other, "a").close())
tried("truncating", lambda: os.truncate(other, 0))
tried("mode", lambda: os.chmod(other, 0o600))
tried("time", lambda: os.utime(other))
tried("new", lambda: open(other + "2", "w").close())
tried("removing", lambda: os.remove(other))
tried("network", lambda: socket.socket())
tried("fork", lambda: os._exit(0) if os.fork() == 0 else None)
tried("program", lambda: os.execv("/bin/true", ["true"]))
tried("signal", lambda: os.kill(os.getppid(), 0))
tried("memory file", lambda: os.memfd_create("x"))
import resource
tried("own limits", lambda: resource.prlimit(0, resource.RLIMIT_NOFILE))
tried("other's limits", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (64, 64)))
"""


@pytest.mark.parametrize("off", ["", "namespaces", "landlock"])
def test_each_layer_is_enough_without_the_other(tmp_path, off):
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("kept")
    script = PROBE.format(scripts=str(sandbox.SCRIPTS), off=off, folder=str(folder), outside=str(outside))
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=60)
    if "neither Landlock" in done.stdout:
        pytest.skip(done.stdout)
    told = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    allowed = {"inside", "null", "reading", "own limits"}
    assert len(told) == 16 and {name for name, how in told.items() if how == "done"} == allowed
    assert outside.read_text() == "kept" and not os.path.exists(f"{outside}2")


def test_without_either_nothing_is_run(tmp_path, monkeypatch):
    script = PROBE.format(scripts=str(sandbox.SCRIPTS), off="namespaces landlock", folder=str(tmp_path), outside="x")
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=60)
    assert "neither Landlock nor mount namespaces" in done.stdout and "inside" not in done.stdout

    def refuse(*args):
        return subprocess.Popen(
            [sys.executable, "-c", f"print({json.dumps({'refused': 'no', 'wrong': ''})!r})"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    monkeypatch.setattr(sandbox, "_start", refuse)
    with pytest.raises(sandbox.CannotRun, match="no"):
        judge([""], SQUARE)


def test_values_pass_as_plain_copies():
    point = namedtuple("Point", "x y")
    values = [
        None,
        True,
        "a\ud800\n",
        0,
        -7,
        10**5000,
        1.5,
        -0.0,
        float("inf"),
        1 + 2j,
        b"\0a",
        bytearray(b"b"),
        range(1, 9, 2),
        [1, (2, {3}), frozenset({4})],
        {1: "a", (2,): [None]},
        Fraction(1, 3),
        Decimal("1.10"),
        Counter("aab"),
        point(1, 2),
        OrderedDict(a=1),
        np.float64(0.1),
        np.int32(7),
        np.bool_(True),
        set(),
        {},
        [],
        (),
    ]
    for value in values:
        copy = decode(json.loads(json.dumps(encode(value))))
        assert copy == value and type(copy).__module__ in ("builtins", "fractions", "decimal")
    assert str(decode(encode(float("nan")))) == "nan"
    copied = decode(encode(x * x for x in range(4)))
    assert iter(copied) is copied and list(copied) == [0, 1, 4, 9]
    for value in (object(), print, re.match("a", "a"), ModuleNotFoundError):
        copy = decode(encode(value))
        assert copy and copy != value and copy != decode(encode(value)) and not callable(copy)
    assert not decode(encode(type("Empty", (), {"__len__": lambda self: 0})()))
    for text in ([], ["object"], ["int"], 5, {"a": 1}, [1]):
        with pytest.raises((ValueError, IndexError)):
            decode(text)
