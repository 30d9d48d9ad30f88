"""Worker processes of one service. uvicorn starts them, and each is a complete service."""

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
"""Environment variable of prometheus_client: the directory where all workers store counters."""


def is_worker() -> bool:
    """Return whether this process is one of several worker processes."""
    return multiprocessing.parent_process() is not None and DIRECTORY in os.environ


def shared_directory() -> Path | None:
    """Return the directory of the workers' Prometheus counters; None for a single process."""
    return Path(os.environ[DIRECTORY]) if is_worker() else None


def join_workers(shared: Path) -> None:
    """Set up a worker process: it ends when its parent ends. Delete the gauges of dead workers.

    Ctrl+C sends SIGINT to all processes. A worker ignores SIGINT, because its parent ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(shared,), daemon=True, name="parent").start()
    for pid in _workers(shared):
        if not _is_alive(pid):
            mark_process_dead(pid, str(shared))  # type: ignore[no-untyped-call]


def is_first_worker(shared: Path) -> bool:
    """Return whether this worker gets the lock for tasks that only one worker may do.

    If this worker dies, the next worker that starts gets the lock.
    """
    lock = os.open(shared / "first", os.O_CREAT | os.O_RDWR)  # held until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return False
    return True


def n_workers(shared: Path | None) -> int:
    """Return the number of workers that serve or are starting."""
    return 1 if shared is None else sum(map(_is_alive, _workers(shared)))


def _workers(shared: Path) -> list[int]:
    """Return the process ids of the workers, from the names of their gauge files."""
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
        shutil.rmtree(shared, ignore_errors=True)  # a killed parent could not remove it
        os.kill(os.getpid(), signal.SIGTERM)
