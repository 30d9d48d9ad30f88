"""Items in SQLite, by row: ids, labels, metadata, thumbnails and previews.

A preview is an optional picture of an item. The picture is large enough for a reviewer.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.filters.grammar import Filter, Scalar
from model_store.gallery.filters.selection import Allowed, MaskedRows, fields_of, select
from model_store.gallery.filters.sql import as_stored, metadata_json, to_sql
from model_store.gallery.protocol import Item, NewItem, Thumbnail, item_not_found
from model_store.sqlite import file_is_gone, interrupted_when_late

from .fields import FieldColumns, FieldsSeen, FilteredRows

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (
  row INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  label TEXT,
  metadata TEXT NOT NULL
);
CREATE TABLE labels (label TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, media_type TEXT NOT NULL, data BLOB NOT NULL);
"""


class _Writer:
    """Writes a new file in one transaction; an error leaves a file without tables."""

    def __init__(self, path: Path, schema: str) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.executescript(f"BEGIN; {schema}")  # `__exit__` ends the transaction

    def _complete(self) -> None:
        """Write what depends on all rows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._complete()
                self._connection.commit()
        finally:
            self._connection.close()


class _Reader:
    """Reads a file that does not change, by one connection for each thread.

    Parameters
    ----------
    cache_kib : size of the cache of each connection, in KiB; None for SQLite's default.
    """

    def __init__(self, path: Path, cache_kib: int | None = None) -> None:
        self._path, self._has_opened = path.resolve(), False
        self._uri = f"{self._path.as_uri()}?mode=ro&immutable=1"
        self._connections = threading.local()
        self._cache_kib = cache_kib

    @property
    def _connection(self) -> sqlite3.Connection:
        """The connection of the calling thread.

        Raises
        ------
        StorageFailed : the file was opened before, and no longer exists.
        """
        if not hasattr(self._connections, "opened"):
            # Any thread may delete the reader, and with it the connections of all threads.
            try:
                connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
            except sqlite3.OperationalError as error:
                if not self._has_opened or self._path.exists():
                    raise
                raise file_is_gone(
                    f"{self._path.name} of the bundle {self._path.parent.name} no longer exists"
                ) from error
            self._has_opened = True
            if self._cache_kib is not None:
                connection.execute(f"PRAGMA cache_size = -{self._cache_kib}")
            self._connections.opened = _Opened(connection)
        opened: _Opened = self._connections.opened
        return opened.connection


class _Opened:
    """Closes a connection when its thread ends, or when the reader is deleted.

    A connection of ``sqlite3`` refers to itself. Without this class, its file would stay open until
    the next run of the garbage collector.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class ItemsWriter(_Writer):
    """Writes items to a new file in one transaction; the first item gets row 0.

    ``n_changed``: see `model_store.gallery.Gallery`.

    Attributes
    ----------
    fields : for each field, how many items have the field, and how long its texts are.
    """

    def __init__(self, path: Path, encoder_fingerprint: str, n_changed: int = 0) -> None:
        super().__init__(path, _SCHEMA)
        self.fields = FieldsSeen()
        self._seen: dict[str | None, int] = {}
        self._codes = array("i")  # item → number of its label, in order of first use
        self._connection.execute("INSERT INTO meta VALUES ('encoder', ?)", (encoder_fingerprint,))
        if n_changed:
            self._connection.execute("INSERT INTO meta VALUES ('changed', ?)", (str(n_changed),))

    def add(self, items: Iterable[NewItem]) -> None:
        """Write the next items."""
        added = list(enumerate(items, start=len(self._codes)))
        self._connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?)",
            ((row, item.id, item.label, metadata_json(item.metadata)) for row, item in added),
        )
        self._connection.executemany(
            "INSERT INTO thumbnails VALUES (?, ?, ?)",
            ((row, item.thumbnail.media_type, item.thumbnail.data) for row, item in added),
        )
        for _, item in added:
            self.fields.add(item.metadata)
        self._codes.extend(self._seen.setdefault(item.label, len(self._seen)) for _, item in added)

    def label_codes(self) -> NDArray[np.int32]:
        """Return label codes (N,): positions in the list of sorted labels; -1 for no label."""
        place = {label: place for place, label in enumerate(self._labels())} | {None: -1}
        codes = np.array([place[label] for label in self._seen], dtype=np.int32)
        return codes[np.frombuffer(self._codes, dtype=np.intc)] if self._codes else codes

    def _labels(self) -> list[str]:
        return sorted(label for label in self._seen if label is not None)

    def _complete(self) -> None:
        labels = ((label,) for label in self._labels())
        self._connection.executemany("INSERT INTO labels VALUES (?)", labels)


REMEMBERED_FILTERS = 16
"""Maximum number of filters whose rows are cached. The cache helps because a request for the next
page repeats the filter. For each filter, the cached rows take at most one byte per item."""

SMALL_BYTES, SMALL_CACHE_KIB = 64 * 2**20, 128
"""A file of at most `SMALL_BYTES` bytes is small. For a small file, the size of SQLite's cache is
`SMALL_CACHE_KIB` KiB. Each connection has its own cache, and each thread has a connection to each
gallery. There may be a thousand galleries, so SQLite's default cache of 2 MB would be too large.
The operating system also caches the file."""


class Items(_Reader):
    """Reads the file that `ItemsWriter` wrote; thread-safe.

    Attributes
    ----------
    fields : the indexes of the items' fields.
    """

    def __init__(self, path: Path) -> None:
        is_small = path.stat().st_size <= SMALL_BYTES
        super().__init__(path, SMALL_CACHE_KIB if is_small else None)
        meta = dict(self._connection.execute("SELECT key, value FROM meta"))
        self.encoder_fingerprint: str = meta["encoder"]
        self.n_changed = int(meta.get("changed", 0))
        self.fields = FieldColumns(path.parent, self.count())
        self._matching: OrderedDict[tuple[str, tuple[Scalar, ...]], Allowed] = OrderedDict()
        self._lock = threading.Lock()

    def labels(self) -> list[str]:
        """The distinct labels, sorted."""
        found = self._connection.execute("SELECT label FROM labels")
        return sorted(label for (label,) in found)

    def count(self) -> int:
        """Return the number of rows; they are numbered from 0."""
        return int(
            self._connection.execute("SELECT coalesce(max(row) + 1, 0) FROM items").fetchone()[0]
        )

    def at(self, rows: Sequence[int]) -> list[Item]:
        """Return the items at ``rows``, in the order of ``rows``."""
        marks = ",".join("?" * len(rows))
        query = f"SELECT row, id, label, metadata FROM items WHERE row IN ({marks})"  # noqa: S608
        read = self._connection.execute(query, list(rows)).fetchall()
        # One long JSON text is parsed three times as fast as many short texts.
        parsed = json.loads(f"[{','.join(one[3] for one in read)}]")
        found = {
            row: Item(item_id, label, metadata)
            for (row, item_id, label, _), metadata in zip(read, parsed, strict=True)
        }
        return [found[row] for row in rows]

    def next_row(self, item_id: str) -> int | None:
        """Return the first row whose id is greater than ``item_id``; None if no id is greater."""
        found = self._connection.execute(
            "SELECT row FROM items WHERE id > ? ORDER BY id LIMIT 1", (item_id,)
        ).fetchone()
        return None if found is None else int(found[0])

    def item(self, item_id: str) -> Item:
        """Return the item with this id."""
        return self.at([self.row(item_id)])[0]

    def thumbnail(self, item_id: str) -> Thumbnail:
        """Return the thumbnail of an item."""
        return self.thumbnails([self.row(item_id)])[0]

    def thumbnails(self, rows: Sequence[int]) -> list[Thumbnail]:
        """Return the thumbnails of the items at ``rows``, in the order of ``rows``."""
        marks = ",".join("?" * len(rows))
        query = f"SELECT row, data, media_type FROM thumbnails WHERE row IN ({marks})"  # noqa: S608
        found = {row: Thumbnail(*one) for row, *one in self._connection.execute(query, list(rows))}
        return [found[row] for row in rows]

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass the filter."""
        text, values = to_sql(part)
        key = (text, tuple(values))
        with self._lock:
            if key in self._matching:
                self._matching.move_to_end(key)
                return self._matching[key]
        wanted = fields_of(part)
        columns, places = self.fields.of(wanted, self._connection)
        matching: Allowed
        if len(columns) == len(wanted):
            rows = select(as_stored(part), columns, self.fields.n_rows)
            matching = FilteredRows(rows, self.fields.n_rows, places)
        else:
            matching = MaskedRows(self._looked_at(text, values), places)
        with self._lock:
            self._matching[key] = matching
            if len(self._matching) > REMEMBERED_FILTERS:
                self._matching.popitem(last=False)
        return matching

    def _looked_at(self, text: str, values: list[Scalar]) -> NDArray[np.bool_]:
        """Return a mask of the rows that pass a filter; checks every row by SQL."""
        mask = np.zeros(self.fields.n_rows, dtype=bool)
        with interrupted_when_late(self._connection) as connection:
            found = connection.execute(f"SELECT row FROM items WHERE {text}", values)  # noqa: S608
            mask[np.fromiter((row for (row,) in found), dtype=np.int64)] = True
        return mask

    def row(self, item_id: str) -> int:
        """Return the row of the item with this id, or raise `ItemNotFound`."""
        found = self._connection.execute(
            "SELECT row FROM items WHERE id = ?", (item_id,)
        ).fetchone()
        if found is None:
            raise item_not_found(item_id)
        return int(found[0])


PREVIEWS_FILE = "previews.sqlite"

_PREVIEWS_SCHEMA = """
CREATE TABLE meta (side INTEGER NOT NULL);
CREATE TABLE previews (row INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""


class PreviewsWriter(_Writer):
    """Writes the previews of items to a new file; rows are numbered in the order of the items.

    Parameters
    ----------
    side : longest side of the previews in pixels.
    """

    def __init__(self, path: Path, side: int) -> None:
        super().__init__(path, _PREVIEWS_SCHEMA)
        self._connection.execute("INSERT INTO meta VALUES (?)", (side,))
        self._n_rows = 0

    def add(self, items: Iterable[NewItem]) -> None:
        """Write the previews of the next items; items without a preview are skipped."""
        for item in items:
            if item.preview:
                self._connection.execute(
                    "INSERT INTO previews VALUES (?, ?)", (self._n_rows, item.preview)
                )
            self._n_rows += 1


class Previews(_Reader):
    """Reads the file of `PreviewsWriter`; thread-safe. Without the file, all previews are empty.

    Attributes
    ----------
    side : longest side of the previews in pixels; None in a gallery without previews.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.side: int | None = None
        if path.exists():
            ((self.side,),) = self._connection.execute("SELECT side FROM meta")

    def at(self, row: int) -> bytes:
        """Return the preview of a row as JPEG; empty if the row has no preview."""
        if self.side is None:
            return b""
        query = "SELECT data FROM previews WHERE row = ?"
        found = self._connection.execute(query, (row,)).fetchone()
        return b"" if found is None else bytes(found[0])
