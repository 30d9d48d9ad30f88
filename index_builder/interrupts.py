"""Handling of Ctrl+C, which a terminal sends to every process of a command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def children_unreached() -> Iterator[None]:
    """Start child processes that ignore Ctrl+C; the parent process must end them.

    A child process that is interrupted during its imports would print a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_silently() -> None:
    """Let Ctrl+C end this child process without a traceback; call it after the imports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
