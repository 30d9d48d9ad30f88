"""Opens SQLite files that several processes use, converts SQLite's errors, and keeps deadlines.

A lookup is cancelled if it exceeds the deadline of its request.
"""

from __future__ import annotations

import errno
import math
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal, NamedTuple

from model_store.errors import (
    ChangeUnconfirmed,
    DeadlineExceeded,
    LogDamaged,
    StorageBusy,
    StorageFailed,
    StorageFull,
    WriteError,
    WriteRefused,
)
from model_store.files import flush, give_to_owner, make_for_owner

BUSY_S = 5.0
"""Timeout in seconds for the write lock. A transaction takes milliseconds; the copy at the end of a
compaction takes a second."""

_LOOK_EVERY_S = 0.005


class Storage(NamedTuple):
    """A kind of storage, in the words of error messages.

    Attributes
    ----------
    written : object that another process writes to.
    places : places that the writer needs permission for.
    busy_s : timeout in seconds for the write lock.
    """

    written: str
    places: str
    busy_s: float


GALLERY = Storage("the gallery", "the directory of this gallery's bundles, or a file in it", BUSY_S)
"""The storage of a gallery's changes."""


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
def errors_in_words(
    path: Path, doing: Literal["read", "written"] = "written", storage: Storage = GALLERY
) -> Iterator[None]:
    """Convert an error of SQLite to a `WriteError`."""
    try:
        yield
    except sqlite3.Error as error:
        told = _told(error, path, storage) if doing == "written" else None
        if told is not None:
            raise told from error
        # A change may precede a read. So the error of a read must not say "nothing was changed".
        unchanged = "Nothing was changed. " if doing == "written" else ""
        raise StorageFailed(
            f"The changes in {path.name} cannot be {doing} ({error}). {unchanged}Check the "
            "disk, and restore a backup if the file is damaged."
        ) from error


def commit(connection: sqlite3.Connection, path: Path) -> None:
    """Commit a transaction on the file ``path``. On return, its changes are on the disk.

    Raises
    ------
    sqlite3.Error : nothing was changed.
    ChangeUnconfirmed : the disk did not confirm the write. Searches do not find the change. If the
        machine crashes before the next change, SQLite may restore this change from its journal.
    """
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if _told(error, path, GALLERY) is not None:
            raise
        raise ChangeUnconfirmed(
            f"The disk has not confirmed the change ({error}), so the change may be lost. Send the "
            "request again, with the same Idempotency-Key if you sent one. The operator must check "
            "the disk."
        ) from error


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _told(error: sqlite3.Error, path: Path, storage: Storage) -> WriteError | None:
    """Return the error of a write whose cause is known; None for other causes."""
    code = _code(error)
    is_of_a_write = getattr(error, "sqlite_errorcode", None) in _OF_A_WRITE
    if code == sqlite3.SQLITE_FULL or (is_of_a_write and not _has_room(path.parent)):
        return StorageFull(_FULL)
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StorageBusy(
            f"Another process has been writing to {storage.written} for {storage.busy_s:g} s. "
            "Nothing was changed; send the request again."
        )
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return WriteRefused(_read_only(storage))
    return None


_OF_A_WRITE = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
"""SQLite's codes of a failed write. SQLite also reports them if a disk quota is used up."""

_ROOM_BYTES = 2**20


def _has_room(directory: Path) -> bool:
    """Return False if the disk of ``directory`` is full, or the quota of this user is used up."""
    try:
        with TemporaryFile(dir=directory, buffering=0) as file:
            file.write(bytes(_ROOM_BYTES))
            os.fsync(file.fileno())  # some file systems allocate space only then
    except OSError as error:
        return error.errno not in _NO_ROOM
    return True


def of_the_system(error: OSError, storage: Storage = GALLERY) -> WriteError:
    """Convert an error of the file system, in the directory of a storage, to a `WriteError`."""
    if error.errno in _NO_ROOM:
        return StorageFull(_FULL)
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return WriteRefused(_read_only(storage))
    return StorageFailed(
        f"The directory of changes cannot be made ({error.strerror}). Nothing was changed. "
        "Check the directory of bundles."
    )


def file_is_gone(said: str) -> StorageFailed:
    """Return the error of a file that a service has opened and no longer finds.

    Parameters
    ----------
    said : a sentence without its full stop, which names the file.
    """
    return StorageFailed(
        f"{said}: the directory was moved or removed while the service ran. The operator must "
        "restore the directory, or restart the service."
    )


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}

_FULL = (
    "There is no room on the disk to store the change. Nothing was changed. Free disk space, then "
    "send the request again."
)


def _read_only(storage: Storage) -> str:
    return (
        f"No change can be stored: {storage.places}, can only be read. Give the user of the "
        "service write permission for the directory and all its files."
    )


READER_CACHE_KIB = 128
"""Size of a reader's page cache in KiB; SQLite's default is 2 MB. There may be a thousand
galleries, each with a reader. The operating system caches the file too."""

_MADE = "SELECT 1 FROM sqlite_master LIMIT 1"


class SharedFile(ABC):
    """A file that several threads and processes read and write; the first write creates it.

    Only one process writes at a time. When a transaction ends, its writes are on the disk.

    Parameters
    ----------
    path : path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._watching = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._watcher: sqlite3.Connection | None = None
        self._n_watchers = 0
        self._opened: tuple[int, int] | None = None
        self._damage: LogDamaged | None = None
        """Error that every later call raises."""

    @abstractmethod
    def _make(self, connection: sqlite3.Connection) -> None:
        """Create the tables that do not exist; the write-ahead log is already in use.

        Raises
        ------
        OSError, sqlite3.Error
        """

    def _verify(self, connection: sqlite3.Connection) -> None:  # noqa: B027 - optional
        """Check that a file with tables is the wanted file."""

    def mark(self) -> tuple[int, int] | None:
        """Return a token that changes when any process commits; (0, 0) before the first change.

        The service compares the token before every request. The token is in shared memory, so a
        read takes microseconds. None if the token cannot be read, for example on a read-only disk.
        """
        if self._damage is not None:
            raise self._damage
        with self._watching:
            if self._watcher is None and not self.path.exists():
                return 0, 0
            try:
                if self._watcher is None:
                    self._watcher = connect(self.path, "ro", patience_s=0)
                    self._n_watchers += 1  # each connection has its own counter
                (version,) = self._watcher.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error:
                return None
            return self._n_watchers, int(version)

    @contextmanager
    def _borrowed(self) -> Iterator[sqlite3.Connection | None]:
        """Borrow the reading connection; None before the first write.

        Raises
        ------
        StorageFailed : the file cannot be read.
        """
        with self._reading, errors_in_words(self.path, "read"):
            if self._reader is None and self.path.exists():
                self._reader = self._open_reader()
            yield self._reader

    @contextmanager
    def _transaction(self, *, wait: bool = True) -> Iterator[sqlite3.Connection]:
        """Open a write transaction; after an error, none of its writes are kept.

        Raises
        ------
        StorageBusy : another writer has the lock. With ``wait``, the error is raised after
            `BUSY_S`, and only if the writer is in another process.
        WriteError : the writes could not be stored.
        ChangeUnconfirmed : see `commit`.
        """
        if not self._writing.acquire(blocking=wait):
            raise StorageBusy("Another thread is writing to the gallery.")
        try:
            with errors_in_words(self.path):
                if self._writer is None:
                    self._writer = self._open_writer()
                connection = self._writer
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000) if wait else 0}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    self._require_in_place()
                    commit(connection, self.path)
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        finally:
            self._writing.release()

    def close(self) -> None:
        """Close the file."""
        with self._writing, self._reading, self._watching:
            self._close_readers()
            if self._writer is not None:
                self._writer.close()
            self._writer = self._opened = None

    def _require_in_place(self) -> None:
        """Raise `StorageFailed` if the open file is no longer the file at `path`.

        An open file keeps its name only until its directory is moved. A write would then be stored
        in the moved directory, and its number in the directory that has taken its place.
        """
        if self._opened is not None and _file_at(self.path) != self._opened:
            raise StorageFailed(
                "The directory of this gallery's changes was moved or replaced while the service "
                "ran. Nothing was changed. The operator must restart the service."
            )

    def _close_readers(self) -> None:
        for connection in (self._reader, self._watcher):
            if connection is not None:
                connection.close()
        self._reader = self._watcher = None

    def _open_reader(self) -> sqlite3.Connection | None:
        """Open a reading connection; None while another process creates the file."""
        connection = connect(self.path, "ro")
        try:
            made = connection.execute(_MADE).fetchone()
        except sqlite3.OperationalError:
            connection.close()
            # On a read-only disk, a file without a journal was closed properly and can be opened. A
            # process that was killed while it made the file has left no tables.
            journal = self.path.with_name(f"{self.path.name}-wal")
            if journal.exists() and journal.stat().st_size:
                raise
            connection = connect(self.path, "ro", immutable=True)
            made = connection.execute(_MADE).fetchone()
        if not made:
            connection.close()
            return None
        self._verify(connection)
        self._opened = self._opened or _file_at(self.path)
        connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
        return connection

    def _open_writer(self) -> sqlite3.Connection:
        folder = self.path.parent
        try:
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                give_to_owner(folder)
        except OSError as error:
            raise of_the_system(error) from error
        # An immutable connection of `_open_reader` would not find later changes.
        with self._reading, self._watching:
            self._close_readers()
        connection = connect(self.path, "rwc")
        try:
            use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous=FULL")
            self._make(connection)
            self._opened = self._opened or _file_at(self.path)
        except OSError as error:
            connection.close()
            raise of_the_system(error) from error
        except sqlite3.Error:
            connection.close()  # a later connection must not see an old state of the file
            raise
        for path in (folder, folder.parent):  # makes the new file survive a power cut
            flush(path)
        return connection


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at ``path``; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
