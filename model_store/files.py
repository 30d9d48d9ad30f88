"""Files that survive a crash, and locks between processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

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

    The kernel lets go of it however the process ends. It belongs to the object, not to a thread.
    """
    return FileLock(path, mode=0o600, thread_local=False)
