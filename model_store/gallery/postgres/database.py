"""A gallery in PostgreSQL: its address, its tables, and the connections to them.

Each gallery has a separate schema with these tables:

::

    items     a row for each state of an item; the content of a row never changes.
              row       0, 1, … in the order of the ids when the gallery is built; each change that
                        writes an item adds a row
              born      number of the change that wrote the row; 0 for the build
              died      number of the change that replaced or deleted the item; null before
    labels    the distinct labels, with their codes and the number of current items
    state     one row: the number of the last change, and counts
    changed   the ids that changes have added, replaced or deleted
    commits   the time of each change; old rows are deleted by this time
    receipts  the results of requests that can be sent again

A row is visible in the state after change v if born ≤ v and (died is null or died > v). So readers
need no lock, and a reader of an old state finds what it found before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import (
    SEE_LOG,
    BundleMismatch,
    ConfigError,
    DatasetError,
    GalleryUnavailable,
)
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.protocol import NewItem, stored_vector
from model_store.gallery.remote import (
    BUSY_S,
    CHECK_S,
    Availability,
    Description,
    import_client,
    limited,
    session_options,
    takes_connections,
    write_error,
)
from model_store.programs import variable
from model_store.text_values import require_no_user, split_address

POSTGRES_FILE = "postgres.json"

SCHEMES = ("postgresql", "postgres")

MOST_CONNECTIONS = 16
"""Maximum number of connections of one process."""

_LEAST_RELEASE = 150_000
_LEAST_PGVECTOR = (0, 8)


@dataclass(frozen=True, slots=True)
class PostgresAccess:
    """The address of a PostgreSQL database.

    Attributes
    ----------
    uri : ``postgresql://user:password@host/database``; None if the operator has set none. The
        address in a bundle is never used, because a third party may have built the bundle.
    timeout_s : seconds to wait for an answer.
    """

    uri: str | None = field(default=None, repr=False)
    timeout_s: float = 5.0

    @classmethod
    def of_environment(cls, named: str | None, timeout_s: float) -> PostgresAccess:
        """Return the access that ``VOUCH_POSTGRES_URI`` describes; else of the address ``named``.

        The variable can be a file, see `model_store.programs.variable`.

        Raises
        ------
        ConfigError : the variable is not an address. The message does not contain the value, which
            may contain a password.
        """
        uri = variable("VOUCH_POSTGRES_URI")
        try:
            if uri is not None:
                check_address(uri)
        except ValueError as error:
            raise ConfigError(f"VOUCH_POSTGRES_URI {error}.") from None
        return cls(uri or named, timeout_s)


def check_address(uri: str) -> None:
    """Raise `ValueError` if ``uri`` is not the address of a PostgreSQL database."""
    split_address(uri, SCHEMES)


def require_bare(uri: str) -> str:
    """Refuse an address with a user or password, because the bundle would contain it.

    Raises
    ------
    ConfigError
    """
    try:
        require_no_user(split_address(uri, SCHEMES), "VOUCH_POSTGRES_URI")
    except ValueError as error:
        raise ConfigError(f"The address of PostgreSQL {error}.") from None
    return uri


NO_ACCESS = PostgresAccess()


@dataclass(frozen=True, kw_only=True)
class PostgresDescription(Description):
    """A bundle's description of its gallery in PostgreSQL.

    Attributes
    ----------
    schema : name of the gallery's schema; see `write_to_postgres`.
    preview_side : longest side of the previews in pixels; None without previews.
    fields : names of the fields that `PostgresGallery.facets` describes.
    """

    file = POSTGRES_FILE
    library = "pgvector"
    schema: str
    preview_side: int | None
    fields: Sequence[str]


class Connections:
    """The connections of a process to the schema of one gallery; thread-safe.

    Parameters
    ----------
    schema : name of the schema.
    efforts : settings of pgvector for all searches, for example ``hnsw.ef_search``.

    Raises
    ------
    ConfigError : no address is set, psycopg is not installed, or the release of PostgreSQL or of
        pgvector is too old.
    GalleryUnavailable : PostgreSQL does not answer.
    """

    def __init__(
        self, schema: str, access: PostgresAccess, efforts: Mapping[str, int] | None = None
    ) -> None:
        if access.uri is None:
            raise ConfigError(
                "The gallery is stored in PostgreSQL, and no address of PostgreSQL is set. Set "
                "VOUCH_POSTGRES_URI. The address in a bundle is not used, because a third party "
                "may have written it."
            )
        self._psycopg = client()
        self.schema, self._access, self._efforts = schema, access, dict(efforts or {})
        self._availability = Availability("PostgreSQL", self._check, self._is_reachable)
        pools = import_module("psycopg_pool")
        self._pool = pools.ConnectionPool(
            access.uri,
            kwargs=connection_options(access, f"{schema},public"),
            connection_class=limited(access.timeout_s),
            min_size=1,
            max_size=MOST_CONNECTIONS,
            timeout=access.timeout_s,
            configure=self._configure,
            check=pools.ConnectionPool.check_connection,
            open=False,
            name=schema,
        )
        with self._answering():
            with self._psycopg.connect(
                access.uri, **connection_options(access, f"{schema},public")
            ) as connection:
                require_release(connection)
            self._pool.open()

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Borrow a connection; each statement is a transaction.

        Raises
        ------
        GalleryUnavailable : PostgreSQL does not answer, or the user has no permission.
        BundleMismatch : the database has no such gallery.
        """
        with self._answering(), self._pool.connection() as connection:
            yield connection

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with ``%s`` for each value; see `connection`."""
        with self.connection() as connection:
            found: list[tuple[Any, ...]] = connection.execute(
                statement, values, binary=True
            ).fetchall()
            return found

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Open a transaction that writes; after an error, none of its writes are kept.

        Raises
        ------
        StorageBusy : other writers have had the lock for `BUSY_S`.
        StorageFull : the disk of PostgreSQL is full.
        WriteRefused : the database user has no permission to write, or the database is read-only.
        GalleryUnavailable : PostgreSQL does not answer. If the answer to the commit is lost, it is
            unknown whether the writes were kept.
        """
        try:
            with self.connection() as connection, connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {int(BUSY_S * 1000)}")
                yield connection
        except GalleryUnavailable as error:
            refused = write_error(error.__cause__, f"the schema {self.schema} in PostgreSQL")
            if refused is not None:
                raise refused from error
            raise

    def close(self) -> None:
        """Close the connections."""
        self._availability.close()
        self._pool.close()

    def _configure(self, connection: Any) -> None:  # noqa: ANN401 - psycopg is imported late
        import_module("pgvector.psycopg").register_vector(connection)
        for name, value in self._efforts.items():
            connection.execute(f"SET {name} = {int(value)}")
        if self._efforts:
            connection.execute("SET hnsw.iterative_scan = strict_order")

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Convert errors of PostgreSQL; the new errors do not contain its address."""
        number = self._availability.begin()
        if number is None:
            raise GalleryUnavailable(_UNAVAILABLE)
        errors = self._psycopg.errors
        try:
            yield
        except errors.InsufficientPrivilege as error:
            raise GalleryUnavailable(self._forbidden()) from error
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            if self._is_hidden():
                raise GalleryUnavailable(self._forbidden()) from error
            raise BundleMismatch(
                f"PostgreSQL has no gallery {self.schema!r}. Run `vouch-build index` with this "
                "database, or set VOUCH_POSTGRES_URI to the database that has the gallery."
            ) from error
        except self._psycopg.Error as error:
            if isinstance(error, import_module("psycopg_pool").PoolTimeout):
                self._availability.check()  # else all connections are in use
            elif self._is_gone(error):
                self._availability.fail(type(error).__name__)
            raise GalleryUnavailable(_UNAVAILABLE) from error
        else:
            self._availability.answered()
        finally:
            self._availability.end(number)

    def _is_hidden(self) -> bool:
        """Return whether the schema exists, but the user may not use it.

        PostgreSQL then finds no table, as if the schema did not exist.
        """
        with suppress(self._psycopg.Error), self._pool.connection() as connection:
            return bool(
                connection.execute(
                    "SELECT 1 FROM pg_namespace "
                    "WHERE nspname = %s AND NOT has_schema_privilege(oid, 'USAGE')",
                    [self.schema],
                ).fetchone()
            )
        return False

    def _forbidden(self) -> str:
        return (
            f"The service has no permission to read the schema {self.schema} in PostgreSQL. Grant "
            "its database user USAGE on the schema, and SELECT on its tables."
        )

    def _is_gone(self, error: Exception) -> bool:
        """Return whether the server did not answer; False if it answered with an error."""
        errors = self._psycopg.errors
        if isinstance(error, errors.AdminShutdown | errors.CannotConnectNow):
            return True
        return isinstance(error, self._psycopg.OperationalError) and error.sqlstate is None

    def _check(self) -> None:
        access = replace(self._access, timeout_s=CHECK_S / 2)
        with limited(access.timeout_s).connect(
            access.uri, **connection_options(access, "")
        ) as connection:
            connection.execute("SELECT 1")

    def _is_reachable(self) -> bool:
        """Return whether the server accepts a connection; True if there are several servers."""
        known = import_module("psycopg.conninfo").conninfo_to_dict(self._access.uri)
        host, port = str(known.get("host") or "localhost"), str(known.get("port") or 5432)
        if "," in host or not port.isdecimal():
            return True
        if host.startswith("/"):
            return takes_connections(f"{host}/.s.PGSQL.{port}")
        return takes_connections((host, int(port)))


_UNAVAILABLE = (
    "PostgreSQL, which holds the gallery, does not answer or has reported an error. Send the "
    "request again later." + SEE_LOG
)


def connection_options(access: PostgresAccess, search_path: str) -> dict[str, Any]:
    """Return the options of a connection whose tables are in the schemas of ``search_path``."""
    return {"autocommit": True, **session_options(access.timeout_s, search_path=search_path)}


def require_release(connection: Any) -> None:  # noqa: ANN401 - psycopg is imported late
    """Raise `ConfigError` if the release of PostgreSQL or of pgvector is too old."""
    release = connection.info.server_version
    found = connection.execute(
        "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    ).fetchone()
    version = "none" if found is None else str(found[0])
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if release < _LEAST_RELEASE or numbers < _LEAST_PGVECTOR:
        raise ConfigError(
            "A gallery in PostgreSQL needs PostgreSQL 15 and pgvector 0.8, or later. The server "
            f"has PostgreSQL {release // 10_000} and pgvector {version}."
        )


def client() -> Any:  # noqa: ANN401 - psycopg is imported late
    """Import psycopg, the client of PostgreSQL; raise `ConfigError` if it is not installed."""
    modules = "psycopg", "psycopg_pool", "pgvector.psycopg"
    stored = "The gallery is stored in PostgreSQL"
    return import_client(stored, "its client", "postgres", *modules)


TYPES = {
    "row": "int8",
    "id": "text",
    "label": "text",
    "metadata": "jsonb",
    "direction": "vector",
    "norm": "float4",
    "total_variance": "float4",
    "variance": "vector",
    "features": "bytea",
    "thumbnail": "bytea",
    "media_type": "text",
    "preview": "bytea",
    "born": "int8",
}
"""Column → type. `total_variance` is Σ_d v_d / ‖m‖²; `variance` is not divided by the norm."""

MOST_INDEXED_BYTES = 2_600
"""Maximum size of an id or a label, in bytes of UTF-8. An index of PostgreSQL supports 2,704 bytes
for a row, with the row's header and the other column."""

COLUMNS = ", ".join(TYPES)
PLACES = ", ".join(f"%s::{kind}" for kind in TYPES.values())


def values_of(
    row: int,
    item: NewItem,
    mean: NDArray[np.float32],
    variance: NDArray[np.float32],
    born: int = 0,
    features: NDArray[np.float32] | None = None,
) -> list[Any]:
    """Return the values of `COLUMNS` for an item with mean (D,) and variance (D,).

    Raises
    ------
    DatasetError : a text has a null character or an unpaired surrogate, or the id or label has more
        than `MOST_INDEXED_BYTES`.
    """
    metadata = json.loads(metadata_json(item.metadata))
    texts = [item.id, item.label or "", *_texts(metadata)]
    if not all(map(_is_storable, texts)):
        raise DatasetError(
            f"The item {item.id[:80]!r} has a text with a null character or an unpaired surrogate, "
            "which PostgreSQL cannot store. Remove the character, or store the gallery in files."
        )
    for name, text in (("id", item.id), ("label", item.label or "")):
        n_bytes = len(text.encode())
        if n_bytes > MOST_INDEXED_BYTES:
            raise DatasetError(
                f"The {name} of the item {item.id[:80]!r} has {n_bytes:,} bytes. PostgreSQL can "
                f"index at most {MOST_INDEXED_BYTES:,} bytes. Shorten the {name}, or store the "
                "gallery in files."
            )
    direction, norm, total_variance = stored_vector(mean, variance)
    return [
        row,
        item.id,
        item.label,
        import_module("psycopg.types.json").Jsonb(metadata),
        direction,
        norm,
        total_variance,
        np.asarray(variance, dtype=np.float32),
        None if features is None else features.astype("<f4").tobytes(),
        item.thumbnail.data,
        item.thumbnail.media_type,
        item.preview,
        born,
    ]


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - whatever JSON holds
    """Yield all texts and keys in parsed JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _texts(part)


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
