"""Lists the files of a folder in a bucket."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from io import BytesIO
from pathlib import PurePosixPath

from index_builder.datasets.image_files import HEAD_BYTES, LeftOut, is_system_file
from index_builder.indexing.blocks import Place
from index_builder.indexing.sources.folder import NamedFile
from index_builder.storage import NotFetched, Storage
from index_builder.storage.urls import in_bucket
from model_store.images import SUFFIXES

AHEAD = 64
"""Maximum number of files whose first bytes are downloaded at the same time."""

_PARQUET = """
SELECT name FROM files WHERE name LIKE '%.parquet' AND name NOT LIKE ? AND name LIKE ? ORDER BY name
"""
_IN_ORDER = """
SELECT name, size, changed_ns, version FROM files ORDER BY replace(name, '/', char(1))
"""
"""SQL that sorts the files folder by folder, as on a disk. A slash is sorted before all other
characters."""


class BucketFiles:
    """The files below ``folder`` in a bucket, in the same order as in a local folder.

    A bucket does not list its files in this order, so a temporary SQLite table sorts the files. If
    the name of a file has no image suffix, the first bytes of the file are downloaded.

    Raises
    ------
    SourceUnavailable : the bucket cannot be listed.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        bucket, key = in_bucket(folder)
        prefix = f"{key.strip('/')}/" if key.strip("/") else ""
        self._url = f"{bucket}/{prefix}"
        self._storage = storage
        self._table = sqlite3.connect("")  # a temporary file that SQLite deletes
        self._table.execute(
            "CREATE TABLE files (name TEXT, size INTEGER, changed_ns INTEGER, version TEXT)"
        )
        self._table.executemany(
            "INSERT INTO files VALUES (?, ?, ?, ?)",
            (
                (one.key.removeprefix(prefix), one.size, one.changed_ns, one.version)
                for one in storage.listed(folder)
                if not one.key.endswith("/")  # this is the key of an empty folder
            ),
        )

    def files(self, _left_out: LeftOut) -> Iterator[NamedFile]:
        """Yield the files, sorted by name."""
        waiting: deque[NamedFile] = deque()
        for name, size, changed_ns, version in self._table.execute(_IN_ORDER):
            place = partial(Place, self._url + name, None, size, changed_ns, None, version)
            waiting.append(NamedFile(name, place, self._head(name, version)))
            if len(waiting) >= AHEAD:
                yield waiting.popleft()
        yield from waiting

    def _head(self, name: str, version: str) -> partial[bytes]:
        """Start to download the first bytes of a file, if ``name`` has no image suffix."""
        if is_system_file(name) or PurePosixPath(name).suffix.lower() in SUFFIXES:
            return partial(bytes)
        file = BytesIO()
        begun = self._storage.fetch(self._url + name, file, HEAD_BYTES, version)
        return partial(_fetched, file, begun)

    def parquet(self) -> list[str]:
        """Return the URLs of the data set's Parquet files, by the same rule as `parquet_files`."""
        for patterns in (("%/%", "%"), ("data/%/%", "data/%")):
            names = [name for (name,) in self._table.execute(_PARQUET, patterns)]
            if found := [self._url + name for name in names if not is_system_file(name)]:
                return found
        return []

    def close(self) -> None:
        """Delete the temporary table."""
        self._table.close()


def _fetched(file: BytesIO, begun: Future[None]) -> bytes:
    try:
        begun.result()
    except NotFetched as error:
        raise OSError(str(error)) from error
    return file.getvalue()
