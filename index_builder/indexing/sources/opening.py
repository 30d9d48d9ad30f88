"""Chooses the reader for a path or a URL."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from index_builder.datasets.image_files import LeftOut
from index_builder.indexing.blocks import Entry
from index_builder.indexing.sources.archive import ARCHIVE_SUFFIXES, Archive
from index_builder.indexing.sources.coco import CocoAnnotations
from index_builder.indexing.sources.folder import Folder, local_files
from index_builder.indexing.sources.iiif import IiifManifest, is_iiif
from index_builder.indexing.sources.manifest import COLUMNS, MANIFEST_SUFFIXES, ImageManifest
from index_builder.indexing.sources.parquet_images import (
    ParquetImages,
    holds_images,
    parquet_files,
)
from index_builder.indexing.sources.places import Places, places_in
from index_builder.indexing.sources.remote import BucketFolder, RemoteFile
from index_builder.indexing.sources.source import Source
from index_builder.indexing.sources.vectors import VectorSource
from index_builder.storage import Storage, is_url
from index_builder.storage.urls import BUCKETS, file_name, scheme_of
from index_builder.vectors.table import VECTOR_SUFFIXES, holds_vectors, open_table
from model_store.errors import DatasetError

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
    """
    storage = storage or Storage()
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


def is_of_vectors(path: Path) -> bool:
    """Return whether a file is a table of vectors without images."""
    is_parquet = _ends_with(path.name, (PARQUET_SUFFIX,)) and path.is_file()
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
            f"{path.name} holds vectors, not images. Use --encoder-name NAME instead of --encoder "
            "to name the encoder of the vectors."
        )
    # On a server, an IIIF manifest often has no suffix .json.
    if _ends_with(path.name, (JSON_SUFFIX,)) or _begins_like_json(path):
        return JsonFile(path, places, labelled)
    wanted = ", ".join([*MANIFEST_SUFFIXES, JSON_SUFFIX, *ARCHIVE_SUFFIXES])
    raise DatasetError(f"{path.name} is neither a folder nor one of {wanted}.")


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
