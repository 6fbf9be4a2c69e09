"""Restricts a process once it has read its files and loaded its decoders.

`seal_process` leaves it only computation, its own memory and its open files: it cannot open, remove
or change files, reach any address, start programs or processes, or signal or inspect others.
Two Linux mechanisms, neither of which needs privileges: a seccomp filter that lists the remaining
calls, and a Landlock domain that allows no file, in case a call gets past the list.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import NamedTuple

SECCOMP, LANDLOCK = "seccomp", "Landlock"

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_SET_MODE_FILTER = 1
_GET_ACTION_AVAIL = 2
_ALL_THREADS = 1
_ALLOW, _KILL, _FAILS = 0x7FFF0000, 0x80000000, 0x00050000  # a failing call carries its errno
_EPERM, _ENOSYS = 1, 38
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # classic BPF
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where they stand in struct seccomp_data
_CLONE_THREAD = 0x10000
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446


class _SyscallTable(NamedTuple):
    """A processor's audit name, and the numbers of its system calls."""

    audit: int
    seccomp: int
    clone: int
    clone3: int
    allowed: tuple[int, ...]


_LEFT = """
read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, pread64 17 67, readv 19 65,
writev 20 66, ppoll 271 73, pselect6 270 72,

mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, mremap 25 216, madvise 28 233,

rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132,
restart_syscall 219 128,

futex 202 98, set_robust_list 273 99, rseq 334 293, membarrier 324 283, set_tid_address 218 96,
sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168,

nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114,
gettimeofday 96 169,

getpid 39 172, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
uname 63 160, sysinfo 99 179, getrusage 98 165, getrlimit 97 163, times 100 153,
getrandom 318 278,

exit 60 93, exit_group 231 94,

poll 7, select 23, time 201
"""
"""The calls that are left, with their numbers on x86-64 and on ARM, which lacks the last three: on
what is open; memory; signals that come; threads; time; questions; the end.
"""


def _numbers_left(column: int) -> tuple[int, ...]:
    """Return the numbers in a column of the table."""
    rows = (entry.split() for entry in _LEFT.split(","))
    return tuple(int(row[column]) for row in rows if len(row) > column)


_MACHINES = {
    "x86_64": _SyscallTable(0xC000003E, 317, 56, 435, _numbers_left(1)),
    "aarch64": _SyscallTable(0xC00000B7, 277, 220, 435, _numbers_left(2)),
}


def _syscall_table() -> _SyscallTable | None:
    """Return this processor's numbers for a 64-bit program on Linux, else None."""
    linux = sys.platform == "linux" and sys.maxsize > 2**32
    return _MACHINES.get(platform.machine()) if linux else None


def _syscall(number: int, *arguments: object) -> int:
    """Run a system call by its number; OSError if it fails."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _call("syscall", ctypes.c_long(number), *words)


def _prctl(option: int, value: int) -> None:
    words = [ctypes.c_ulong(word) for word in (value, 0, 0, 0)]
    _call("prctl", ctypes.c_int(option), *words)


def _call(name: str, *words: object) -> int:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    if (result := function(*words)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def mechanisms() -> list[str]:
    """Return which of the two mechanisms this system has, without applying them."""
    machine = _syscall_table()
    doors = []
    if machine is not None:
        try:
            _syscall(machine.seccomp, _GET_ACTION_AVAIL, 0, ctypes.byref(ctypes.c_uint32(_KILL)))
            doors.append(SECCOMP)
        except OSError:
            pass
        if _landlock_version() > 0:
            doors.append(LANDLOCK)
    return doors


def weakness() -> str | None:
    """Return what important protection of visitors' files this system lacks, in a sentence."""
    if SECCOMP in mechanisms():
        return None
    return (
        "This system has no seccomp: visitors' files are decoded in a process with limits on memory"
        " and time, but with rights of this user."
    )


def keep_private() -> None:
    """Prevent other processes of this user from reading this one's memory and environment, and this
    one from gaining rights through a program that it starts. Linux only; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_DUMPABLE, 0)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def seal_process() -> list[str]:
    """Apply all of `mechanisms`, permanently: seccomp to every thread, Landlock to this one.

    Raises OSError if one fails: no decoder is better than an unprotected one.
    """
    doors = mechanisms()
    keep_private()
    if LANDLOCK in doors:
        _allow_no_file()
    if SECCOMP in doors:
        _filter_syscalls()
    return doors


def _landlock_version() -> int:
    try:
        return _syscall(_LANDLOCK_CREATE, None, 0, 1)
    except OSError:
        return 0


def _allow_no_file() -> None:
    """Enter a Landlock domain with every right that this kernel knows and no rule for any."""
    version = _landlock_version()
    files = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)  # rights, a bit each
    network = 2 if version >= 4 else 0
    scopes = 2 if version >= 6 else 0  # signals, and sockets without a file
    masks = [2**n - 1 for n in (files, network, scopes) if n]
    rules = struct.pack(f"{len(masks)}Q", *masks)
    domain = _syscall(_LANDLOCK_CREATE, ctypes.c_char_p(rules), len(rules), 0)
    _syscall(_LANDLOCK_RESTRICT, domain, 0)
    os.close(domain)


def seccomp_program(machine: _SyscallTable) -> bytes:
    """Return the filter, as consecutive struct sock_filter.

    A call that is not listed fails with EPERM, so that libraries use their fallback; a call with a
    foreign processor's numbers ends the process.
    """
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in machine.allowed:
        steps += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    steps += [
        # Its flags are behind a pointer, which filters cannot follow: glibc uses clone instead.
        (_IF_EQUAL, 0, 1, machine.clone3),
        (_RETURN, 0, 0, _FAILS | _ENOSYS),
        (_IF_EQUAL, 0, 3, machine.clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_ANY_BIT, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _FAILS | _EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _filter_syscalls() -> None:
    machine = _syscall_table()
    assert machine is not None
    steps = seccomp_program(machine)
    memory = ctypes.create_string_buffer(steps, len(steps))
    whole = struct.pack("@HP", len(steps) // 8, ctypes.addressof(memory))
    if _syscall(machine.seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.c_char_p(whole)) != 0:
        raise OSError("The filter could not be applied to a thread.")
