"""Handling of Ctrl+C, which a terminal sends to every process of a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def children_unreached() -> Iterator[None]:
    """Processes started in this context ignore Ctrl+C; their parent must end them.

    Otherwise, a process that is interrupted during its imports prints a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_silently() -> None:
    """Let Ctrl+C silently end this process, which `children_unreached` has started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
