"""The cost limits of decoding one image, enforced by the kernel in a separate process."""

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
    """Open the file with this process's mapped memory on Linux; None on other systems.

    The file stays open, because a decoding process may not be allowed to open files.
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
    cpu_s : seconds of CPU time. Wall-clock time would depend on other processes of a busy machine.
    memory_bytes : maximum bytes beyond the mapped memory of an idle decoder.
    clock_s : seconds of wall-clock time; only a stopped or starved decoder exceeds it.
    """

    cpu_s: float = 5.0
    memory_bytes: int = 2**30
    clock_s: float = 60.0


@contextmanager
def spending(budget: DecodingBudget) -> Iterator[None]:
    """Limit the block: too much memory raises `MemoryError`, too much CPU time ends the process.

    The kernel measures the time and ends the process with SIGPROF; no parser can prevent this.
    """
    signal.setitimer(signal.ITIMER_PROF, budget.cpu_s)
    _limit_memory(budget.memory_bytes)
    try:
        yield
    finally:
        _limit_memory(None)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(spare_bytes: int | None) -> None:
    """Limit the further memory that this process can map; None removes the limit.

    Only Linux reports mapped memory; elsewhere only the limits on bytes and pixels apply.
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
