"""The files of a folder in a bucket."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial

from index_builder.indexing.blocks import Place
from index_builder.indexing.sources.folder import NamedFile
from index_builder.storage import Storage
from index_builder.storage.urls import in_bucket

_PARQUET = """
SELECT name FROM files WHERE name LIKE '%.parquet' AND name NOT LIKE ? AND name LIKE ? ORDER BY name
"""
_IN_ORDER = """
SELECT name, size, changed_ns, version FROM files ORDER BY replace(name, '/', char(1))
"""
"""Folder by folder, as a disk is read: a slash comes before all that names are made of."""


class BucketFiles:
    """The files below ``folder`` in a bucket, in the order in which a folder on a disk is read.

    A bucket gives them in an order of its own, and a million of them: they are sorted in a file.

    Raises
    ------
    SourceUnavailable : the bucket cannot be listed.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        bucket, key = in_bucket(folder)
        prefix = f"{key.strip('/')}/" if key.strip("/") else ""
        self._url = f"{bucket}/{prefix}"
        self._table = sqlite3.connect("")  # a file that nobody else sees, away when it is closed
        self._table.execute(
            "CREATE TABLE files (name TEXT, size INTEGER, changed_ns INTEGER, version TEXT)"
        )
        self._table.executemany(
            "INSERT INTO files VALUES (?, ?, ?, ?)",
            (
                (one.key.removeprefix(prefix), one.size, one.changed_ns, one.version)
                for one in storage.listed(folder)
                if not one.key.endswith("/")  # which consoles put where a folder is made
            ),
        )

    def __iter__(self) -> Iterator[NamedFile]:
        for name, size, changed_ns, version in self._table.execute(_IN_ORDER):
            yield name, partial(Place, self._url + name, None, size, changed_ns, None, version)

    def parquet(self) -> list[str]:
        """Return the URLs of the Parquet files of a data set, as `parquet_files` finds them."""
        for patterns in (("%/%", "%"), ("data/%/%", "data/%")):
            if found := self._table.execute(_PARQUET, patterns).fetchall():
                return [self._url + name for (name,) in found]
        return []

    def close(self) -> None:
        """Remove the list."""
        self._table.close()
