"""The engines of galleries: a directory is opened, described and written with its engine.

Other packages do not name an engine. They ask this module whether the gallery of a directory is in
a database, and open its changes here. The engines are the entries of `_ENGINES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from model_store.errors import ConfigError
from model_store.gallery.access import NO_DATABASE, DatabaseAccess, is_postgres
from model_store.gallery.files.gallery import GALLERY_FILES, FaissGallery
from model_store.gallery.index.build import IndexReport
from model_store.gallery.index.plan import IndexSettings
from model_store.gallery.live.snapshot import GallerySnapshot
from model_store.gallery.milvus import collection as milvus
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.milvus.live import open_milvus
from model_store.gallery.postgres import database as postgres
from model_store.gallery.postgres.gallery import PostgresGallery
from model_store.gallery.postgres.live import open_postgres
from model_store.gallery.protocol import Gallery, Part
from model_store.gallery.writable import Writable
from model_store.installation import how_to_install


@dataclass(frozen=True, slots=True)
class DatabaseEngine:
    """A database that can store galleries.

    Attributes
    ----------
    name : name of the database in messages.
    file : name of the file in a bundle that describes the gallery.
    extra, module : optional dependency that has the client, and the client's module.
    index_kinds : kinds of index that the engine supports.
    has_previews : whether the engine stores previews.
    back_up : how an operator backs up a gallery, as a sentence.
    require_address : function that raises `ConfigError` for an address that a bundle must not have.
    open : function that opens the gallery of a directory.
    """

    name: str
    file: str
    extra: str
    module: str
    index_kinds: tuple[str, ...]
    has_previews: bool
    back_up: str
    require_address: Callable[[str], str]
    open: Callable[[Path, DatabaseAccess], Gallery]

    def require_client(self) -> None:
        """Raise `ConfigError` if the client of the database is not installed."""
        if find_spec(self.module) is None:
            raise ConfigError(
                f"The client of {self.name} is not installed. " + how_to_install(self.extra)
            )


_MILVUS = DatabaseEngine(
    name="Milvus",
    file=milvus.MILVUS_FILE,
    extra="milvus",
    module="pymilvus",
    index_kinds=("flat", "hnsw", "ivf_sq8"),
    has_previews=False,
    back_up="Stop the services and Milvus, then copy Milvus's data and the directory of bundles.",
    require_address=milvus.require_bare,
    open=lambda directory, access: MilvusGallery(directory, access.milvus),
)
_POSTGRES = DatabaseEngine(
    name="PostgreSQL",
    file=postgres.POSTGRES_FILE,
    extra="postgres",
    module="psycopg",
    index_kinds=("flat", "hnsw"),
    has_previews=True,
    back_up="Back up the database with pg_dump, and copy the directory of bundles.",
    require_address=postgres.require_bare,
    open=lambda directory, access: PostgresGallery(directory, access.postgres),
)
_ENGINES = (_MILVUS, _POSTGRES)

ANY_GALLERY_FILES = (*GALLERY_FILES, *(engine.file for engine in _ENGINES))
"""Names of all files that a bundle's gallery can have."""

NumberedGallery = GallerySnapshot | MilvusGallery | PostgresGallery
"""A gallery whose changes are numbered; `version` is the number of the last change."""


def engine_at(uri: str) -> DatabaseEngine:
    """Return the engine of a database's address."""
    return _POSTGRES if is_postgres(uri) else _MILVUS


def engine_of(directory: Path) -> DatabaseEngine | None:
    """Return the engine that has the gallery of ``directory``; None for files."""
    for engine in _ENGINES:
        if (directory / engine.file).exists():
            return engine
    return None


def is_in_database(directory: Path) -> bool:
    """Return True if a database has the gallery of ``directory``."""
    return engine_of(directory) is not None


def database_of(directory: Path) -> str | None:
    """Return the address of the database to which the gallery was written; None for files."""
    engine = engine_of(directory)
    return None if engine is None else str(_description(directory, engine)["uri"])


def open_gallery(directory: Path, access: DatabaseAccess = NO_DATABASE) -> Gallery:
    """Open the gallery that ``directory`` contains or describes.

    Raises
    ------
    BundleMismatch : the files contradict each other, or the gallery in the database is wrong.
    GalleryUnavailable : the gallery is in a database, which does not answer.
    """
    engine = engine_of(directory)
    return FaissGallery(directory) if engine is None else engine.open(directory, access)


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
    match gallery:
        case MilvusGallery():
            return open_milvus(gallery, folder, admit)
        case PostgresGallery():
            return open_postgres(gallery, admit)
    return None


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
    DatasetError : the database cannot store an item.
    GalleryUnavailable : the database does not answer.
    """
    # Imported late, because only the builder writes galleries.
    from model_store.gallery.files.writer import write_faiss_parts  # noqa: PLC0415
    from model_store.gallery.milvus.writer import write_milvus_parts  # noqa: PLC0415
    from model_store.gallery.postgres.writer import write_postgres_parts  # noqa: PLC0415

    if database_uri is None:
        write_faiss_parts(directory, shape, parts(), encoder_fingerprint, settings)
        return
    given = (directory, shape, parts, encoder_fingerprint, database_uri, settings)
    if engine_at(database_uri) is _POSTGRES:
        write_postgres_parts(*given, access().postgres)
    else:
        write_milvus_parts(*given, access().milvus)


def index_description(directory: Path) -> Mapping[str, Any]:
    """Describe the index of the gallery in ``directory`` for the manifest."""
    engine = engine_of(directory)
    if engine is None:
        return asdict(IndexReport.load(directory))
    described = _description(directory, engine)
    name = {key: described[key] for key in ("collection", "schema") if key in described}
    return {"engine": engine.name.lower(), **name, **described["index"]}


def _description(directory: Path, engine: DatabaseEngine) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((directory / engine.file).read_text(encoding="utf-8"))
    return described
