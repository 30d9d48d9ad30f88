"""The sandbox of a decoder: no access to files, to a network or to other processes.

A decoder parses untrusted files. A decoder that runs an attacker's code can only compute, and
return wrong pixels. The decoder cannot read keys, galleries or other processes, and cannot reach a
network. The kernel allows only the system calls that computing needs (seccomp), and refuses all
paths and ports (Landlock).
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
"""Maximum size of the shared picture file of a decoder, in bytes."""

_COMPUTING = (
    *("read", "write", "readv", "writev", "recvfrom", "sendto", "recvmsg", "sendmsg"),
    *("pread64", "pwrite64", "preadv", "pwritev", "lseek", "fstat", "newfstatat", "close"),
    *("mmap", "munmap", "mprotect", "mremap", "brk", "madvise", "futex", "sched_yield"),
    *("rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "setitimer", "getitimer"),
    *("clock_gettime", "clock_nanosleep", "nanosleep", "gettimeofday", "getrandom"),
    *("getpid", "gettid", "getrusage", "sched_getaffinity", "poll", "ppoll"),
    *("exit", "exit_group", "restart_syscall"),
)
"""These calls cannot open a file, connect to a network or name another process. The call
`newfstatat` reveals only the existence and size of a file."""

_NOT_THERE = ("clone3", "rseq", "membarrier")
"""System calls that older kernels lack. Libraries also work without these calls."""


def enter(mode: SandboxMode) -> list[str]:
    """Give up all rights that decoding does not need; return the parts of the sandbox in force.

    Raises
    ------
    OSError : a part is not available, and the sandbox is ``required``.
    """
    if mode == "off":
        return []
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    # First prepare both parts: neither part can be prepared while the other part is in force.
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
        raise OSError("; ".join(f"{part} is not available: {why}" for part, why in missing.items()))
    return [part for part in prepared if part not in missing]


def _seccomp() -> Callable[[], object]:
    """Return a function that allows only the system calls for computing; others fail with EPERM."""
    if sys.platform != "linux":
        raise OSError("it needs Linux")
    seccomp = importlib.import_module("pyseccomp")  # which loads libseccomp
    calls = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in _NOT_THERE:
        calls.add_rule(seccomp.ERRNO(errno.ENOSYS), name)
    for name in _COMPUTING:
        calls.add_rule(seccomp.ALLOW, name)
    # The decoder may set its own limits and start threads; it cannot start processes.
    calls.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0))
    calls.add_rule(
        seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)
    )
    return calls.load  # type: ignore[no-any-return]


_CLONE_THREAD = 0x10000


class _Ruleset(ctypes.Structure):
    """``struct landlock_ruleset_attr``; an older kernel reads only the fields that it knows."""

    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


_CREATE_RULESET, _RESTRICT_SELF, _NO_NEW_PRIVILEGES = 444, 446, 38
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""For each Landlock version, the number of kinds of file access that the version controls. Version
5 and later versions control 16 kinds."""


def _landlock() -> Callable[[], object]:
    """Return a function that makes the kernel refuse all paths; from Landlock 4 on, also all ports.

    The package `landlock` (1.0.0.dev5) does not support ports and scopes.
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


if __name__ == "__main__":  # `vouch-build doctor` reads these lines
    print("\n".join(enter("available")), flush=True)
