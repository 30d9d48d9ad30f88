"""Rows of the log, each with checksums, and the SQL statements that read them.

A row has three parts (item, vector, picture), which are read separately. Each part has its own
checksum. Each checksum includes the sequence number, and sequence numbers have no gaps. So a reader
detects damaged rows, missing rows, and rows that have changed places.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from model_store.errors import LogDamaged
from model_store.gallery.filters.columns import Column
from model_store.gallery.filters.grammar import Field
from model_store.gallery.filters.sql import ItemTable, column_of, metadata_json
from model_store.gallery.protocol import (
    Change,
    Delete,
    Item,
    NewItem,
    Receipt,
    Retry,
    Thumbnail,
    Upsert,
    Vector,
)
from model_store.table import HalfRows

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # A row without a mean is a deletion.
    """CREATE TABLE IF NOT EXISTS changes (
  sequence INTEGER PRIMARY KEY,
  id TEXT NOT NULL,
  label TEXT,
  metadata TEXT,
  media_type TEXT,
  thumbnail BLOB,
  mean BLOB,
  variance BLOB,
  checksums BLOB NOT NULL
)""",
    """CREATE TABLE IF NOT EXISTS outcomes (
  key TEXT PRIMARY KEY,
  request TEXT NOT NULL,
  outcome TEXT NOT NULL,
  at REAL NOT NULL,
  checksum BLOB NOT NULL
) WITHOUT ROWID""",
    # Changes with known features have a row in `features`; changes with a preview have a row in
    # `previews`. Logs of earlier releases lack these tables.
    """CREATE TABLE IF NOT EXISTS features (
  sequence INTEGER PRIMARY KEY,
  features BLOB NOT NULL,
  checksum BLOB NOT NULL
)""",
    """CREATE TABLE IF NOT EXISTS previews (
  sequence INTEGER PRIMARY KEY,
  preview BLOB NOT NULL,
  checksum BLOB NOT NULL
)""",
)

Row = tuple[Any, ...]

Beside = Literal["features", "previews"]
"""Names of the tables that store the optional content of changes."""

_FLOATS = np.dtype("<f4")
_CHECKSUM_BYTES = 16
_ASKED_TOGETHER = 500
_ITEM, _VECTOR, _PICTURE = range(3)
_WHOLE = "sequence, id, label, metadata, media_type, thumbnail, mean, variance, checksums"


def make(connection: sqlite3.Connection, identity: dict[str, str], start: int) -> None:
    """Make an empty log that begins after the change ``start``, unless a log exists."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in SCHEMA:
        connection.execute(statement)
    rows = [*identity.items(), ("start", str(start))]
    connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", rows)
    connection.execute("COMMIT")


def meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the log's own description: schema, bundle, encoder, start and clock."""
    return dict(connection.execute("SELECT key, value FROM meta").fetchall())


def clock(connection: sqlite3.Connection) -> tuple[float, float]:
    """Return the time of the last stored outcome, by the system clock and by the log's clock.

    Both times are 0 if no outcome was stored.
    """
    try:
        system, own = map(float, meta(connection).get("clock", "0 0").split())
    except ValueError:
        raise LogDamaged("its clock is not a number") from None
    return system, own


def set_clock(connection: sqlite3.Connection, system: float, own: float) -> None:
    """Store the two times that `clock` returns."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (f"{system!r} {own!r}",))


def first_sequence(connection: sqlite3.Connection) -> int:
    """Return the number of the last change before the log begins."""
    first = meta(connection).get("start", "")
    if not (first.isascii() and first.isdigit()):
        raise LogDamaged("it does not say at which change it begins")
    return int(first)


def last_sequence(connection: sqlite3.Connection) -> int:
    """Return the latest sequence number."""
    (last,) = connection.execute("SELECT max(sequence) FROM changes").fetchone()
    return first_sequence(connection) if last is None else int(last)


def identities(connection: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the checksums of each change; both are equal for copies alone."""
    yield from connection.execute("SELECT sequence, checksums FROM changes")


def row_of(sequence: int, write: Upsert | Delete) -> Row:
    """Return the row that stores a write."""
    values: Row = (sequence, write.id, None, None, None, None, None, None)
    if isinstance(write, Upsert):
        item, vector = write.item, write.vector
        values = (
            sequence,
            item.id,
            item.label,
            metadata_json(item.metadata),
            item.thumbnail.media_type,
            item.thumbnail.data,
            vector.mean.astype(_FLOATS).tobytes(),
            vector.variance.astype(_FLOATS).tobytes(),
        )
    checksums = [
        _digest(b"change", str(sequence), str(part), *content)
        for part, content in enumerate(_parts(values))
    ]
    return *values, b"".join(checksums)


def rows_beside(sequence: int, write: Upsert | Delete) -> Iterator[tuple[Beside, Row]]:
    """Yield the table and the row for each optional part of a write.

    The optional parts are the features (`HalfRows`) and the preview. For a write without optional
    parts, nothing is yielded.
    """
    if isinstance(write, Delete):
        return
    if write.vector.features is not None:
        (content,) = HalfRows.of(write.vector.features[None]).to_bytes()
        yield "features", _row_beside("features", sequence, content)
    if write.item.preview:
        yield "previews", _row_beside("previews", sequence, write.item.preview)


def contents_beside(
    connection: sqlite3.Connection, table: Beside, sequences: Sequence[int]
) -> dict[int, bytes]:
    """Return sequence number → optional content; a change without this content is left out."""
    if table not in _tables_beside(connection):
        return {}
    found = {}
    for start in range(0, len(sequences), _ASKED_TOGETHER):
        some = sequences[start : start + _ASKED_TOGETHER]
        marks = ",".join("?" * len(some))
        query = f"SELECT * FROM {table} WHERE sequence IN ({marks})"  # noqa: S608
        for row in connection.execute(query, some):
            _verify_beside(table, row)
            found[int(row[0])] = bytes(row[1])
    return found


def changes_after(connection: sqlite3.Connection, sequence: int) -> list[Change]:
    """Return the changes after ``sequence``, in order."""
    query = (
        "SELECT sequence, id, label, metadata, mean, variance, checksums FROM changes "
        "WHERE sequence > ? ORDER BY sequence"
    )
    # Another process may make the log after the caller has read its start.
    wanted = max(sequence, first_sequence(connection)) + 1
    changes = []
    for row in connection.execute(query, [sequence]):
        number, item_id, label, metadata, mean, variance, checksums = row
        _require_next(number, wanted)
        wanted += 1
        _verify(number, _ITEM, (item_id, label, metadata), checksums)
        _verify(number, _VECTOR, (mean, variance), checksums)
        vector = None if mean is None else _vector(mean, variance)
        changes.append(Change(number, item_id, label, vector))
    return changes


def items_at(connection: sqlite3.Connection, sequences: Sequence[int]) -> list[Item]:
    """Return the items written by the changes ``sequences``, in the order of ``sequences``."""
    marks = ",".join("?" * len(sequences))
    query = (
        "SELECT sequence, id, label, metadata, checksums FROM changes "  # noqa: S608
        f"WHERE sequence IN ({marks})"
    )
    found = {}
    for sequence, item_id, label, metadata, checksums in connection.execute(query, sequences):
        _verify(sequence, _ITEM, (item_id, label, metadata), checksums)
        found[sequence] = Item(item_id, label, json.loads(metadata))
    for sequence in sequences:
        if sequence not in found:
            raise LogDamaged(f"change {sequence} is missing")
    return [found[sequence] for sequence in sequences]


def thumbnail_at(connection: sqlite3.Connection, sequence: int) -> Thumbnail:
    """Return the thumbnail written by the change ``sequence``."""
    query = "SELECT media_type, thumbnail, checksums FROM changes WHERE sequence = ?"
    for media_type, data, checksums in connection.execute(query, [sequence]):
        _verify(sequence, _PICTURE, (media_type, data), checksums)
        return Thumbnail(data, media_type)
    raise LogDamaged(f"change {sequence} is missing")


def field_column(
    connection: sqlite3.Connection, field: Field, sequences: NDArray[np.int64]
) -> Column:
    """Build the index of ``field`` for the items that the changes ``sequences`` (n,) wrote.

    ``sequences`` are ascending and complete: every change between the first and the last number is
    included if it wrote an item.
    """
    ends = int(sequences[0]), int(sequences[-1])
    connection.execute("PRAGMA temp_store=MEMORY")  # sort in memory, because the items are few
    between = "mean IS NOT NULL AND sequence BETWEEN ? AND ?"
    column = column_of(
        connection,
        field,
        ItemTable("changes", "sequence", between, ends, sequences),
        len(sequences),
    )
    if column is None or len(column.values.rows) != len(sequences):
        raise LogDamaged(f"changes between {ends[0]} and {ends[1]} are missing")
    return column


def upsert_at(connection: sqlite3.Connection, sequence: int) -> Upsert:
    """Return the item and vector written by the change ``sequence``."""
    query = f"SELECT {_WHOLE} FROM changes WHERE sequence = ?"  # noqa: S608
    row = connection.execute(query, [sequence]).fetchone()
    if row is None:
        raise LogDamaged(f"change {sequence} is missing")
    _verify_row(row)
    _, item_id, label, metadata, media_type, data, mean, variance, _ = row
    preview = contents_beside(connection, "previews", [sequence]).get(sequence, b"")
    item = NewItem(item_id, label, json.loads(metadata), Thumbnail(data, media_type), preview)
    return Upsert(item, _vector(mean, variance))


def receipt_of(connection: sqlite3.Connection, retry: Retry, since: float) -> Receipt | None:
    """Return a request's receipt if it was stored after ``since``; may raise `KeyReused`."""
    query = "SELECT key, request, outcome, at, checksum FROM outcomes WHERE key = ? AND at > ?"
    for row in connection.execute(query, [retry.key, since]):
        _verify_outcome(row)
        _, request, outcome, *_ = row
        retry.require_same(request)
        return Receipt.from_json(str(outcome))
    return None


def outcome_row(retry: Retry, receipt: Receipt, at: float) -> Row:
    """Return the row that stores the receipt of a request."""
    values = retry.key, retry.request, receipt.to_json(), at
    return *values, _digest(b"outcome", *map(str, values))


def verify_all(connection: sqlite3.Connection) -> None:
    """Read and verify every row.

    Raises
    ------
    LogDamaged : a row differs from its checksum, or is missing.
    """
    wanted = first_sequence(connection) + 1
    for row in connection.execute(f"SELECT {_WHOLE} FROM changes ORDER BY sequence"):  # noqa: S608
        _require_next(row[0], wanted)
        wanted += 1
        _verify_row(row)
    for row in connection.execute("SELECT key, request, outcome, at, checksum FROM outcomes"):
        _verify_outcome(row)
    for table in _tables_beside(connection):
        for row in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608
            _verify_beside(table, row)


def copy_rows(
    connection: sqlite3.Connection, target: sqlite3.Connection, after: int, since: float
) -> None:
    """Copy the changes after number ``after``, and the outcomes after the time ``since``."""
    tables = [("changes", "sequence", after), ("outcomes", "at", since)]
    tables += [(table, "sequence", after) for table in _tables_beside(connection)]
    for table, column, bound in tables:
        query = f"SELECT * FROM {table} WHERE {column} > ?"  # noqa: S608
        rows = connection.execute(query, [bound]).fetchall()
        if rows:
            marks = ",".join("?" * len(rows[0]))
            target.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608


def _parts(values: Row) -> tuple[Row, Row, Row]:
    """Return the three parts of a row: item, vector and picture."""
    _, item_id, label, metadata, media_type, thumbnail, mean, variance = values
    return (item_id, label, metadata), (mean, variance), (media_type, thumbnail)


def _verify_row(row: Row) -> None:
    *values, checksums = row
    for part, content in enumerate(_parts(tuple(values))):
        _verify(row[0], part, content, checksums)


def _verify(sequence: int, part: int, content: Row, checksums: object) -> None:
    at = part * _CHECKSUM_BYTES
    kept = checksums[at : at + _CHECKSUM_BYTES] if isinstance(checksums, bytes) else None
    if kept != _digest(b"change", str(sequence), str(part), *content):
        raise LogDamaged(f"change {sequence} differs from its checksum")


def _verify_outcome(row: Row) -> None:
    *values, checksum = row
    if checksum != _digest(b"outcome", *map(str, values)):
        raise LogDamaged("the outcome of a request differs from its checksum")


def _row_beside(table: Beside, sequence: int, content: bytes) -> Row:
    return sequence, content, _digest(table.encode(), str(sequence), content)


def _verify_beside(table: Beside, row: Row) -> None:
    if row != _row_beside(table, *row[:2]):
        raise LogDamaged(f"the {table} of change {row[0]} differ from their checksum")


def _tables_beside(connection: sqlite3.Connection) -> list[Beside]:
    """Return the names of the optional tables that this log has."""
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    return [table for table in get_args(Beside) if table in found]


def _require_next(found: int, wanted: int) -> None:
    if found != wanted:
        raise LogDamaged(f"change {wanted} is missing")


def _digest(kind: bytes, *values: str | bytes | None) -> bytes:
    """Return a digest of the values, their types and their lengths."""
    digest = hashlib.blake2b(digest_size=_CHECKSUM_BYTES, person=kind)
    for value in values:
        content = value.encode() if isinstance(value, str) else bytes(value or b"")
        digest.update(f"{type(value).__name__} {len(content)} ".encode() + content)
    return digest.digest()


def _vector(mean: bytes, variance: bytes) -> Vector:
    return Vector(*(np.frombuffer(part, _FLOATS).astype(np.float32) for part in (mean, variance)))
