"""The limits on the cost of decoding one image; the kernel enforces them in a separate process."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache


@lru_cache(maxsize=1)
def _mapped() -> int | None:
    """Open the Linux file that reports this process's mapped memory; None on other systems.

    The file stays open, because the decoding process may have no permission to open files.
    """
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class DecodingBudget:
    """The limits on the cost of decoding one image.

    Attributes
    ----------
    cpu_s : seconds of CPU time. A limit on wall-clock time would depend on other processes of the
        machine.
    memory_bytes : maximum additional bytes, beyond the mapped memory of an idle decoder.
    clock_s : seconds of wall-clock time; only a decoder that is stopped or gets no CPU exceeds this
        limit.
    """

    cpu_s: float = 5.0
    memory_bytes: int = 2**30
    clock_s: float = 60.0


@contextmanager
def spending(budget: DecodingBudget) -> Iterator[None]:
    """Limit the cost of a block.

    If the block needs too much memory, `MemoryError` is raised. If the block uses too much CPU
    time, the process ends. The kernel measures the CPU time, and ends the process with SIGPROF. A
    parser cannot prevent this.
    """
    signal.setitimer(signal.ITIMER_PROF, budget.cpu_s)
    _limit_memory(budget.memory_bytes)
    try:
        yield
    finally:
        _limit_memory(None)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(spare_bytes: int | None) -> None:
    """Limit the additional memory that this process can map; None removes the limit.

    Only Linux reports mapped memory. On other systems, only the limits on bytes and pixels apply.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if spare_bytes is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    elif (mapped := _mapped()) is not None:
        pages = int(os.pread(mapped, 100, 0).split()[0])
        soft = pages * resource.getpagesize() + spare_bytes
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
