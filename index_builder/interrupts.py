"""Ctrl+C, which a terminal sends to every process of a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def children_unreached() -> Iterator[None]:
    """Start processes that Ctrl+C does not reach; the process that starts them ends them.

    A process that imports its modules when it is interrupted would print a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_silently() -> None:
    """Let Ctrl+C end this process, which was started by `children_unreached`, silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
