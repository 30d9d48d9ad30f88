"""A cache file for vectors of images."""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.output import writing

Vector = NDArray[np.float32]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    maker TEXT NOT NULL, content BLOB NOT NULL,
    vector BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (maker, content)
) WITHOUT ROWID
"""

_KNOWN = "SELECT content, vector, checksum FROM vectors WHERE maker = ? AND content IN ({})"

_AT_ONCE = 500
"""Number of vectors in one query. One query for each vector takes 2.5 times as long."""

MOST_BYTES = 2**30
"""Default maximum size of the vectors in bytes: enough for 200,000 photographs with MobileNetV2."""


class VectorFile:
    """A cache of float32 vectors; a key is a maker (see `ImageVectors`) and an image's content.

    Vectors are stored bit for bit. Each write is one SQLite transaction. A damaged file is replaced
    by an empty file, because all vectors can be computed again. Several threads can use the cache
    at the same time.

    Parameters
    ----------
    path : path of the file; None for memory.
    most_bytes : maximum size of all vectors. If a write would exceed the maximum, the vectors of
        other makers are deleted. If the write still exceeds the maximum, it is skipped.
    """

    def __init__(self, path: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._connection = self._opened()

    def _opened(self) -> sqlite3.Connection:
        if self._path is None:
            connection = sqlite3.connect(":memory:", check_same_thread=False)
            connection.execute(_SCHEMA)
            self._n_bytes = 0
            return connection
        with writing(f"the vectors in {self._path}"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not _is_sound(self._path):
                self._path.unlink(missing_ok=True)
            connection = sqlite3.connect(self._path, check_same_thread=False)
            connection.execute(_SCHEMA)
            # Writes do not wait for the disk. After a power failure, damaged vectors are computed
            # again.
            connection.execute("PRAGMA synchronous = OFF")
        self._n_bytes = _n_bytes(connection)
        return connection

    def read(self, maker: str, contents: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors of ``maker`` for the ``contents`` that are in the cache."""
        found: dict[bytes, Vector] = {}
        with self._lock:
            for start in range(0, len(contents), _AT_ONCE):
                some = contents[start : start + _AT_ONCE]
                known = _KNOWN.format(", ".join("?" * len(some)))
                for content, vector, checksum in self._connection.execute(known, (maker, *some)):
                    if zlib.crc32(vector) == checksum:
                        found[content] = np.frombuffer(vector, "<f4")
        return found

    def write(self, maker: str, contents: Sequence[bytes], vectors: Vector) -> None:
        """Store ``vectors`` (n, size) of ``maker`` for n ``contents``, if there is enough space."""
        rows = vectors.astype("<f4", copy=False)
        with self._lock, writing(f"the vectors in {self._path}"), self._connection:
            if self._n_bytes + rows.nbytes > self._most_bytes:
                self._connection.execute("DELETE FROM vectors WHERE maker != ?", (maker,))
                self._n_bytes = _n_bytes(self._connection)
            if self._n_bytes + rows.nbytes > self._most_bytes:
                return
            kept = zip(contents, (row.tobytes() for row in rows), strict=True)
            self._connection.executemany(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                ((maker, content, data, zlib.crc32(data)) for content, data in kept),
            )
            self._n_bytes += rows.nbytes

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def _n_bytes(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT coalesce(sum(length(vector)), 0) FROM vectors").fetchone()
    return int(found[0])


def _is_sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        try:
            found: list[tuple[str]] = connection.execute("PRAGMA quick_check").fetchall()
        except sqlite3.OperationalError:
            raise  # the disk cannot be read or written, so a new file would not help
        except sqlite3.DatabaseError:
            return False
    return found == [("ok",)]
