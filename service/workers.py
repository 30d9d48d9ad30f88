"""Worker processes of one service, and its limit of open files."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

FILES_OF_A_GALLERY = 16
"""An open gallery with changes needs this number of open files, because several threads read its
items and its log."""

FILES_OF_EVERYTHING_ELSE = 256

FEWEST = 8
"""Minimum number of open galleries, even if the limit of open files is lower."""

_MOST = 2**20


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit; the default is often low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def galleries_at_once(wanted: int, connections: int) -> int:
    """Return the number of galleries that can be open at the same time, at most ``wanted``.

    The ``connections`` and all other files also count against the limit.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    left = soft - min(connections, soft * 3 // 4) - FILES_OF_EVERYTHING_ELSE
    return min(wanted, max(FEWEST, left // FILES_OF_A_GALLERY))


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
