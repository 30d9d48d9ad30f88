"""Chooses the reader for a path or a URL; remote files are copied and read as local files."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath

from index_builder.datasets.image_files import HEAD_BYTES, LeftOut, is_system_file
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.documents import CocoAnnotations, IiifManifest, is_iiif
from index_builder.indexing.sources.places import (
    Folder,
    NamedFile,
    Places,
    Source,
    local_files,
    places_in,
)
from index_builder.indexing.sources.tables import (
    ParquetImages,
    VectorSource,
    holds_images,
    parquet_files,
)
from index_builder.storage import NotFetched, Storage, is_url
from index_builder.storage.urls import BUCKETS, file_name, folder_of, in_bucket, scheme_of
from index_builder.vectors.table import VECTOR_SUFFIXES, holds_vectors, open_table
from model_store.errors import DatasetError, UsageError
from model_store.images import SUFFIXES

from .archive import ARCHIVE_SUFFIXES, Archive
from .manifest import COLUMNS, MANIFEST_SUFFIXES, ImageManifest

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


JSON_SUFFIX, PARQUET_SUFFIX = ".json", ".parquet"
_SUFFIXES = (*ARCHIVE_SUFFIXES, *MANIFEST_SUFFIXES, JSON_SUFFIX)
_NAMED = (*_SUFFIXES, *VECTOR_SUFFIXES)


def open_source(
    source: Path | str,
    root: Path | str | None = None,
    *,
    labelled: bool = True,
    storage: Storage | None = None,
    texts: Collection[str] = COLUMNS,
) -> Source:
    """Open the source at a path or URL. The name and the content of the file determine the format.

    Formats: a folder of images, or of Parquet files with images; a manifest in CSV, JSONL or
    Parquet; COCO annotations; an IIIF manifest; a tar of images. Every source can be in a bucket,
    and every source except a folder can be on the web. The download begins when the entries are
    read.

    Parameters
    ----------
    root : folder or URL that must contain all images; paths in a manifest are relative to it. By
        default, the manifest's own folder.
    labelled : if True, labels define the classes; if False, the labels of a manifest are stored as
        metadata. In a folder or an archive, the label of an image is the first sub-folder in the
        path.
    storage : reads remote files.
    texts : columns of a manifest that are always read as text; see `lines_of`.

    Raises
    ------
    DatasetError : the path does not exist, or its format is unknown.
    UsageError : ``root`` is given, but the source itself contains its images.
    """
    opened = _opened(source, root, storage or Storage(), labelled=labelled, texts=texts)
    if root is not None and _contains_images(opened):
        raise UsageError(
            f"--root applies to a local folder and to a manifest, but {source} contains its "
            "images. Remove --root."
        )
    return opened


def _opened(
    source: Path | str,
    root: Path | str | None,
    storage: Storage,
    *,
    labelled: bool,
    texts: Collection[str],
) -> Source:
    if is_url(root):
        storage.name(str(root), is_source=False)
    if is_url(source):
        url = str(source)
        storage.name(url, is_source=True)
        if scheme_of(url) in BUCKETS and not _ends_with(file_name(url), _SUFFIXES):
            return BucketFolder(url, storage, labelled)
        opens = partial(_open_file, labelled=labelled, texts=texts)
        return RemoteFile(url, storage, root, opens)
    path = Path(source).expanduser().absolute()
    if path.is_dir() and (files := parquet_files(path)) and holds_images(files[0]):
        return ParquetImages(files, labelled=labelled, folder=path)
    if path.is_dir():
        return Folder(partial(local_files, path, Path(root or path)), labelled=labelled)
    if not path.is_file():
        raise DatasetError(
            f"{path} does not exist. Name a folder of images, a manifest or an archive."
        )
    return _open_file(path, places_in(root or path.parent), labelled=labelled, texts=texts)


def _contains_images(source: Source) -> bool:
    """Return whether a source contains its images, so that they have no base folder."""
    if isinstance(source, RemoteFile):
        return source.url.partition("?")[0].endswith(ARCHIVE_SUFFIXES)
    return isinstance(source, Archive | ParquetImages | BucketFolder)


def is_of_vectors(path: Path) -> bool:
    """Return whether a file is a table of vectors without images."""
    is_parquet = _ends_with(path.name, (PARQUET_SUFFIX,))
    return holds_vectors(path) and not (is_parquet and holds_images(path))


def open_vectors(path: Path, items: Path | None, *, labelled: bool = True) -> VectorSource:
    """Open the table of vectors at ``path``.

    Parameters
    ----------
    items : manifest with the fields of each row; None if the table has the fields.
    labelled : see `open_source`.

    Raises
    ------
    DatasetError : the file is not a table of vectors.
    """
    path = path.expanduser().absolute()
    return VectorSource(open_table(path), items, labelled=labelled)


def name_of(source: Path | str) -> str:
    """Return the default name of the gallery of a source."""
    name = file_name(str(source)) if is_url(source) else Path(source).expanduser().absolute().name
    return next((name[: -len(one)] for one in _NAMED if _ends_with(name, (one,))), name)


_ADVICE: Mapping[tuple[str, ...], str] = {
    (".zip", ".rar", ".7z"): "Unpack it, and name the folder with its images.",
    (".xlsx", ".xls", ".ods", ".tsv", ".txt"): "Export it as CSV, with the columns path and label.",
    tuple(SUFFIXES): "Name the folder that contains the image.",
}
"""What to do with files that are no source, by their suffixes."""


def _open_file(path: Path, places: Places, *, labelled: bool, texts: Collection[str]) -> Source:
    """Open a local file as a source; ``places`` finds the images of the file."""
    if _ends_with(path.name, ARCHIVE_SUFFIXES):
        return Archive(path, labelled=labelled)
    if _ends_with(path.name, (PARQUET_SUFFIX,)) and holds_images(path):
        return ParquetImages([path], labelled=labelled)
    if _ends_with(path.name, MANIFEST_SUFFIXES) and not holds_vectors(path):
        return ImageManifest(path, places, labelled, texts)
    if _ends_with(path.name, VECTOR_SUFFIXES):
        raise DatasetError(
            f"{path.name} holds vectors, not images. To index vectors, use --encoder-name NAME "
            "instead of --encoder. To build with vectors, use --vectors instead of --images."
        )
    # On a server, an IIIF manifest often has no suffix .json.
    if _ends_with(path.name, (JSON_SUFFIX,)) or _begins_like_json(path):
        return JsonFile(path, places, labelled)
    wanted = ", ".join([*MANIFEST_SUFFIXES, JSON_SUFFIX, *ARCHIVE_SUFFIXES])
    advice = "".join(f" {one}" for names, one in _ADVICE.items() if _ends_with(path.name, names))
    raise DatasetError(f"{path.name} is neither a folder nor one of {wanted}.{advice}")


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A JSON file: an IIIF manifest or COCO annotations. The content determines the format."""

    path: Path
    places: Places
    labelled: bool

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield the entries of the file.

        Raises
        ------
        DatasetError : the file is not JSON, or is neither an IIIF manifest nor a COCO file.
        """
        name = self.path.name
        try:
            content = json.loads(self.path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{name} is not JSON ({error}).") from error
        source: Source = CocoAnnotations(name, content, self.places, self.labelled)
        if is_iiif(content):
            source = IiifManifest(name, content, self.labelled)
        yield from source.entries(scratch, left_out)


def _begins_like_json(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def _ends_with(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes)
