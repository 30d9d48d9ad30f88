"""Child processes: they ignore Ctrl+C, and do not run the script of the user again.

A terminal sends Ctrl+C to every process of a command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType


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


def end_with_parent() -> None:
    """End this child process when its parent ends; otherwise it would wait for work forever."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_STARTING = threading.Lock()


class _Process(SpawnProcess):
    """A process that does not import the main module of its parent."""

    def start(self) -> None:
        with _without_main():
            super().start()


class SpawnedContext(SpawnContext):
    """Starts processes as ``multiprocessing`` does with ``spawn``, without the main module.

    A child process of ``spawn`` imports the main module of its parent. A user's script without
    ``if __name__ == "__main__"`` would then run again in each child. The functions that run in the
    child must be in a module other than the main module.
    """

    Process = _Process


@contextmanager
def _without_main() -> Iterator[None]:
    """Replace the main module by an empty module, so that a child process has none to import."""
    with _STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main
