"""The log of changes since a gallery's bundle was built, in one SQLite file.

The log is append-only. For a gallery in Milvus, entries are deleted once Milvus has applied them
(`Transaction.settle`). Every change has a sequence number: a reader goes on from the last number
that it has read, and the gallery at any earlier number can be reconstructed. A transaction is on
the disk, whole, before it is acknowledged (write-ahead log, ``synchronous=FULL``); the writers of
all processes take turns.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from model_store.errors import BundleMismatch, KeyReused
from model_store.files import flush
from model_store.gallery.filters.grammar import Filter
from model_store.gallery.filters.sql import metadata_json, to_sql
from model_store.gallery.live.sqlite import connect, errors_in_words, of_the_system
from model_store.gallery.protocol import Item, NewItem, Thumbnail
from model_store.gallery.writable import Change, Delete, Retry, Upsert, Vector

T = TypeVar("T")

SCHEMA_VERSION = "1"

OUTCOME_LIFE_S = 24 * 3600.0
"""Seconds for which the outcome of a request is remembered by its Idempotency-Key."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # Without a mean, the item is deleted.
    """CREATE TABLE IF NOT EXISTS changes (
  sequence INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  label TEXT,
  metadata TEXT,
  media_type TEXT,
  thumbnail BLOB,
  mean BLOB,
  variance BLOB
)""",
    """CREATE TABLE IF NOT EXISTS outcomes (
  key TEXT PRIMARY KEY,
  request TEXT NOT NULL,
  outcome TEXT NOT NULL,
  at REAL NOT NULL
) WITHOUT ROWID""",
)

_FLOATS = np.dtype("<f4")


class ChangesFile:
    """The log of one bundle's gallery; safe to share by threads and by processes.

    The file is made by the first write; until then there are no changes.

    Parameters
    ----------
    path : ``<root>/changes/<bundle id>.sqlite``.
    bundle_id, encoder_fingerprint : what the changes belong to.

    Raises
    ------
    BundleMismatch : the file belongs to something else.
    StorageFailed : it is there and cannot be read.
    """

    def __init__(self, path: Path, bundle_id: str, encoder_fingerprint: str) -> None:
        self.path = path
        self._identity = {
            "schema": SCHEMA_VERSION,
            "bundle": bundle_id,
            "encoder": encoder_fingerprint,
        }
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._watching = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._watcher: sqlite3.Connection | None = None
        self._n_watchers = 0

    def mark(self) -> tuple[int, int] | None:
        """Return a token that changes when any process commits; (0, 0) before the first change.

        It is read before every request, in microseconds, from memory that the processes share. None
        where it cannot be read, for example on a disk that is mounted read-only.
        """
        with self._watching:
            if self._watcher is None and not self.path.exists():
                return 0, 0
            try:
                if self._watcher is None:
                    self._watcher = connect(self.path, "ro", patience_s=0)
                    self._n_watchers += 1  # each counts for itself
                ((version,),) = _fetched(self._watcher, "PRAGMA data_version")
            except sqlite3.Error:
                return None
            return self._n_watchers, int(version)

    def after(self, sequence: int) -> list[Change]:
        """The changes after ``sequence``, in order."""
        return self._read(partial(_changes_after, sequence=sequence), [])

    def last(self) -> int:
        """The latest sequence number; 0 before the first change."""
        return self._read(_last_sequence, 0)

    def start(self) -> int:
        """The sequence number at which the log begins: what came before is in the bundle."""
        return self._read(_first_sequence, 0)

    def items(self, sequences: Sequence[int]) -> list[Item]:
        """The items that were written at ``sequences``, in that order."""
        if not sequences:
            return []
        marks = ",".join("?" * len(sequences))
        query = f"SELECT sequence, id, label, metadata FROM changes WHERE sequence IN ({marks})"  # noqa: S608
        found = {
            sequence: Item(item_id, label, json.loads(metadata))
            for sequence, item_id, label, metadata in self._rows(query, list(sequences))
        }
        return [found[sequence] for sequence in sequences]

    def thumbnail(self, sequence: int) -> Thumbnail:
        """The picture that was written at ``sequence``."""
        query = "SELECT media_type, thumbnail FROM changes WHERE sequence = ?"
        ((media_type, data),) = self._rows(query, [sequence])
        return Thumbnail(data, media_type)

    def matching(self, part: Filter, until: int) -> list[int]:
        """Return the sequence numbers, up to ``until``, of writes whose items pass a filter."""
        condition, values = to_sql(part)
        query = (
            "SELECT sequence FROM changes WHERE mean IS NOT NULL AND sequence <= ? "  # noqa: S608
            f"AND {condition}"
        )
        return [sequence for (sequence,) in self._rows(query, [until, *values])]

    def upserts(self, sequences: Sequence[int]) -> Iterator[Upsert]:
        """Read the whole writes at ``sequences``, one after another."""
        query = (
            "SELECT id, label, metadata, media_type, thumbnail, mean, variance FROM changes "
            "WHERE sequence = ?"
        )
        for sequence in sequences:
            (row,) = self._rows(query, [sequence])
            item_id, label, metadata, media_type, data, mean, variance = row
            item = NewItem(item_id, label, json.loads(metadata), Thumbnail(data, media_type))
            yield Upsert(item, _vector(mean, variance))

    def outcome(self, retry: Retry) -> str | None:
        """Return the outcome of a request that was answered, else None.

        Raises
        ------
        KeyReused : the key was used for another request.
        """
        return self._read(partial(_outcome, retry=retry), None)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction: its writes are kept whole, or not at all after an error.

        Raises
        ------
        WriteError : the writes could not be stored, or the log cannot be written to.
        """
        with self._writing, errors_in_words(self.path):
            if self._writer is None:
                self._writer = self._open_writer()
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._verify(connection)
                yield Transaction(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def copy_to(self, target: Path) -> None:
        """A copy of the log as it is at one moment, whatever is written meanwhile.

        Nothing where there is no log.
        """
        with errors_in_words(target), closing(connect(target, "rwc")) as copy:
            self._read(partial(_back_up, target=copy), None)

    def close(self) -> None:
        """Let go of the file."""
        with self._writing, self._reading, self._watching:
            self._close_readers()
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def _close_readers(self) -> None:
        for connection in (self._reader, self._watcher):
            if connection is not None:
                connection.close()
        self._reader = self._watcher = None

    def _read(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Do ``work`` with the connection that reads; ``otherwise`` where there is no log yet."""
        with self._reading, errors_in_words(self.path, "read"):
            if self._reader is None and self.path.exists():
                self._reader = self._open_reader()
            return otherwise if self._reader is None else work(self._reader)

    def _rows(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._read(partial(_fetched, query=query, values=values), [])

    def _open_reader(self) -> sqlite3.Connection | None:
        """A connection that reads; None while another process is just making the log."""
        connection = connect(self.path, "ro")
        try:
            made = _fetched(connection, "SELECT 1 FROM sqlite_master LIMIT 1")
        except sqlite3.OperationalError:
            connection.close()
            # On a disk that is mounted for reading, a log whose writer ended well is in one file.
            journal = self.path.with_name(f"{self.path.name}-wal")
            if journal.exists() and journal.stat().st_size:
                raise
            connection = connect(self.path, "ro", immutable=True)
            made = [(1,)]
        if not made:
            connection.close()
            return None
        self._verify(connection)
        return connection

    def _open_writer(self) -> sqlite3.Connection:
        folder = self.path.parent
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise of_the_system(error) from error
        # What was opened while nobody could write sees no change, and lets nobody write here.
        with self._reading, self._watching:
            self._close_readers()
        connection = connect(self.path, "rwc")
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            make(connection, self._identity, 0)
        except sqlite3.Error:
            connection.close()  # or the next would find the file as it was when this one was opened
            raise
        for path in (folder, folder.parent):  # the file itself is to outlast a power cut
            flush(path)
        return connection

    def _verify(self, connection: sqlite3.Connection) -> None:
        found = dict(_fetched(connection, "SELECT key, value FROM meta"))
        for key, wanted in self._identity.items():
            if found.get(key) != wanted:
                raise BundleMismatch(
                    f"The changes of bundle {self._identity['bundle']} are of another {key}: "
                    f"{str(found.get(key))[:16]}, wanted {wanted[:16]}. Restore them from a backup."
                )


class Transaction:
    """A turn at writing; see `ChangesFile.transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def after(self, sequence: int) -> list[Change]:
        """The changes after ``sequence``, in order."""
        return _changes_after(self._connection, sequence)

    def start(self) -> int:
        """The sequence number at which the log begins."""
        return _first_sequence(self._connection)

    def last(self) -> int:
        """The latest sequence number; 0 before the first change."""
        return _last_sequence(self._connection)

    def settle(self, sequence: int) -> None:
        """Take out the changes up to a sequence number, which are kept elsewhere now."""
        self._connection.execute("DELETE FROM changes WHERE sequence <= ?", (sequence,))
        self._connection.execute("UPDATE meta SET value = ? WHERE key = 'start'", (str(sequence),))

    def outcome(self, retry: Retry) -> str | None:
        """Return the outcome of a request that was answered, else None; or raise `KeyReused`."""
        return _outcome(self._connection, retry)

    def add(self, writes: Sequence[Upsert | Delete]) -> list[Change]:
        """Append to the log."""
        first = _last_sequence(self._connection) + 1
        return [self._add(first + i, write) for i, write in enumerate(writes)]

    def _add(self, sequence: int, write: Upsert | Delete) -> Change:
        if isinstance(write, Delete):
            self._connection.execute(
                "INSERT INTO changes (sequence, id) VALUES (?, ?)", (sequence, write.id)
            )
            return Change(sequence, write.id, None, None)
        item, vector = write.item, write.vector
        self._connection.execute(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                sequence,
                item.id,
                item.label,
                metadata_json(item.metadata),
                item.thumbnail.media_type,
                item.thumbnail.data,
                vector.mean.astype(_FLOATS).tobytes(),
                vector.variance.astype(_FLOATS).tobytes(),
            ),
        )
        return Change(sequence, item.id, item.label, vector)

    def remember(self, retry: Retry, outcome: str) -> None:
        """Keep what came of a request, and forget what came of old ones."""
        now = time.time()
        self._connection.execute("DELETE FROM outcomes WHERE at < ?", (now - OUTCOME_LIFE_S,))
        self._connection.execute(
            "INSERT INTO outcomes VALUES (?, ?, ?, ?)", (retry.key, retry.request, outcome, now)
        )

    def hand_over(self, path: Path, bundle_id: str, after: int) -> None:
        """Write a log for another bundle, of what came after a sequence number, to a new file."""
        with closing(connect(path, "rwc")) as target:
            target.execute("PRAGMA journal_mode=WAL")
            meta = dict(_fetched(self._connection, "SELECT key, value FROM meta"))
            identity = {key: meta[key] for key in ("schema", "encoder")}
            make(target, {**identity, "bundle": bundle_id}, after)
            target.execute("BEGIN")
            for query in ("changes WHERE sequence > ?", "outcomes WHERE at > ?"):
                bound = after if query.startswith("changes") else time.time() - OUTCOME_LIFE_S
                rows = _fetched(self._connection, f"SELECT * FROM {query}", [bound])  # noqa: S608
                if rows:
                    marks = ",".join("?" * len(rows[0]))
                    into = f"INSERT INTO {query.split()[0]} VALUES ({marks})"  # noqa: S608
                    target.executemany(into, rows)
            target.execute("COMMIT")
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def make(connection: sqlite3.Connection, identity: dict[str, str], start: int) -> None:
    """Make an empty log that begins after ``start``, where there is none."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    rows = [*identity.items(), ("start", str(start))]
    connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", rows)
    connection.execute("COMMIT")


def _fetched(
    connection: sqlite3.Connection, query: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def _first_sequence(connection: sqlite3.Connection) -> int:
    ((start,),) = _fetched(connection, "SELECT value FROM meta WHERE key = 'start'")
    return int(start)


def _last_sequence(connection: sqlite3.Connection) -> int:
    ((last,),) = _fetched(connection, "SELECT max(sequence) FROM changes")
    return _first_sequence(connection) if last is None else int(last)


def _changes_after(connection: sqlite3.Connection, sequence: int) -> list[Change]:
    query = (
        "SELECT sequence, id, label, mean, variance FROM changes WHERE sequence > ? "
        "ORDER BY sequence"
    )
    return [
        Change(number, item_id, label, None if mean is None else _vector(mean, variance))
        for number, item_id, label, mean, variance in _fetched(connection, query, [sequence])
    ]


def _outcome(connection: sqlite3.Connection, retry: Retry) -> str | None:
    query = "SELECT request, outcome FROM outcomes WHERE key = ? AND at > ?"
    found = _fetched(connection, query, [retry.key, time.time() - OUTCOME_LIFE_S])
    if not found:
        return None
    request, outcome = found[0]
    if request != retry.request:
        raise KeyReused(
            "The Idempotency-Key was sent before with another request. Send a new key with a new "
            "request, and the same key only with the very same one."
        )
    return str(outcome)


def _back_up(connection: sqlite3.Connection, target: sqlite3.Connection) -> None:
    connection.backup(target)


def _vector(mean: bytes, variance: bytes) -> Vector:
    return Vector(*(np.frombuffer(part, _FLOATS).astype(np.float32) for part in (mean, variance)))
