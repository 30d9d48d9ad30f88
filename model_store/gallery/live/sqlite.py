"""SQLite files that are written to while they are served, and what goes wrong with them."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from model_store.errors import (
    ChangeUnconfirmed,
    StorageBusy,
    StorageFailed,
    StorageFull,
    WriteError,
    WriteRefused,
)

BUSY_S = 5.0
"""Seconds that a writer waits for its turn; a transaction takes milliseconds, the copy at the end
of a compaction a second."""

_LOOK_EVERY_S = 0.005


def connect(
    path: Path, mode: str, *, immutable: bool = False, patience_s: float = BUSY_S
) -> sqlite3.Connection:
    """Open a file that any thread may use, in autocommit mode."""
    uri = f"{path.resolve().as_uri()}?mode={mode}" + ("&immutable=1" if immutable else "")
    return sqlite3.connect(
        uri, uri=True, timeout=patience_s, isolation_level=None, check_same_thread=False
    )


def use_write_ahead_log(connection: sqlite3.Connection, patience_s: float = BUSY_S) -> None:
    """Have a file keep a write-ahead log, so that its readers and its writer do not wait.

    Waits for a current writer of a file that has none yet: SQLite itself would not.

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
    """Raise what SQLite says as a `WriteError`."""
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        if doing == "written" and code in _MEANING:
            kind, message = _MEANING[code]
            raise kind(message) from error
        # Who cannot read what there is does not know what has been changed.
        unchanged = "Nothing was changed. " if doing == "written" else ""
        raise StorageFailed(
            f"The changes in {path.name} cannot be {doing} ({error}). {unchanged}The operator "
            "looks at the disk, and restores a backup if the file is damaged."
        ) from error


def commit(connection: sqlite3.Connection) -> None:
    """End a transaction, whose changes are on the disk from then on.

    Raises
    ------
    sqlite3.Error : nothing was changed.
    ChangeUnconfirmed : what the disk has taken and not confirmed is not read, unless a crash comes
        before the next change: then it is found in the journal.
    """
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if _code(error) in _MEANING:
            raise
        raise ChangeUnconfirmed(
            f"The disk has not confirmed the change ({error}), so that it is unknown whether it is "
            "kept. Send the request again, with the same Idempotency-Key if it had one; the "
            "operator looks at the disk."
        ) from error


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def of_the_system(error: OSError) -> WriteError:
    """Convert an error of the file system at the directory of changes to a `WriteError`."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(_FULL)
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return WriteRefused(_READ_ONLY)
    return StorageFailed(
        f"The directory of changes cannot be made ({error.strerror}). Nothing was changed; the "
        "operator looks at the directory of bundles."
    )


_FULL = (
    "There is no room on the disk to keep the change. Nothing was changed and nothing is lost; the "
    "operator makes room, then the request can be sent again."
)
_READ_ONLY = (
    "The directory of this gallery's bundles can only be read, so that no change could be kept. "
    "Its operator gives the service a directory that it may write to."
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
"""The error and message for each primary result code of SQLite that a write can end with."""
