"""Confines the process that calls it, for good: what generated code runs under.

Needs Linux on x86-64 or AArch64 and nothing else: no privileges, no tools.  See `packed_ss.evaluation.sandbox` for what is
contained and what is not.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct

#: System call numbers: (x86-64, AArch64), None where there is none.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # processes and threads, other programs, other namespaces
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "unshare": (272, 97),
    "setns": (308, 268),
    # other processes
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # network, and whatever else reaches outside or evades the limits
    "socket": (41, 198),
    "socketpair": (53, 199),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # changes of files that Landlock does not watch
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
#: Allowed on the process itself only: its id must be the first argument, or for the second kind 0.
_OWN = {"tgkill": (234, 131), "prlimit64": (302, 261)}
#: Machine, its number in seccomp's data, and its column above.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_LANDLOCK_CREATE, _LANDLOCK_RULE, _LANDLOCK_RESTRICT, _MOUNT_SETATTR = 444, 445, 446, 442
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38

_libc = ctypes.CDLL(None, use_errno=True)


class CannotConfine(Exception):
    """What this system lacks, in a sentence."""


def confine(folder: str, *, cpu_seconds: int, memory: int, file_size: int) -> None:
    """Confines this process, of one thread, to ``folder`` and to these limits (bytes), or raises `CannotConfine`."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        here = f"{platform.system()} on {platform.machine()}"
        raise CannotConfine(f"confinement is for Linux on {' or '.join(_MACHINES)}, not {here}")
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    read_only = _own_namespaces(folder, size=4 * file_size)
    os.chdir(folder)
    _limit(cpu_seconds, memory, file_size)
    _drop_capabilities()
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise CannotConfine("the kernel refuses PR_SET_NO_NEW_PRIVS")
    if not _landlock(folder) and not read_only:
        raise CannotConfine("this user has neither Landlock nor mount namespaces, so that files could be written anywhere")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _filter_system_calls()


def _limit(cpu_seconds: int, memory: int, file_size: int) -> None:
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file_size, file_size),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, 1, 1),
    ):
        most = resource.getrlimit(kind)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def _own_namespaces(folder: str, size: int) -> bool:
    """Namespaces of its own, without a network, where the kernel lets it; whether every file system is read-only there.

    ``folder`` is then a file system in memory of ``size`` bytes.
    """
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS):
        return False
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError:
        return False
    private, recursive, read_only = 1 << 18, 1 << 14, struct.pack("4Q", 1, 0, 0, 0)
    options = f"size={size},mode=700".encode()
    return not (
        _libc.mount(b"none", b"/", None, ctypes.c_ulong(private | recursive), None)
        or _call(_MOUNT_SETATTR, -100, b"/", 0x8000, read_only, len(read_only))
        or _libc.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(6), options)
    )  # 6: nosuid, nodev


def _drop_capabilities() -> None:
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    if _libc.capset(header, none):
        raise CannotConfine("the kernel does not let the process give up its capabilities")


def _landlock(folder: str) -> bool:
    """Forbids every change of files outside of ``folder``; False where the kernel has no Landlock."""
    version = _call(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    change = 1 << 1 | sum(1 << bit for bit in range(4, 13))  # write; remove, make
    write = 1 << 1
    if version >= 2:
        change |= 1 << 13  # link or rename across folders
    if version >= 3:
        change, write = change | 1 << 14, write | 1 << 14  # truncate
    # Files; TCP from version 4 on; abstract sockets and signals from version 6 on.
    rules = struct.pack("3Q", change, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = _call(_LANDLOCK_CREATE, rules, len(rules), 0)
    if ruleset < 0:
        return False
    for path, allowed in ((folder, change), ("/dev/null", write)):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if _call(_LANDLOCK_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0):
            return False
        os.close(place)
    done = _call(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return not done


def _filter_system_calls() -> None:
    """Denies the system calls above with EPERM."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, deny, kill = 0x7FFF0000, 0x00050001, 0x80000000
    number, column = _MACHINES[platform.machine()]
    program = [(load, 0, 0, 4), (equal, 1, 0, number), (give, 0, 0, kill), (load, 0, 0, 0)]
    if column == 0:
        program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, deny)]  # the calls of another ABI
    for calls in _DENIED.values():
        if (call := calls[column]) is not None:
            program += [(equal, 0, 1, call), (give, 0, 0, deny)]
    me = os.getpid()
    for name, calls in _OWN.items():
        other = [0] if name == "prlimit64" else [me]
        program += [
            (equal, 0, 5, calls[column]),
            (load, 0, 0, 16),
            (equal, 2, 0, me),
            (equal, 1, 0, other[0]),
            (give, 0, 0, deny),
            (give, 0, 0, allow),
        ]
    program.append((give, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    if _libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0):
        raise CannotConfine("the kernel refuses a seccomp filter")


def _call(number: int, *arguments: object) -> int:
    """A system call; -1 on failure."""
    _libc.syscall.restype = ctypes.c_long
    return _libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
