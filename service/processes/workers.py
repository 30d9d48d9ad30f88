"""Several worker processes of one service, which uvicorn starts: each is a whole service."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import threading
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus_client that names the directory in which all workers count."""


def is_worker() -> bool:
    """Return whether this process is one of several."""
    return multiprocessing.parent_process() is not None and DIRECTORY in os.environ


def shared_directory() -> Path | None:
    """Return the directory of what the workers count; None where there is one process."""
    return Path(os.environ[DIRECTORY]) if is_worker() else None


def join_workers(shared: Path) -> None:
    """Begin as a worker: end with the parent, and forget the gauges of workers that died.

    The keyboard interrupts all processes at once; the parent then ends its workers in order.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(shared,), daemon=True, name="parent").start()
    for pid in _workers(shared):
        if not _is_alive(pid):
            mark_process_dead(pid, str(shared))  # type: ignore[no-untyped-call]


def is_first_worker(shared: Path) -> bool:
    """Return whether this worker does what one of them must do; if it dies, the next one does."""
    lock = os.open(shared / "first", os.O_CREAT | os.O_RDWR)  # held until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True


def n_workers(shared: Path | None) -> int:
    """Return how many processes answer, or are about to."""
    return 1 if shared is None else sum(map(_is_alive, _workers(shared)))


def _workers(shared: Path) -> list[int]:
    """The processes that have a gauge of live processes, by their ids."""
    return [int(file.stem.rpartition("_")[2]) for file in shared.glob("gauge_livesum_*.db")]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _end_with_parent(shared: Path) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(shared, ignore_errors=True)  # as the parent does where it can
        os.kill(os.getpid(), signal.SIGTERM)
