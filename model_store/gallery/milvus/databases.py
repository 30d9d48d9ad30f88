"""The databases that can store a log of changes: an SQLite file, or PostgreSQL.

All queries use SQL that both databases understand. A turn is a write transaction. When a turn ends,
its writes are on the disk. If a process dies during its turn, none of the turn's writes are stored.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from model_store.errors import SEE_LOG, GalleryUnavailable, StorageBusy, WriteRefused
from model_store.gallery.remote import import_client, limited, session_options, write_error
from model_store.sqlite import BUSY_S, SharedFile

Row = tuple[Any, ...]
Execute = Callable[..., list[Row]]
"""A function that executes a statement, with ``?`` for each value, and returns the rows."""


class Database(Protocol):
    """A database that several processes read and write."""

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query; before the first write, the result is empty.

        Raises
        ------
        StorageFailed, GalleryUnavailable : the database cannot be read.
        """

    @contextmanager
    def turn(self, *, wait: bool = True) -> Iterator[Execute]:
        """Open a write transaction; after an error, none of its writes are kept.

        Raises
        ------
        StorageBusy : another writer has the lock. With ``wait``, the error is raised after a
            timeout.
        WriteError, GalleryUnavailable : the database cannot be written to.
        """

    def mark(self) -> tuple[int, int] | None:
        """Return a token that changes with every turn of any process; None if not supported."""

    def now(self, execute: Execute) -> float:
        """Return the time in seconds, from a clock that all writers share."""

    def close(self) -> None:
        """Close the connections."""


class SqliteDatabase(SharedFile):
    """An SQLite file for the processes of one machine; implements `Database`.

    Parameters
    ----------
    path : path of the file; the first turn creates it.
    schema : SQL statements that create the tables.
    """

    def __init__(self, path: Path, schema: Sequence[str]) -> None:
        super().__init__(path)
        self._schema = schema

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query; see `Database`."""
        with self._borrowed() as connection:
            if connection is None:
                return []
            try:
                return connection.execute(query, values).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):  # the file is being created
                    return []
                raise

    @contextmanager
    def turn(self, *, wait: bool = True) -> Iterator[Execute]:
        """Begin a turn; see `Database`."""
        with self._transaction(wait=wait) as connection:
            yield lambda query, values=(): connection.execute(query, values).fetchall()

    def now(self, execute: Execute) -> float:  # noqa: ARG002
        """Return the time of the machine's clock."""
        return time.time()

    def _make(self, connection: sqlite3.Connection) -> None:
        for statement in self._schema:
            connection.execute(statement)


class PostgresDatabase:
    """A PostgreSQL database for several machines; implements `Database`.

    Parameters
    ----------
    address : ``postgresql://user:password@host/database``; it is never stored.
    name : name of the gallery. Writers of different galleries do not wait for each other.
    schema : SQL statements that create the tables.
    timeout_s : seconds to wait for an answer.
    """

    def __init__(self, address: str, name: str, schema: Sequence[str], timeout_s: float) -> None:
        stored = "The log of changes is stored in PostgreSQL"
        self._psycopg = import_client(stored, "psycopg", "milvus", "psycopg")
        self._address, self._schema, self._timeout_s = address, schema, timeout_s
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "big", signed=True)
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._reader: Any = None
        self._writer: Any = None

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a query; see `Database`."""
        with self._reading, self._errors():
            if self._reader is not None:
                try:
                    return self._read(query, values)
                except self._psycopg.OperationalError:  # for example, the database was restarted
                    self._reader.close()
            self._reader = None
            self._reader = self._connect()
            return self._read(query, values)

    @contextmanager
    def turn(self, *, wait: bool = True) -> Iterator[Execute]:
        """Begin a turn; see `Database`."""
        if not self._writing.acquire(timeout=BUSY_S if wait else 0):
            raise StorageBusy("Another thread is writing to the gallery. Send the request again.")
        try:
            with self._errors():
                connection = self._begin(wait=wait)
                try:
                    yield lambda query, values=(): _execute(connection, query, values)
                    connection.commit()
                except BaseException:
                    self._writer = None  # the state of the connection is unknown
                    connection.close()
                    raise
        finally:
            self._writing.release()

    def mark(self) -> None:
        """Return None, because PostgreSQL has no cheap token for changes."""

    def now(self, execute: Execute) -> float:
        """Return the time of the database's clock."""
        ((now,),) = execute("SELECT extract(epoch FROM clock_timestamp())")
        return float(now)

    def close(self) -> None:
        """Close the connections."""
        with self._writing, self._reading:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    def _read(self, query: str, values: Sequence[Any]) -> list[Row]:
        try:
            return _execute(self._reader, query, values)
        except self._psycopg.errors.UndefinedTable:
            return []

    def _begin(self, *, wait: bool) -> Any:  # noqa: ANN401 - has no types here
        """Return the writing connection; its open transaction holds the lock."""
        lock = "SELECT pg_advisory_xact_lock(?)" if wait else "SELECT pg_try_advisory_xact_lock(?)"
        taken = None
        if self._writer is not None:
            try:
                taken = _execute(self._writer, lock, [self._key])
            except self._psycopg.OperationalError as error:
                self._writer.close()
                self._writer = None
                if isinstance(error, self._psycopg.errors.LockNotAvailable):
                    raise
        if self._writer is None:  # never opened, or closed by a database restart
            self._writer = self._open_writer()
            taken = _execute(self._writer, lock, [self._key])
        if taken == [(False,)]:
            self._writer.rollback()
            raise StorageBusy(_BUSY)
        return self._writer

    def _open_writer(self) -> Any:  # noqa: ANN401
        connection = self._connect(autocommit=False)
        # Without this lock, two processes that create the same table at the same time would fail.
        _execute(connection, "SELECT pg_advisory_xact_lock(0)")
        for statement in self._schema:
            _execute(connection, statement)
        connection.commit()
        return connection

    def _connect(self, *, autocommit: bool = True) -> Any:  # noqa: ANN401
        options = session_options(
            self._timeout_s,
            lock_timeout=int(BUSY_S * 1000),
            # The server must end the turn of a process that is no longer connected.
            tcp_keepalives_idle=5,
            tcp_keepalives_interval=2,
            tcp_keepalives_count=3,
        )
        return limited(self._timeout_s).connect(self._address, autocommit=autocommit, **options)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of the database; the new errors do not contain the database's address."""
        errors = self._psycopg.errors
        try:
            yield
        except errors.ProgramLimitExceeded as error:
            raise WriteRefused(
                "An id is too long for PostgreSQL, which has the log of changes. Nothing was "
                "changed. The index supports about 2,600 bytes for an id, and each character "
                "outside ASCII takes up 6 or 12 bytes. Shorten the id."
            ) from error
        except self._psycopg.Error as error:
            refused = write_error(error, "the database with the log of changes")
            if refused is not None:
                raise refused from error
            raise GalleryUnavailable(
                "The database with the log of the gallery's changes does not answer or has "
                "reported an error. Send the request again later." + SEE_LOG
            ) from error


_BUSY = (
    f"Another process has been writing to the gallery for {BUSY_S:g} s. Nothing was changed; send "
    "the request again."
)


def _execute(connection: Any, query: str, values: Sequence[Any] = ()) -> list[Row]:  # noqa: ANN401
    cursor = connection.execute(query.replace("?", "%s"), values)
    return [] if cursor.description is None else list(cursor.fetchall())
