"""A source in a bucket or on the web. Its files are copied, and read as local files."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath

from index_builder.datasets.image_files import HEAD_BYTES, LeftOut, is_system_file
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.folder import Folder, NamedFile
from index_builder.indexing.sources.parquet_images import ParquetImages, holds_images
from index_builder.indexing.sources.places import Places, places_in
from index_builder.indexing.sources.source import Source
from index_builder.storage import NotFetched, Storage
from index_builder.storage.urls import folder_of, in_bucket
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


OpenFile = Callable[[Path, Places], Source]
"""A function that opens a local file as a source; `Places` finds the images of the file."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A manifest, archive or table at ``url``. The file is first copied to this machine.

    The images in a manifest are downloaded just before they are decoded.

    Attributes
    ----------
    root : folder that paths in a manifest are relative to; by default, the manifest's own folder.
    open_file : function that opens the local copy.
    """

    url: str
    storage: Storage
    root: Path | str | None
    open_file: OpenFile

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the entries of the local copy.

        Raises
        ------
        SourceUnavailable : the file cannot be copied.
        DatasetError : the file is invalid.
        """
        copy = self.storage.copied(self.url, scratch / "copies")
        places = places_in(folder_of(self.url) if self.root is None else self.root)
        yield from self.open_file(copy, places).entries(scratch, left_out)


@dataclass(frozen=True, slots=True)
class BucketFolder:
    """A bucket folder at ``url`` with images, or with Parquet files that contain images.

    Images are downloaded just before they are decoded. Parquet files are first copied to this
    machine.

    Attributes
    ----------
    labelled : whether the first sub-folder in an image's path is the label.
    """

    url: str
    storage: Storage
    labelled: bool = True

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the same entries as for a local folder.

        Raises
        ------
        SourceUnavailable : the folder cannot be listed.
        """
        with closing(BucketFiles(self.storage, self.url)) as files:
            tables = files.parquet()
            if tables and holds_images(first := self._copied(tables[0], scratch)):
                rest = [self._copied(one, scratch) for one in tables[1:]]
                source: Source = ParquetImages([first, *rest], labelled=self.labelled)
            else:
                source = Folder(files.files, labelled=self.labelled)
            yield from source.entries(scratch, left_out)

    def _copied(self, url: str, scratch: Path) -> Path:
        return self.storage.copied(url, scratch / "copies")
