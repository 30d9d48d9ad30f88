"""Indexes of fields, for filters: stored with the gallery, or built on first use.

``fields.bin`` holds the arrays of every `Column`, one after another, for memory-mapping.
``fields.json`` holds the offset of each array.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from model_store.errors import InvalidFilter
from model_store.files import json_text
from model_store.gallery.filters.columns import Column
from model_store.gallery.filters.grammar import Field, parse_field
from model_store.gallery.filters.selection import Selection, estimated_share
from model_store.gallery.filters.sql import ItemTable, column_of
from model_store.messages import IndexedBy
from model_store.sqlite import interrupted_when_late
from model_store.table import load_bytes

logger = logging.getLogger(__name__)

ITEMS_FILE = "items.sqlite"
FIELDS_FILE = "fields.json"
COLUMNS_FILE = "fields.bin"

BYTES_OF_AN_ITEM = 256
"""Maximum size of the indexes of automatically chosen fields, in bytes per item. For comparison, a
direction with 128 dimensions takes 512 bytes."""

MOST_FIELDS = 64
"""Maximum number of fields that are chosen automatically for indexing. For a million items, the
index of one field takes seconds to build."""

LEARNED_BYTES = 2**28
"""Maximum total size in bytes of the indexes that a process builds on first use. With a million
items, at least ten such indexes fit into this limit."""

MOST_LEARNED = 256
"""Maximum number of cached indexes. The cache contains the indexes that a process has built on
first use."""

_ALWAYS = (Field("id"), Field("label"))
_ITEMS = ItemTable("items", "row")
_ALIGNED = 8
_MOST_SEEN = 1_024


class FieldsSeen:
    """Counts, for each field, the items with the field and the characters of the field's texts."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], list[int]] = {}  # number of items, characters of text

    def add(self, metadata: Mapping[str, Any], path: tuple[str, ...] = ()) -> None:
        """Count the fields in an item's metadata."""
        for key, value in metadata.items():
            at = (*path, key)
            if isinstance(value, dict):
                self.add(value, at)
                continue
            seen = self._seen.get(at)
            if seen is None:
                if len(self._seen) == _MOST_SEEN or not _nameable(at):
                    continue
                seen = self._seen[at] = [0, 0]
            seen[0] += 1
            for part in value if isinstance(value, list) else (value,):
                if isinstance(part, str):
                    seen[1] += len(part)

    def worth_indexing(self) -> list[Field]:
        """Return the most frequent fields; the field with the least text comes first."""
        frequent = sorted(self._seen, key=lambda path: (-self._seen[path][0], path))
        chosen = sorted(frequent[:MOST_FIELDS], key=lambda path: (self._seen[path][1], path))
        return [Field("metadata", path) for path in chosen]


def _nameable(path: tuple[str, ...]) -> bool:
    """Return whether a filter can name a field."""
    field = Field("metadata", path)
    try:
        return parse_field(field.name) == field
    except (InvalidFilter, TypeError):  # a key that is not text; JSON converts it to text
        return False


def write_fields(
    directory: Path, n_rows: int, named: tuple[Field, ...] | None, seen: FieldsSeen
) -> None:
    """Write indexes of fields for the items in ``directory``.

    Parameters
    ----------
    named : fields to index; the size of their indexes is not limited. If None, the fields are
        chosen from ``seen``, in the order of `FieldsSeen.worth_indexing`. `BYTES_OF_AN_ITEM` then
        limits the size of the indexes.
    """
    wanted = (*_ALWAYS, *(seen.worth_indexing() if named is None else named))
    left = BYTES_OF_AN_ITEM * n_rows
    written = []
    with (
        closing(sqlite3.connect(directory / ITEMS_FILE)) as items,
        (directory / COLUMNS_FILE).open("wb") as file,
    ):
        for field in dict.fromkeys(wanted):
            is_named = named is not None or field in _ALWAYS
            try:
                column = column_of(items, field, _ITEMS, n_rows, math.inf if is_named else left)
            except sqlite3.OperationalError:
                # SQLite sorts in temporary files, and the disk may be full. The gallery is complete
                # without this index: the field is indexed on its first use.
                logger.exception("the field %s is left without an index", field.name)
                continue
            if column is None:
                continue
            left -= 0 if is_named else column.n_bytes
            arrays = {name: _append(file, array) for name, array in column.arrays().items()}
            written.append({"field": field.name, "arrays": arrays})
    record = {
        "n_rows": n_rows,
        "named": None if named is None else [field.name for field in named],
        "fields": written,
    }
    (directory / FIELDS_FILE).write_text(json_text(record), encoding="utf-8")


def _append(file: BinaryIO, array: NDArray[Any]) -> tuple[str, int, int]:
    """Write an array; return its type, its offset in bytes and its length."""
    file.write(b"\0" * (-file.tell() % _ALIGNED))
    start = file.tell()
    file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return array.dtype.newbyteorder("<").str, start, len(array)


class FieldColumns:
    """The indexes of a gallery's fields; thread-safe.

    If a field has no stored index, its index is built in memory on the first use of the field. If
    the indexes in memory exceed `LEARNED_BYTES`, the least recently used indexes are dropped.

    Parameters
    ----------
    directory : directory with the files of `write_fields`; early releases wrote no such files.
    """

    def __init__(self, directory: Path, n_rows: int) -> None:
        self.n_rows = n_rows
        self.named: tuple[str, ...] | None = None
        self._stored: dict[Field, Column] = {}
        self._learned: OrderedDict[Field, Column | None] = OrderedDict()
        self._learned_bytes: dict[Field, int] = {}
        self._learning = threading.Lock()
        if (directory / FIELDS_FILE).exists():
            self._open(directory)

    def _open(self, directory: Path) -> None:
        record = json.loads((directory / FIELDS_FILE).read_text(encoding="utf-8"))
        self.n_rows = record["n_rows"]
        self.named = None if record["named"] is None else tuple(record["named"])
        content = load_bytes(directory / COLUMNS_FILE)
        for one in record["fields"]:
            arrays = {
                name: content[start : start + n * np.dtype(kind).itemsize].view(kind)
                for name, (kind, start, n) in one["arrays"].items()
            }
            self._stored[parse_field(one["field"])] = Column.of_arrays(arrays)

    def of(
        self, fields: Sequence[Field], connection: sqlite3.Connection
    ) -> tuple[dict[Field, Column], dict[str, IndexedBy]]:
        """Return the available indexes of ``fields``, and where each is stored.

        Parameters
        ----------
        connection : connection to the database of items.

        Raises
        ------
        DeadlineExceeded : the time limit passed before an index was built.
        """
        columns: dict[Field, Column] = {}
        places: dict[str, IndexedBy] = {}
        for field in fields:
            stored = self._stored.get(field)
            column = self._learn(field, connection) if stored is None else stored
            places[field.name] = "bundle" if stored is not None else "memory"
            if column is None:
                places[field.name] = "none"
            else:
                columns[field] = column
        return columns, places

    def stored(self) -> dict[Field, Column]:
        """Return the stored indexes, except the index of the ids."""
        return {field: column for field, column in self._stored.items() if field.column != "id"}

    def _learn(self, field: Field, connection: sqlite3.Connection) -> Column | None:
        """Build the index of a field that has no stored index; None if the build fails."""
        with self._learning:
            if field not in self._learned:
                try:
                    with interrupted_when_late(connection):
                        column = column_of(connection, field, _ITEMS, self.n_rows, LEARNED_BYTES)
                except sqlite3.OperationalError:
                    logger.exception("the field %s cannot be indexed", field.name)
                    return None
                self._learned[field] = column
                self._learned_bytes[field] = 0 if column is None else column.n_bytes
                self._make_room()
            self._learned.move_to_end(field)
            return self._learned[field]

    def _make_room(self) -> None:
        """Drop the least recently used indexes until the cache is within its limits."""
        n_bytes = sum(self._learned_bytes.values())
        while n_bytes > LEARNED_BYTES or len(self._learned) > MOST_LEARNED:
            field, _ = self._learned.popitem(last=False)
            n_bytes -= self._learned_bytes.pop(field)


class FilteredRows:
    """The rows that pass a filter, found by field indexes; implements `Allowed`.

    Parameters
    ----------
    selection : the rows that pass the filter, out of ``n_rows`` rows.
    indexes : field of the filter → where the field's index is stored.
    """

    def __init__(self, selection: Selection, n_rows: int, indexes: Mapping[str, IndexedBy]) -> None:
        self._selection, self._n_rows, self.indexes = selection, n_rows, indexes
        self.at_most = selection.at_most

    @cached_property
    def share(self) -> float:
        """Estimated share of the N rows that is allowed; each call returns the same value."""
        return estimated_share(self._selection, self._n_rows)

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""
        return self._selection.at(rows)

    def rows(self) -> NDArray[np.int64]:
        """All allowed rows, ascending."""
        return np.sort(self._selection.rows())

    def mask(self) -> NDArray[np.bool_]:
        """Return a read-only mask (N,) of the allowed rows."""
        return self._mask

    @cached_property
    def _mask(self) -> NDArray[np.bool_]:
        mask = self._selection.mask()
        mask.flags.writeable = False
        return mask
