"""The engines of galleries: a directory is opened, described and written with its engine.

Other packages do not name an engine. They ask this module whether the gallery of a directory is in
a database, and open its changes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from model_store.gallery.files.gallery import GALLERY_FILES, FaissGallery
from model_store.gallery.index.build import IndexReport
from model_store.gallery.index.plan import IndexSettings
from model_store.gallery.live.snapshot import GallerySnapshot
from model_store.gallery.milvus.collection import (
    MILVUS_FILE,
    NO_ACCESS,
    MilvusAccess,
    MilvusDescription,
)
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.milvus.live import open_milvus
from model_store.gallery.protocol import Gallery, Part
from model_store.gallery.writable import Writable

ANY_GALLERY_FILES = (*GALLERY_FILES, MILVUS_FILE)
"""Names of all files that a bundle's gallery can have."""

DATABASE = "Milvus"
"""The name of the database engine in messages."""

DatabaseAccess = MilvusAccess
"""The address of the database engine, and the token."""

NO_DATABASE = NO_ACCESS
"""Access without an address; a gallery in a database cannot be opened with this access."""

NumberedGallery = GallerySnapshot | MilvusGallery
"""A gallery whose changes are numbered; `version` is the number of the last change."""


def open_gallery(directory: Path, access: DatabaseAccess = NO_DATABASE) -> Gallery:
    """Open the gallery that ``directory`` contains or describes.

    Raises
    ------
    BundleMismatch : the files contradict each other, or the collection in the database is wrong.
    GalleryUnavailable : the gallery is in a database, which does not answer.
    """
    if is_in_database(directory):
        return MilvusGallery(directory, access)
    return FaissGallery(directory)


def database_of(directory: Path) -> str | None:
    """Return the address of the database to which the gallery was written; None for files."""
    return MilvusDescription.load(directory).uri if is_in_database(directory) else None


def is_in_database(directory: Path) -> bool:
    """Return True if a database has the gallery of ``directory``."""
    return (directory / MILVUS_FILE).exists()


def open_changes(gallery: Gallery, folder: Path, admit: Callable[[], None]) -> Writable | None:
    """Open a gallery in a database for changes; None for a gallery in files.

    Parameters
    ----------
    folder : folder for the log of changes, if the log is a file.
    admit : function that each transaction calls before its first write, see `MilvusLive`.

    Raises
    ------
    BundleMismatch, StorageFailed : the log cannot be read, or belongs to another gallery.
    GalleryUnavailable : the database does not answer.
    """
    return open_milvus(gallery, folder, admit) if isinstance(gallery, MilvusGallery) else None


def write_parts(
    directory: Path,
    shape: tuple[int, int],
    parts: Callable[[], Iterable[Part]],
    encoder_fingerprint: str,
    settings: IndexSettings,
    database_uri: str | None,
    access: Callable[[], DatabaseAccess],
) -> None:
    """Write a gallery into a database, or into files of ``directory``.

    Parameters
    ----------
    shape : number of items, and D.
    parts : function that returns the parts of the gallery; it can be called several times.
    database_uri : address of the database; None for files.
    access : function that returns the access to the database; not called for files.

    Raises
    ------
    DatasetError : an item is too large for the database.
    GalleryUnavailable : the database does not answer.
    """
    # Imported late, because only the builder writes galleries.
    from model_store.gallery.files.writer import write_faiss_parts  # noqa: PLC0415
    from model_store.gallery.milvus.writer import write_milvus_parts  # noqa: PLC0415

    if database_uri is None:
        write_faiss_parts(directory, shape, parts(), encoder_fingerprint, settings)
        return
    write_milvus_parts(
        directory, shape, parts, encoder_fingerprint, database_uri, settings, access()
    )


def index_description(directory: Path) -> Mapping[str, Any]:
    """Describe the index of the gallery in ``directory`` for the manifest."""
    if is_in_database(directory):
        described = MilvusDescription.load(directory)
        return {"engine": "milvus", "collection": described.collection, **described.index}
    return asdict(IndexReport.load(directory))
