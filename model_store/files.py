"""Files that survive a crash, locks between processes, and the space that a disk has left."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

_NUMBER_LENGTH = 8
"""Hexadecimal digits at the end of a work folder's name: no folder of a user ends so."""

PARTIAL = ".partial"
"""Suffix of files that are not finished: one that is found later was left by a crash."""


def flush(path: Path) -> None:
    """Wait until the file or directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file beside ``path`` to write, which takes its place at the end.

    After a crash at any moment ``path`` is as before or whole. An error inside leaves it as before,
    and nothing beside it.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    try:
        yield partial
        flush(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    flush(path.parent)


def json_text(content: Mapping[str, Any]) -> str:
    """Return ``content`` as the JSON of a file, one entry a line.

    The same content has the same text, in whatever order it was made: bundles are named by their
    bytes. NaN and infinity, which JSON does not have, are a ValueError.
    """
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text + "\n"


def lock_between_processes(path: Path) -> FileLock:
    """Return a lock on the file ``path`` that one process at a time holds; the file stays.

    The kernel releases it however the process ends. It belongs to the object, not to a thread.
    """
    return FileLock(path, mode=0o600, thread_local=False)


@contextmanager
def work_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new directory ``<prefix>…`` in ``parent``, which is removed at the end.

    Directories of that prefix that killed processes left are removed first: a process holds a lock
    of the one that it works in.

    Raises
    ------
    OSError : it cannot be made.
    """
    for left in abandoned_folders(parent, prefix):
        shutil.rmtree(left, ignore_errors=True)
    folder, descriptor = Path(), None
    while descriptor is None:  # a process that looked for abandoned ones may have removed it
        folder = parent / f"{prefix}{secrets.token_hex(_NUMBER_LENGTH // 2)}"
        folder.mkdir()
        descriptor = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def abandoned_folders(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield the directories of `work_folder` that no process works in, each while it is locked."""
    for path in sorted(parent.glob(glob.escape(prefix) + "[0-9a-f]" * _NUMBER_LENGTH)):
        with suppress(OSError):
            descriptor = _locked(path, must=True)
            if descriptor is not None:
                try:
                    yield path
                finally:
                    os.close(descriptor)


def _locked(folder: Path, *, must: bool = False) -> int | None:
    """Return a descriptor with the lock of a directory; None if another process holds it.

    Parameters
    ----------
    must : whether to raise where the file system has no locks; nothing is removed there.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_mine = folder.exists()
    except OSError as error:
        is_mine = not must and not isinstance(error, BlockingIOError)
    if is_mine:
        return descriptor
    os.close(descriptor)
    return None


class FreeSpace:
    """The space for files whose size an archive or a server decides.

    A tenth of the initial free space stays free, whatever else is written at the same time.

    Parameters
    ----------
    directory : on the disk that is written to.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        free = shutil.disk_usage(directory).free
        self._least_free = free // 10
        self.n_bytes = free - self._least_free
        """Bytes that may be taken in all."""

    def has(self, n_bytes: int) -> bool:
        """Return whether so many bytes more may be written now."""
        return shutil.disk_usage(self._directory).free - n_bytes >= self._least_free
