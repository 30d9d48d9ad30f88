"""The engines of galleries: a directory is opened, described and written with its engine.

Other packages do not name an engine. They ask this module whether the gallery of a directory is in
a database, and open its changes here. The engines are the entries of `_ENGINES`. The modules of an
engine are imported on first use, because they are slow to import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_store.errors import ConfigError
from model_store.gallery.milvus import collection as milvus
from model_store.gallery.milvus.collection import MilvusAccess
from model_store.gallery.postgres import database as postgres
from model_store.gallery.postgres.database import PostgresAccess
from model_store.gallery.protocol import Gallery, GalleryContent, Writable
from model_store.installation import how_to_install

if TYPE_CHECKING:
    from model_store.gallery.milvus.gallery import MilvusGallery
    from model_store.gallery.postgres.gallery import PostgresGallery


@dataclass(frozen=True, slots=True)
class DatabaseAccess:
    """The addresses that the operator has set, with secrets and timeouts; None for no address."""

    milvus: MilvusAccess = field(default_factory=MilvusAccess)
    postgres: PostgresAccess = field(default_factory=PostgresAccess)

    @classmethod
    def of_environment(cls, named: str | None, timeout_s: float) -> DatabaseAccess:
        """Return the access that the environment describes, with the variables of the service.

        Parameters
        ----------
        named : address from a configuration; a variable overrides this address.

        Raises
        ------
        ConfigError : a variable is not an address.
        """
        in_postgres = named is not None and named.startswith(_beginnings(postgres.SCHEMES))
        return cls(
            MilvusAccess.of_environment(None if in_postgres else named, timeout_s),
            PostgresAccess.of_environment(named if in_postgres else None, timeout_s),
        )


ACCESS_VARIABLES = ("milvus_log", "milvus_token", "milvus_uri", "postgres_uri")
"""The variables that `DatabaseAccess.of_environment` reads, without ``VOUCH_``, in lower case."""

NO_DATABASE = DatabaseAccess()
"""Access without an address; a gallery in a database cannot be opened with this access."""

Admit = Callable[[], None]
"""Function that each transaction calls before its first write. It raises an error if the gallery no
longer accepts writes."""


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
    open_changes : function that opens a gallery for changes; None for a gallery of another engine.
        See `open_changes`.
    write : function that writes a gallery to an address.
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
    open_changes: Callable[[Gallery, Path, Admit], Writable | None]
    write: Callable[[GalleryContent, str, DatabaseAccess], object]

    def require_client(self) -> None:
        """Raise `ConfigError` if the client of the database is not installed."""
        if find_spec(self.module) is None:
            raise ConfigError(
                f"The client of {self.name} is not installed. " + how_to_install(self.extra)
            )


def _milvus_gallery(directory: Path, access: DatabaseAccess) -> MilvusGallery:
    from model_store.gallery.milvus.gallery import MilvusGallery  # noqa: PLC0415 - slow

    return MilvusGallery(directory, access.milvus)


def _milvus_changes(gallery: Gallery, folder: Path, admit: Admit) -> Writable | None:
    from model_store.gallery.milvus.gallery import MilvusGallery  # noqa: PLC0415 - slow
    from model_store.gallery.milvus.live import open_milvus  # noqa: PLC0415

    return open_milvus(gallery, folder, admit) if isinstance(gallery, MilvusGallery) else None


def _write_to_milvus(new: GalleryContent, uri: str, access: DatabaseAccess) -> object:
    from model_store.gallery.milvus.writer import write_to_milvus  # noqa: PLC0415 - slow

    return write_to_milvus(new, uri, access.milvus)


def _postgres_gallery(directory: Path, access: DatabaseAccess) -> PostgresGallery:
    from model_store.gallery.postgres.gallery import PostgresGallery  # noqa: PLC0415 - slow

    return PostgresGallery(directory, access.postgres)


def _postgres_changes(gallery: Gallery, _: Path, admit: Admit) -> Writable | None:
    from model_store.gallery.postgres.gallery import PostgresGallery  # noqa: PLC0415 - slow
    from model_store.gallery.postgres.live import PostgresLive  # noqa: PLC0415

    return PostgresLive(gallery, admit) if isinstance(gallery, PostgresGallery) else None


def _write_to_postgres(new: GalleryContent, uri: str, access: DatabaseAccess) -> object:
    from model_store.gallery.postgres.writer import write_to_postgres  # noqa: PLC0415 - slow

    return write_to_postgres(new, uri, access.postgres)


_MILVUS = DatabaseEngine(
    name="Milvus",
    file=milvus.MILVUS_FILE,
    extra="milvus",
    module="pymilvus",
    index_kinds=("flat", "hnsw", "ivf_sq8"),
    has_previews=False,
    back_up="Stop the services and Milvus, then copy Milvus's data and the directory of bundles.",
    require_address=milvus.require_bare,
    open=_milvus_gallery,
    open_changes=_milvus_changes,
    write=_write_to_milvus,
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
    open=_postgres_gallery,
    open_changes=_postgres_changes,
    write=_write_to_postgres,
)
_ENGINES = (_MILVUS, _POSTGRES)

DATABASE_FILES = tuple(engine.file for engine in _ENGINES)
"""Names of the files that describe galleries in databases."""

DATABASE_CLIENTS = {engine.module: engine.extra for engine in _ENGINES}
"""Module of each client → the optional dependency that has it."""


def engine_at(uri: str) -> DatabaseEngine:
    """Return the engine of a database's address.

    Raises
    ------
    ConfigError : no engine has addresses of this kind. The message has no password.
    """
    if uri.startswith(_beginnings(postgres.SCHEMES)):
        return _POSTGRES
    if uri.startswith(_beginnings(milvus.SCHEMES)) or uri.endswith(".db"):
        return _MILVUS
    beginning = uri.partition("://")[0].rpartition("@")[2]
    raise ConfigError(
        f"The address of the database begins with {beginning!r}. Wanted: "
        f"{' or '.join(_beginnings(postgres.SCHEMES))} for PostgreSQL, or "
        f"{', '.join(_beginnings(milvus.SCHEMES))} or a file that ends in .db for Milvus."
    )


def _beginnings(schemes: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{scheme}://" for scheme in schemes)


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
    from model_store.gallery.files.gallery import FaissGallery  # noqa: PLC0415 - slow

    engine = engine_of(directory)
    return FaissGallery(directory) if engine is None else engine.open(directory, access)


def open_changes(gallery: Gallery, folder: Path, admit: Admit) -> Writable | None:
    """Open a gallery in a database for changes; None for a gallery in files.

    Parameters
    ----------
    folder : folder for the log of changes, if the log is a file.

    Raises
    ------
    BundleMismatch, StorageFailed : the log cannot be read, or belongs to another gallery.
    GalleryUnavailable : the database does not answer.
    """
    opened = (engine.open_changes(gallery, folder, admit) for engine in _ENGINES)
    return next((changes for changes in opened if changes is not None), None)


def write_gallery(
    new: GalleryContent, database_uri: str | None, access: Callable[[], DatabaseAccess]
) -> None:
    """Write a gallery into a database, or into files of its directory.

    Parameters
    ----------
    database_uri : address of the database; None for files.
    access : function that returns the access to the database; not called for files.

    Raises
    ------
    DatasetError : the database cannot store an item.
    GalleryUnavailable : the database does not answer.
    """
    from model_store.gallery.files.gallery import write_faiss_parts  # noqa: PLC0415 - slow

    if database_uri is not None:
        engine_at(database_uri).write(new, database_uri, access())
        return
    content = new.directory, new.shape, new.parts(), new.encoder_fingerprint
    write_faiss_parts(*content, new.settings)


def index_description(directory: Path) -> Mapping[str, Any]:
    """Describe the index of the gallery in ``directory`` for the manifest."""
    from model_store.gallery.index.build import IndexReport  # noqa: PLC0415 - slow

    engine = engine_of(directory)
    if engine is None:
        return asdict(IndexReport.load(directory))
    described = _description(directory, engine)
    name = {key: described[key] for key in ("collection", "schema") if key in described}
    return {"engine": engine.name.lower(), **name, **described["index"]}


def _description(directory: Path, engine: DatabaseEngine) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((directory / engine.file).read_text(encoding="utf-8"))
    return described
