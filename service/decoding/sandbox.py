"""The sandbox of a decoder: it can open no file, connect nowhere and look at no process.

A decoder parses files of strangers. One that a file has taken over may still compute, answer, and
spoil the pictures that it is given; it cannot read keys, galleries or another process, nor reach a
network, for the kernel refuses every system call but those that computing takes (seccomp), and
besides every path and port (Landlock).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import importlib
import resource
import sys
from collections.abc import Callable
from typing import Literal

SandboxMode = Literal["required", "available", "off"]

PARTS = ("seccomp", "landlock")

MAX_FILE_BYTES = 2**28
"""Bytes of the file of pictures that a decoder shares with the service, at most."""

_COMPUTING = (
    *("read", "write", "readv", "writev", "recvfrom", "sendto", "recvmsg", "sendmsg"),
    *("pread64", "pwrite64", "preadv", "pwritev", "lseek", "fstat", "newfstatat", "close"),
    *("mmap", "munmap", "mprotect", "mremap", "brk", "madvise", "futex", "sched_yield"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "setitimer", "getitimer"),
    *("clock_gettime", "clock_nanosleep", "nanosleep", "gettimeofday", "getrandom"),
    *("getpid", "gettid", "getrusage", "sched_getaffinity", "poll", "ppoll"),
    *("exit", "exit_group", "restart_syscall"),
)
"""Nothing of it opens, connects, or names another process; `newfstatat` reveals only that a file
exists, and its size."""

_NOT_THERE = ("clone3", "rseq", "membarrier")
"""System calls that libraries do without where a kernel does not have it."""


def enter(mode: SandboxMode) -> list[str]:
    """Give up what decoding does not take; returns what is in force.

    Raises
    ------
    OSError : not all of it can be, and it is ``required``.
    """
    if mode == "off":
        return []
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    # Each is prepared before either is in force: the one could not be loaded under the other.
    prepared: dict[str, Callable[[], object]] = {}
    missing: dict[str, Exception] = {}
    for part, prepare in {"landlock": _landlock, "seccomp": _seccomp}.items():
        try:
            prepared[part] = prepare()
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            missing[part] = error
    for part, give_up in prepared.items():
        try:
            give_up()
        except OSError as error:
            missing[part] = error
    if missing and mode == "required":
        raise OSError("; ".join(f"{part} is not to be had: {why}" for part, why in missing.items()))
    return [part for part in prepared if part not in missing]


def _seccomp() -> Callable[[], object]:
    """Have the kernel refuse, with EPERM, every system call that computing does not take."""
    if sys.platform != "linux":
        raise OSError("it is Linux's")
    seccomp = importlib.import_module("pyseccomp")  # which loads libseccomp
    calls = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in _NOT_THERE:
        calls.add_rule(seccomp.ERRNO(errno.ENOSYS), name)
    for name in _COMPUTING:
        calls.add_rule(seccomp.ALLOW, name)
    # Its own limits it may set, no other's; threads it may start, no processes.
    calls.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0))
    calls.add_rule(
        seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)
    )
    return calls.load  # type: ignore[no-any-return]


_CLONE_THREAD = 0x10000


class _Ruleset(ctypes.Structure):
    """``struct landlock_ruleset_attr``; an older kernel takes as much of it as it knows."""

    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


_CREATE_RULESET, _RESTRICT_SELF, _NO_NEW_PRIVILEGES = 444, 446, 38
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""The number of kinds of access that each version of Landlock knows; from the fifth on 16."""


def _landlock() -> Callable[[], object]:
    """Have the kernel refuse every path, and from the fourth version on every port.

    The package `landlock` (1.0.0.dev5) does not know of ports and scopes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = _checked(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))
    ruleset = _Ruleset((1 << _FILE_RIGHTS.get(version, 16)) - 1, 0b11 if version >= 4 else 0, 0b11)
    n_fields = 1 if version < 4 else 2 if version < 6 else 3
    size = ctypes.c_size_t(n_fields * ctypes.sizeof(ctypes.c_uint64))
    rules = _checked(libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0))
    _checked(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    return lambda: _checked(libc.syscall(_RESTRICT_SELF, rules, 0))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, errno.errorcode.get(number, "unknown"))
    return result


if (
    __name__ == "__main__"
):  # for `vouch-build doctor`: the parts that are in force here, a line each
    print("\n".join(enter("available")), flush=True)
