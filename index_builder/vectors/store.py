"""Vectors of images in one small file: what was computed of an image is not computed again."""

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

_KNOWN = "SELECT vector, checksum FROM vectors WHERE maker = ? AND content = ?"

MOST_BYTES = 2**30
"""Bytes of vectors that are kept: 200,000 photographs through MobileNetV2 are a gigabyte."""


class VectorFile:
    """Float32 vectors by who made them and what the image is, kept to the last bit.

    Each write is one transaction of SQLite's: it is atomic. A file that is
    damaged is begun anew, since everything in it can be computed again. Safe from several threads.

    Parameters
    ----------
    path : of the file; None keeps them in memory.
    most_bytes : of all vectors. Where they are too many, those of other makers go; what comes after
        the file is full of one maker's is not kept.
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
            # What a power cut damages is computed again: no write waits for the disk.
            connection.execute("PRAGMA synchronous = OFF")
        self._n_bytes = _n_bytes(connection)
        return connection

    def read(self, maker: str, contents: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return what ``maker`` made of ``contents``, if it is known."""
        found: dict[bytes, Vector] = {}
        with self._lock:
            for content in contents:
                row = self._connection.execute(_KNOWN, (maker, content)).fetchone()
                if row is not None and zlib.crc32(row[0]) == row[1]:
                    found[content] = np.frombuffer(row[0], "<f4")
        return found

    def write(self, maker: str, contents: Sequence[bytes], vectors: Vector) -> None:
        """Keep ``vectors`` (n, size) that ``maker`` made of n ``contents``, as far as they fit."""
        rows = vectors.astype("<f4", copy=False)
        with self._lock, self._connection, writing(f"the vectors in {self._path}"):
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
            raise  # a disk that cannot be read or written, where another file would fare no better
        except sqlite3.DatabaseError:
            return False
    return found == [("ok",)]
