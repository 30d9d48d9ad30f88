"""Stores previews in SQLite, by row.

A preview is an optional picture of an item. The picture is large enough for a reviewer.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from model_store.gallery.protocol import NewItem

PREVIEWS_FILE = "previews.sqlite"

_SCHEMA = """
CREATE TABLE meta (side INTEGER NOT NULL);
CREATE TABLE previews (row INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""


class PreviewsWriter:
    """Writes the previews of items to a new file; rows are numbered in the order of the items.

    Parameters
    ----------
    side : longest side of the previews in pixels.
    """

    def __init__(self, path: Path, side: int) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.executescript(f"BEGIN; {_SCHEMA}")  # `__exit__` ends the transaction
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._connection.commit()
        finally:
            self._connection.close()


class Previews:
    """Reads the file of `PreviewsWriter`; thread-safe. Without the file, all previews are empty.

    Attributes
    ----------
    side : longest side of the previews in pixels; None in a gallery without previews.
    """

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._connections = threading.local()
        self.side: int | None = None
        if path.exists():
            ((self.side,),) = self._connection.execute("SELECT side FROM meta")

    @property
    def _connection(self) -> sqlite3.Connection:
        """The connection of the calling thread."""
        if not hasattr(self._connections, "current"):
            self._connections.current = sqlite3.connect(self._uri, uri=True)
        connection: sqlite3.Connection = self._connections.current
        return connection

    def at(self, row: int) -> bytes:
        """Return the preview of a row as JPEG; empty if the row has no preview."""
        if self.side is None:
            return b""
        query = "SELECT data FROM previews WHERE row = ?"
        found = self._connection.execute(query, (row,)).fetchone()
        return b"" if found is None else bytes(found[0])
