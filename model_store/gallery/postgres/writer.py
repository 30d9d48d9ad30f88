"""Writes a gallery into PostgreSQL, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from model_store.errors import ConfigError, GalleryUnavailable
from model_store.gallery.content import new_name, read_through, save_tuned
from model_store.gallery.files.fields import FieldsSeen
from model_store.gallery.index.build import EFFORTS
from model_store.gallery.index.plan import (
    EXACT_BYTES,
    IndexSettings,
)
from model_store.gallery.postgres.database import (
    COLUMNS,
    NO_ACCESS,
    TYPES,
    PostgresAccess,
    PostgresDescription,
    client,
    connection_options,
    require_bare,
    require_release,
    values_of,
)
from model_store.gallery.postgres.gallery import PostgresGallery
from model_store.gallery.protocol import GalleryContent, Part

SCHEMA = "1"

INDEX_TYPES = ("flat", "hnsw")

MOST_INDEXED = 2_000
"""Maximum number of dimensions that pgvector's index supports."""

_PAGE_DIMENSIONS = 1_900
"""A direction with at most this many dimensions fits into a page of PostgreSQL. It is stored in
the row itself, so that a search without an index reads no second table."""

_LINKS, _BUILD_EFFORT = 16, 100
"""Parameters of the graph. A graph with more links takes longer to build; a search with a larger
effort reaches the same recall."""

_TIMEOUT_S = 24 * 3_600.0
_MOST_EFFORT = 1_000
_MOST_FIELDS = 16

_TABLES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.state (
  encoder text NOT NULL,
  dim int NOT NULL,
  version bigint NOT NULL DEFAULT 0,
  n_items bigint NOT NULL,
  n_changed bigint NOT NULL DEFAULT 0
);
CREATE TABLE {schema}.labels (
  code int PRIMARY KEY,
  label text COLLATE "C" NOT NULL UNIQUE,
  n_items bigint NOT NULL
);
CREATE TABLE {schema}.changed (id text COLLATE "C" PRIMARY KEY);
CREATE TABLE {schema}.commits (
  version bigint PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {schema}.receipts (
  key text PRIMARY KEY,
  request text NOT NULL,
  outcome text NOT NULL,
  at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {schema}.items (
  row bigint PRIMARY KEY,
  id text COLLATE "C" NOT NULL,
  label text COLLATE "C",
  metadata jsonb STORAGE MAIN NOT NULL,
  direction vector({dim}) STORAGE {storage} NOT NULL,
  norm real NOT NULL,
  total_variance real NOT NULL,
  variance vector({dim}) STORAGE EXTERNAL NOT NULL,
  features bytea STORAGE EXTERNAL,
  thumbnail bytea STORAGE EXTERNAL NOT NULL,
  media_type text NOT NULL,
  preview bytea STORAGE EXTERNAL NOT NULL,
  born bigint NOT NULL,
  died bigint,
  UNIQUE NULLS NOT DISTINCT (id, died)
);
"""

_INDEXES = """
CREATE INDEX ON {schema}.items (label);
CREATE INDEX ON {schema}.items (died) WHERE died IS NOT NULL;
CREATE INDEX ON {schema}.items USING gin (metadata jsonb_path_ops);
"""


def write_to_postgres(
    new: GalleryContent, uri: str, access: PostgresAccess = NO_ACCESS
) -> PostgresDescription:
    """Write a gallery into a new schema, and its description into the directory.

    If a schema of the same owner has the same content and was never changed, it is used again.

    Parameters
    ----------
    new : gallery to write. Its parts are read twice: first to compute the name of the schema,
        then to write the items. Its directory gets the description.
    uri : address of the database for the bundle, without user and password.
    access : another address to write to, with user and password.

    Raises
    ------
    ConfigError : the client is missing, the address has a password, the server is too old, or the
        index does not reach the required recall.
    DatasetError : PostgreSQL cannot store a text of an item.
    GalleryUnavailable : PostgreSQL does not answer.
    """
    directory, settings = new.directory, new.settings
    kind = _kind(new.shape, settings)
    prefix = (
        f"postgres {SCHEMA}:{new.encoder_fingerprint}:{kind}:{new.shape}:{settings.preview_side}:"
    )
    seen = FieldsSeen()
    named = read_through(_noting(new.parts(), seen), new.shape, prefix, new.owner)
    fields = settings.filter_fields
    if fields is None:
        fields = tuple(field.name for field in seen.worth_indexing()[:_MOST_FIELDS])
    described = PostgresDescription(
        uri=require_bare(uri),
        schema=new_name(named.name),
        encoder=new.encoder_fingerprint,
        n_items=new.shape[0],
        dim=new.shape[1],
        preview_side=settings.preview_side,
        fields=fields,
        index={"type": kind, "parameters": {}, "recall_at_10": 1.0, "n_queries": 0},
    )
    access = replace(access, uri=access.uri or uri)
    with _connected(access) as connection:
        known = _unchanged_schema(connection, named.name)
        if known is not None:
            described = replace(described, schema=known)
        else:
            with connection.transaction():
                _write(connection, described, new.parts(), named.labels)
            connection.execute(f"ANALYZE {described.schema}.items")
    described.save(directory)
    if kind == "flat":
        return described
    efforts = {"hnsw.ef_search": [effort for effort in EFFORTS if effort <= _MOST_EFFORT]}
    opened = partial(PostgresGallery, directory, access)
    return save_tuned(described, directory, named.directions, settings, efforts, opened)


def _kind(shape: tuple[int, int], settings: IndexSettings) -> str:
    """Return the kind of the index."""
    if settings.kind == "auto":
        is_small = 4 * shape[0] * shape[1] <= EXACT_BYTES
        return "flat" if is_small or shape[1] > MOST_INDEXED else "hnsw"
    if settings.kind not in INDEX_TYPES:
        raise ConfigError(
            f"index.kind = {settings.kind!r} is not available in PostgreSQL; wanted auto, "
            f"{', '.join(INDEX_TYPES)}."
        )
    if settings.kind == "hnsw" and shape[1] > MOST_INDEXED:
        raise ConfigError(
            f"index.kind = 'hnsw': pgvector's index supports {MOST_INDEXED:,} dimensions, the "
            f"embeddings have {shape[1]:,}. Use flat."
        )
    return settings.kind


def _noting(parts: Iterable[Part], seen: FieldsSeen) -> Iterator[Part]:
    """Yield ``parts``; note the fields of their items."""
    for embeddings, items in parts:
        for item in items:
            seen.add(item.metadata)
        yield embeddings, items


@contextmanager
def _connected(access: PostgresAccess) -> Iterator[Any]:
    """Connect to the database, and create pgvector's types if they are missing."""
    psycopg = client()
    options = connection_options(replace(access, timeout_s=_TIMEOUT_S), "public")
    options["connect_timeout"] = max(2, int(access.timeout_s))
    try:
        with psycopg.connect(access.uri, **options) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            require_release(connection)
            import_module("pgvector.psycopg").register_vector(connection)
            yield connection
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            "The user of PostgreSQL must be allowed to create schemas, and the extension vector "
            "must exist: CREATE EXTENSION vector."
        ) from error
    except psycopg.errors.FeatureNotSupported as error:
        raise ConfigError(
            "PostgreSQL has no extension vector. Install pgvector 0.8 or later on its server."
        ) from error
    except psycopg.Error as error:
        raise GalleryUnavailable(
            f"PostgreSQL does not answer or has reported an error: {_reason(error, access)}. "
            "Nothing was written."
        ) from error


def _unchanged_schema(connection: Any, name: str) -> str | None:  # noqa: ANN401
    """Return a schema whose name begins with ``name`` and whose gallery was never changed."""
    found = connection.execute(
        "SELECT nspname::text FROM pg_namespace "
        "WHERE starts_with(nspname::text, %s) AND has_schema_privilege(oid, 'USAGE') ORDER BY 1",
        [f"{name}_"],
    ).fetchall()
    errors = client().errors
    for (schema,) in found:
        if re.fullmatch(rf"{name}_[0-9a-f]+", schema) is None:  # another user may choose the name
            continue
        # A part of the schema was dropped, or belongs to another user.
        with suppress(errors.UndefinedTable, errors.InsufficientPrivilege):
            state = connection.execute(f"SELECT version FROM {schema}.state")  # noqa: S608
            if state.fetchall() == [(0,)]:
                return str(schema)
    return None


def _reason(error: Exception, access: PostgresAccess) -> str:
    """Return the first line of an error's message, or its type if the message has the password."""
    reason = str(error).partition("\n")[0]
    password = urlsplit(access.uri or "").password
    has_password = password and (password in reason or unquote(password) in reason)
    return type(error).__name__ if has_password or not reason else reason


def _write(
    connection: Any,  # noqa: ANN401 - psycopg is imported late
    described: PostgresDescription,
    parts: Iterable[Part],
    labels: Sequence[str],
) -> None:
    schema, dim = described.schema, described.dim
    storage = "PLAIN" if dim <= _PAGE_DIMENSIONS else "EXTERNAL"
    connection.execute(_TABLES.format(schema=schema, dim=dim, storage=storage))
    counts: dict[str | None, int] = {}
    n_written = 0
    types = [kind if kind != "vector" else _vector_type(connection) for kind in TYPES.values()]
    copying = f"COPY {schema}.items ({COLUMNS}) FROM STDIN (FORMAT BINARY)"
    with connection.cursor().copy(copying) as copy:
        copy.set_types(types)
        for embeddings, items in parts:
            mean = embeddings.mean.astype(np.float32)
            variance = embeddings.variance.astype(np.float32)
            for place, item in enumerate(items):
                values = values_of(n_written, item, mean[place], variance[place])
                copy.write_row(values)
                counts[item.label] = counts.get(item.label, 0) + 1
                n_written += 1
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {schema}.labels VALUES (%s, %s, %s)",  # noqa: S608
            [(code, label, counts[label]) for code, label in enumerate(labels)],
        )
    connection.execute(
        f"INSERT INTO {schema}.state (encoder, dim, n_items) VALUES (%s, %s, %s)",  # noqa: S608
        [described.encoder, dim, n_written],
    )
    connection.execute(_INDEXES.format(schema=schema))
    if described.index["type"] == "hnsw":
        connection.execute("SET LOCAL maintenance_work_mem = '1GB'")
        connection.execute(
            f"CREATE INDEX ON {schema}.items USING hnsw (direction vector_ip_ops) "
            f"WITH (m = {_LINKS}, ef_construction = {_BUILD_EFFORT})"
        )


def _vector_type(connection: Any) -> int:  # noqa: ANN401
    [(number,)] = connection.execute("SELECT 'vector'::regtype::oid::int8")
    return int(number)
