"""The cost limits of decoding one image, enforced by the kernel, in a process that can be lost."""

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
    """The open file in which Linux reports the mapped memory of this process; None elsewhere.

    It stays open: a process that decodes may have given up opening files.
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
    cpu_s : seconds of computing. Not seconds on the clock: on a busy machine those would refuse
        images because of other processes.
    memory_bytes : beyond what an idle decoder has mapped.
    clock_s : seconds on the clock. Only a decoder that is stopped or starved takes so many.
    """

    cpu_s: float = 5.0
    memory_bytes: int = 2**30
    clock_s: float = 60.0


@contextmanager
def spending(budget: DecodingBudget) -> Iterator[None]:
    """Decode within: too much memory is a `MemoryError`, too much computing ends this process.

    The kernel keeps the time: no parser can hold it up, and SIGPROF ends the process.
    """
    signal.setitimer(signal.ITIMER_PROF, budget.cpu_s)
    _limit_memory(budget.memory_bytes)
    try:
        yield
    finally:
        _limit_memory(None)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(spare_bytes: int | None) -> None:
    """Let this process map so much more than it has now; None for as much as it likes.

    Only Linux reports mapped memory; elsewhere the limits on bytes and pixels have to do.
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
