"""Opens SQLite files that several processes use, converts SQLite's errors, and keeps deadlines.

A lookup is cancelled if it exceeds the deadline of its request.
"""

from __future__ import annotations

import errno
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

from model_store.errors import (
    ChangeUnconfirmed,
    DeadlineExceeded,
    StorageBusy,
    StorageFailed,
    StorageFull,
    WriteError,
    WriteRefused,
)
from model_store.files import make_for_owner

BUSY_S = 5.0
"""Timeout in seconds for the write lock. A transaction takes milliseconds; the copy at the end of a
compaction takes a second."""

_LOOK_EVERY_S = 0.005


def connect(
    path: Path, mode: str, *, immutable: bool = False, patience_s: float = BUSY_S
) -> sqlite3.Connection:
    """Open a connection in autocommit mode that any thread may use."""
    if mode == "rwc":
        make_for_owner(path)  # SQLite gives its journals the owner of the file
    uri = f"{path.resolve().as_uri()}?mode={mode}" + ("&immutable=1" if immutable else "")
    return sqlite3.connect(
        uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False
    )


def use_write_ahead_log(connection: sqlite3.Connection, patience_s: float = BUSY_S) -> None:
    """Switch a file to a write-ahead log, so that readers and the writer do not block each other.

    If another process is writing, this function waits. SQLite itself would fail immediately.

    Raises
    ------
    sqlite3.Error
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_LOOK_EVERY_S)
        else:
            return


@contextmanager
def errors_in_words(path: Path, doing: Literal["read", "written"] = "written") -> Iterator[None]:
    """Convert an error of SQLite to a `WriteError`."""
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        if doing == "written" and code in _MEANING:
            kind, message = _MEANING[code]
            raise kind(message) from error
        # A change may precede a read. So the error of a read must not say "nothing was changed".
        unchanged = "Nothing was changed. " if doing == "written" else ""
        raise StorageFailed(
            f"The changes in {path.name} cannot be {doing} ({error}). {unchanged}Check the "
            "disk, and restore a backup if the file is damaged."
        ) from error


def commit(connection: sqlite3.Connection) -> None:
    """Commit a transaction. On return, its changes are on the disk.

    Raises
    ------
    sqlite3.Error : nothing was changed.
    ChangeUnconfirmed : the disk did not confirm the write. Searches do not find the change. If the
        machine crashes before the next change, SQLite may restore this change from its journal.
    """
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if _code(error) in _MEANING:
            raise
        raise ChangeUnconfirmed(
            f"The disk has not confirmed the change ({error}), so the change may be lost. Send the "
            "request again, with the same Idempotency-Key if you sent one. The operator must check "
            "the disk."
        ) from error


def says_unmade(error: sqlite3.OperationalError) -> bool:
    """Return whether a reader has met a file that a process was killed while making.

    The process has left a rollback journal, which only a writer can apply. Later, files have a
    write-ahead log instead.
    """
    return error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def of_the_system(error: OSError) -> WriteError:
    """Convert an error of the file system, in the directory of logs, to a `WriteError`."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(_FULL)
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return WriteRefused(_READ_ONLY)
    return StorageFailed(
        f"The directory of changes cannot be made ({error.strerror}). Nothing was changed. "
        "Check the directory of bundles."
    )


_FULL = (
    "There is no room on the disk to store the change. Nothing was changed. Free disk space, then "
    "send the request again."
)
_READ_ONLY = (
    "No change can be stored: the directory of this gallery's bundles, or a file in it, can only "
    "be read. Give the user of the service write permission for the directory and all its files."
)


_BUSY = (
    f"Another process has been writing to the gallery for {BUSY_S:g} s. Nothing was changed; send "
    "the request again."
)
_MEANING: dict[int, tuple[type[WriteError], str]] = {
    sqlite3.SQLITE_FULL: (StorageFull, _FULL),
    sqlite3.SQLITE_BUSY: (StorageBusy, _BUSY),
    sqlite3.SQLITE_LOCKED: (StorageBusy, _BUSY),
    sqlite3.SQLITE_READONLY: (WriteRefused, _READ_ONLY),
    sqlite3.SQLITE_CANTOPEN: (WriteRefused, _READ_ONLY),
    sqlite3.SQLITE_PERM: (WriteRefused, _READ_ONLY),
}
"""Error class and message for each primary result code of SQLite."""


wanted_until: ContextVar[float] = ContextVar("wanted_until", default=math.inf)
"""Deadline of the current request, on the monotonic clock."""

_CHECK_EVERY = 10_000
"""Number of SQLite instructions between two checks of the deadline. This number of instructions
takes at most about a millisecond."""


@contextmanager
def interrupted_when_late(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Interrupt a database query at the deadline.

    Raises
    ------
    DeadlineExceeded : the query did not end before the deadline.
    """
    until = wanted_until.get()
    if until == math.inf:
        yield connection
        return
    connection.set_progress_handler(lambda: time.monotonic() > until, _CHECK_EVERY)
    try:
        yield connection
    except sqlite3.OperationalError as error:
        if time.monotonic() <= until:
            raise
        raise DeadlineExceeded(
            "The lookup of the filter exceeded the time limit of the request. Use a simpler "
            "filter, or request fewer fields."
        ) from error
    finally:
        connection.set_progress_handler(None, 0)
