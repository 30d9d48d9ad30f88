"""The log of changes since a gallery's bundle was built, in one SQLite file.

The log is append-only. Every change has a sequence number. A reader continues after the last number
that it has read. The gallery after any earlier change can be reconstructed. A complete transaction
is on the disk before it is acknowledged (write-ahead log, ``synchronous=FULL``). Only one process
writes at a time.

A file beside the log stores the number of the log's last change. With this file, a process detects
that the log or its journal is lost or damaged; SQLite reports no error in these cases. The number
is written after a change is on the disk and before the change is acknowledged. So the number in the
file is never larger than the number of the last stored change. The file is not flushed for each
change. So after a power cut, the number in the file may be smaller than the number of the last
stored change. SQLite itself protects the log against a power cut.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.errors import BundleMismatch, LogDamaged, StorageFailed
from model_store.files import PARTIAL, replacing
from model_store.gallery.filters.columns import Column
from model_store.gallery.filters.grammar import Field
from model_store.gallery.live import rows
from model_store.gallery.protocol import Change, Delete, Item, Receipt, Retry, Thumbnail, Upsert
from model_store.sqlite import SharedFile, connect, errors_in_words, file_is_gone

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA_VERSION = "2"

OUTCOME_LIFE_S = 24 * 3600.0
"""Seconds for which the outcome of an Idempotency-Key is kept, measured by the log's clock."""

LONGEST_STEP_S = 3600.0
"""Between two stored outcomes, the log's clock advances by at most this number of seconds. If
writes are rare, this clock is slow. Then outcomes are kept longer than `OUTCOME_LIFE_S`."""

_DIGITS = 20
_ENDING = ".high"
UNFINISHED = f"{_ENDING}{PARTIAL}"
"""Ending of the names of temporary files beside logs."""


class ChangesFile(SharedFile):
    """The log of one bundle's gallery; several threads and processes can use it.

    The first write creates the file. Without the file, the gallery has no changes.

    Parameters
    ----------
    path : ``<root>/changes/<bundle id>.sqlite``.
    bundle_id : id of the bundle that the changes belong to.
    encoder_fingerprint : fingerprint of the bundle's encoder.
    admit : function that each transaction calls before its first write. It raises an error if the
        gallery no longer accepts writes.

    Raises
    ------
    BundleMismatch : the file belongs to another bundle or encoder.
    StorageFailed : the file exists and cannot be read.
    LogDamaged : the log differs from its checksums; every later call raises this error too.
    """

    def __init__(
        self,
        path: Path,
        bundle_id: str,
        encoder_fingerprint: str,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(path)
        self._admit = admit
        self._identity = {
            "schema": SCHEMA_VERSION,
            "bundle": bundle_id,
            "encoder": encoder_fingerprint,
        }
        self._high = HighWater(path)

    def verify(self) -> None:
        """Read and verify the whole log. Later calls verify only the rows that they read.

        Raises
        ------
        LogDamaged
        """
        self._read(rows.verify_all, None)
        with self._told():
            # Read this number first, because other processes may write before `last` is read.
            reached = self._high.read()
        last = self.last()
        with self._told():
            require_reached(last, reached)

    def after(self, sequence: int) -> list[Change]:
        """Return the changes after ``sequence``, in order."""
        return self._read(partial(rows.changes_after, sequence=sequence), [])

    def last(self) -> int:
        """Return the number of the last change; 0 before the first change."""
        return self._read(rows.last_sequence, 0)

    def start(self) -> int:
        """Return the number of the last change in the bundle; the log begins after this change."""
        return self._read(rows.first_sequence, 0)

    def items(self, sequences: Sequence[int]) -> list[Item]:
        """Return the items written by the changes ``sequences``, in the order of ``sequences``."""
        return self._there(partial(rows.items_at, sequences=sequences)) if sequences else []

    def thumbnail(self, sequence: int) -> Thumbnail:
        """Return the thumbnail written by the change ``sequence``."""
        return self._there(partial(rows.thumbnail_at, sequence=sequence))

    def column(self, field: Field, sequences: NDArray[np.int64]) -> Column:
        """Build the index of ``field`` for the items that the changes ``sequences`` wrote."""
        return self._there(partial(rows.field_column, field=field, sequences=sequences))

    def upserts(self, sequences: Sequence[int]) -> Iterator[Upsert]:
        """Yield the complete items and vectors written by the changes ``sequences``."""
        for sequence in sequences:
            yield self._there(partial(rows.upsert_at, sequence=sequence))

    def features(self, sequences: Sequence[int]) -> dict[int, bytes]:
        """Return the known features of items, by sequence number; see `HalfRows`."""
        return self._beside("features", sequences)

    def preview(self, sequence: int) -> bytes:
        """Return the preview written by the change ``sequence``; empty if there is none."""
        return self._beside("previews", [sequence]).get(sequence, b"")

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return the receipt of a request; None if the request is new.

        Raises
        ------
        KeyReused : the key belongs to another request.
        """
        return self._read(partial(_receipt, retry=retry), None)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction; after an error, none of its writes are kept.

        Raises
        ------
        WriteError : `admit` refused the transaction, the writes could not be stored, or the log
            cannot be written to.
        ChangeUnconfirmed : see `commit`.
        """
        with self._told():
            try:
                self._require_in_place()
            except StorageFailed:
                if self.path.parent.is_dir():
                    self._admit()  # another bundle may be current, and this log removed
                raise
            with self._transaction() as connection:
                self._verify(connection)
                require_reached(rows.last_sequence(connection), self._high.read())
                self._admit()
                turn = Transaction(connection)
                yield turn
            if turn.reached is not None:
                self._high.raise_to(turn.reached)

    def copy_to(self, target: Path) -> None:
        """Copy the log consistently to ``target``, while writers continue.

        Without a log, the copy is empty.
        """
        with errors_in_words(target), closing(connect(target, "rwc")) as copy:
            self._read(partial(_back_up, target=copy, path=target), None)

    def _read(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Call ``work`` with the reading connection; return ``otherwise`` if no log exists."""
        with self._told(), self._borrowed() as connection:
            return otherwise if connection is None else work(connection)

    def _beside(self, table: rows.Beside, sequences: Sequence[int]) -> dict[int, bytes]:
        found = partial(rows.contents_beside, table=table, sequences=sequences)
        return self._read(found, {})

    def _there(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``work`` with the reading connection; raise `StorageFailed` if there is no log."""
        nothing: list[T] = []
        found = self._read(lambda connection: [work(connection)], nothing)
        if not found:
            bundle = self._identity["bundle"]
            raise file_is_gone(f"The changes of the bundle {bundle} no longer exist")
        return found[0]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Add bundle and advice to a `LogDamaged` error; later calls raise the same error."""
        if self._damage is not None:
            raise self._damage
        try:
            yield
        except LogDamaged as error:
            self._damage = LogDamaged(
                f"The changes of the bundle {self._identity['bundle']} are damaged: {error}. "
                "They are no longer read or written. Run `vouch-build doctor` for advice."
            )
            raise self._damage from error

    def _make(self, connection: sqlite3.Connection) -> None:
        rows.make(connection, self._identity, 0)
        self._high.make(rows.last_sequence(connection))

    def _verify(self, connection: sqlite3.Connection) -> None:
        found = rows.meta(connection)
        for key, wanted in self._identity.items():
            if found.get(key) != wanted:
                raise BundleMismatch(
                    f"The changes of bundle {self._identity['bundle']} have another {key}: "
                    f"{str(found.get(key))[:16]}, wanted {wanted[:16]}. Restore them from a backup."
                )


@dataclass(slots=True)
class Transaction:
    """A write transaction; see `ChangesFile.transaction`.

    Attributes
    ----------
    connection : connection with the open transaction.
    reached : number of the last change that this transaction has added; None before that.
    """

    connection: sqlite3.Connection
    reached: int | None = None

    def add(self, writes: Sequence[Upsert | Delete]) -> list[Change]:
        """Append changes to the log; return them with their sequence numbers."""
        changes = []
        for sequence, write in enumerate(writes, rows.last_sequence(self.connection) + 1):
            row = rows.row_of(sequence, write)
            marks = ",".join("?" * len(row))
            self.connection.execute(f"INSERT INTO changes VALUES ({marks})", row)  # noqa: S608
            for table, beside in rows.rows_beside(sequence, write):
                self.connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", beside)  # noqa: S608
            self.reached = sequence
            label, vector = None, None
            if isinstance(write, Upsert):
                label, vector = write.item.label, write.vector
            changes.append(Change(sequence, write.id, label, vector))
        return changes

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return a request's receipt; None if the request is new. May raise `KeyReused`."""
        return _receipt(self.connection, retry)

    def remember(self, retry: Retry, receipt: Receipt) -> None:
        """Store the outcome of a request, and delete old outcomes."""
        now = _now(self.connection)
        rows.set_clock(self.connection, time.time(), now)
        self.connection.execute("DELETE FROM outcomes WHERE at < ?", (now - OUTCOME_LIFE_S,))
        self.connection.execute(
            "INSERT INTO outcomes VALUES (?, ?, ?, ?, ?)", rows.outcome_row(retry, receipt, now)
        )

    def copy_tail(self, path: Path, bundle_id: str, after: int) -> None:
        """Create the log of another bundle, with the changes that follow the change ``after``."""
        with closing(connect(path, "rwc")) as target:
            target.execute("PRAGMA journal_mode=WAL")
            meta = rows.meta(self.connection)
            identity = {key: meta[key] for key in ("schema", "encoder")}
            rows.make(target, {**identity, "bundle": bundle_id}, after)
            target.execute("BEGIN")
            now = _now(self.connection)
            rows.set_clock(target, time.time(), now)
            rows.copy_rows(self.connection, target, after, now - OUTCOME_LIFE_S)
            rows.verify_all(target)  # verify the copied changes
            target.execute("COMMIT")
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _receipt(connection: sqlite3.Connection, retry: Retry) -> Receipt | None:
    return rows.receipt_of(connection, retry, _now(connection) - OUTCOME_LIFE_S)


def _now(connection: sqlite3.Connection) -> float:
    """Return the time of the log's clock, in seconds.

    The log's clock follows the system clock, but never goes back. Between two stored outcomes, the
    log's clock advances by at most `LONGEST_STEP_S`. So no outcome is deleted too early if the
    system clock jumps.
    """
    system, own = rows.clock(connection)
    return own + min(max(time.time() - system, 0.0), LONGEST_STEP_S)


def _back_up(connection: sqlite3.Connection, target: sqlite3.Connection, path: Path) -> None:
    with errors_in_words(path):  # an error of the copy is none of the log
        connection.backup(target)


class HighWater:
    """The largest sequence number that a log has acknowledged.

    Parameters
    ----------
    log : path of the log; the number is stored in ``<log>.high``.
    """

    def __init__(self, log: Path) -> None:
        self.path = log.with_name(f"{log.name}{_ENDING}")

    def read(self) -> int:
        """Return the stored number; 0 if there is no file.

        Raises
        ------
        LogDamaged : the file cannot be read, or its content is not a number.
        """
        try:
            content = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise LogDamaged(f"{self.path.name} cannot be read ({error.strerror})") from error
        if len(content) != _DIGITS or not content.isdigit():
            raise LogDamaged(f"{self.path.name} holds no number")
        return int(content)

    def make(self, sequence: int) -> None:
        """Create the file if it is missing, so that a later `raise_to` needs no disk space.

        If the process is killed, the file is either missing or complete.

        Raises
        ------
        OSError
        """
        if not self.path.exists():
            with _alone(self.path.parent):
                if not self.path.exists():
                    with replacing(self.path) as staged:
                        staged.write_bytes(b"%0*d" % (_DIGITS, sequence))

    def raise_to(self, sequence: int) -> None:
        """Write a larger number. Errors are only logged, because the change is already stored."""
        try:
            with self.path.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # other processes may write too
                known = file.read()
                if not known.isdigit() or int(known) < sequence:
                    os.pwrite(file.fileno(), b"%0*d" % (_DIGITS, sequence), 0)
        except OSError:
            logger.exception("the number of the last change cannot be stored")


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder of logs."""
    with _alone(folder):
        for left in folder.glob(f".*{UNFINISHED}"):
            left.unlink()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that create or remove temporary files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # the file system may not lock folders
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def require_reached(last: int, reached: int) -> None:
    """Raise `LogDamaged` if a log ends with the change ``last`` and ``last`` < ``reached``.

    If other processes can write, the caller must read ``reached`` before it reads the log.
    """
    if last < reached:
        raise LogDamaged(f"it ends with change {last}, though {reached} were acknowledged")
