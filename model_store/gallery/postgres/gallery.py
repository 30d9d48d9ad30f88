"""A state of a gallery in PostgreSQL; see `model_store.gallery.postgres.database`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import BundleMismatch, OutdatedCursor
from model_store.gallery.entities import (
    Entity,
    EntityCache,
    EntityGallery,
    EntityRows,
)
from model_store.gallery.filters.grammar import Field, Filter, parse_field
from model_store.gallery.filters.selection import Allowed
from model_store.gallery.postgres.database import (
    NO_ACCESS,
    Connections,
    PostgresAccess,
    PostgresDescription,
)
from model_store.gallery.postgres.filter import Values, facet_of, to_condition
from model_store.gallery.protocol import Candidates, Item, Thumbnail, item_not_found
from model_store.messages import Plan
from model_store.records import Facet

MARGIN = 16
"""Number of extra candidates to fetch, because pgvector compares in float32."""

ENTITY_COLUMNS = "row, id, label, metadata, direction, total_variance"

VISIBLE = "born <= %s AND (died IS NULL OR died > %s)"
"""The rows of a state; both values are the number of its last change."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a gallery after a change.

    Attributes
    ----------
    version : number of the change; 0 for the build.
    at : time of the change; None for the build. The version and the time together identify a
        change: after a restore of the database, another change can have the same version.
    n_items, n_changed : see `Gallery`.
    n_labels : number of labels; later states can have more.
    held : codes of the labels that current items have.
    """

    version: int
    at: datetime | None
    n_items: int
    n_changed: int
    n_labels: int
    held: frozenset[int]


class PostgresGallery(EntityGallery):
    """The gallery that a bundle's ``directory`` describes; thread-safe.

    Attributes
    ----------
    n_restored : how often this process has found that the database was restored.

    Raises
    ------
    BundleMismatch : the database has no such gallery, or the gallery has another encoder.
    ConfigError : see `Connections`.
    GalleryUnavailable : PostgreSQL does not answer; every method can raise it.
    """

    is_local = False

    def __init__(self, directory: Path, access: PostgresAccess = NO_ACCESS) -> None:
        described = PostgresDescription.load(directory)
        self.described = described
        self.encoder_fingerprint, self.dim = described.encoder, described.dim
        self.index_type, self.preview_side = described.engine, described.preview_side
        self.database = Connections(described.schema, access, described.index["parameters"])
        self.n_restored = 0
        self._naming = threading.Lock()
        self._forget()
        try:
            self._require_same()
            self.state = self.read_state()
        except BaseException:
            self.database.close()
            raise

    def _forget(self) -> None:
        """Forget what was read from the database."""
        self._lately = EntityCache()
        self._labels: list[str] = []
        self._codes: dict[str, int] = {}

    def _require_same(self) -> None:
        """Check that the gallery in the database is the gallery of the bundle."""
        [(encoder, dim)] = self.database.rows("SELECT encoder, dim FROM state")
        described = self.described
        if (encoder, dim) != (described.encoder, described.dim):
            raise BundleMismatch(
                f"The gallery {described.schema!r} in PostgreSQL has encoder {encoder[:12]} and "
                f"{dim} dimensions, the bundle has {described.encoder[:12]} and {described.dim}. "
                "Run `vouch-build index` again."
            )

    def read_state(self) -> State:
        """Read the current state, and the labels that are new."""
        n_known = len(self._labels)
        with self.database.connection() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            [(version, at, n_items, n_changed)] = connection.execute(
                "SELECT version, at, n_items, n_changed "
                "FROM state LEFT JOIN commits USING (version)"
            )
            labels = connection.execute(
                "SELECT code, label, n_items FROM labels WHERE code >= %s OR n_items = 0",
                [n_known],
            ).fetchall()
        with self._naming:
            for code, label, _ in sorted(labels):
                if code == len(self._labels):
                    self._labels.append(label)
                    self._codes[label] = code
        empty = {code for code, _, n in labels if n == 0}
        n_labels = max([n_known, *(code + 1 for code, _, _ in labels)])
        held = frozenset(range(n_labels)) - empty
        return State(version, at, n_items, n_changed, n_labels, held)

    def renewed(self) -> PostgresGallery:
        """Return the gallery in the current state of the database; itself if nothing has changed.

        If the history of the database no longer contains this state, the database was restored:
        nothing that was read before is used again.
        """
        known = self.state
        [(version, at, known_at)] = self.database.rows(
            "SELECT version, at, (SELECT at FROM commits WHERE version = %s) "
            "FROM state LEFT JOIN commits USING (version)",
            [known.version],
        )
        if (version, at) == (known.version, known.at):
            return self
        if version > known.version and known_at == known.at:
            return self.at(self.read_state())
        restored = copy(self)
        restored.n_restored += 1
        restored._forget()
        restored._require_same()
        return restored.at(restored.read_state())

    def at(self, state: State) -> PostgresGallery:
        """Return the gallery in a state; the states until a restore share one cache."""
        gallery = copy(self)
        gallery.state = state
        gallery.__dict__.pop("labels", None)
        return gallery

    def before(self, version: int) -> PostgresGallery:
        """Return the gallery after an earlier change, as far as its rows are kept."""
        [(n_items,)] = self.database.rows(
            f"SELECT count(*) FROM items WHERE {VISIBLE}",  # noqa: S608
            [version, version],
        )
        return self.at(replace(self.state, version=version, n_items=n_items))

    @property
    def version(self) -> int:
        """The number of the last change in this state."""
        return self.state.version

    @property
    def n_items(self) -> int:
        """The number of items."""
        return self.state.n_items

    @property
    def n_rows(self) -> int:
        """N, the number of rows; rows are numbered from 0 to N − 1."""
        return self.described.n_items + self.state.version

    @property
    def n_changed(self) -> int:
        """The number of items added, replaced or removed since the gallery was built."""
        return self.state.n_changed

    @cached_property
    def labels(self) -> Sequence[str]:
        """The distinct labels; later labels are appended."""
        return tuple(self._labels[: self.state.n_labels])

    @property
    def held_labels(self) -> Sequence[str]:
        """The labels of the current items."""
        held = self.state.held
        return tuple(label for code, label in enumerate(self.labels) if code in held)

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D); see `Gallery.candidates`."""
        n = min(n, self.n_items)
        if allowed is not None and not isinstance(allowed, ConditionRows):
            n = min(n, allowed.at_most)  # a condition would have to be counted first
        is_exact = self.described.index["type"] == "flat"
        plan: Plan = "exact" if is_exact or allowed is None else "filter_first"
        nearest = []
        with self.database.connection() as connection:
            for query in directions:
                found = self._nearest(connection, query, n, allowed, is_exact=is_exact)
                if len(found) < n and not is_exact:  # the index has left out allowed rows
                    found = self._nearest(connection, query, n, allowed, is_exact=True)
                nearest.append(np.array(found, dtype=np.int64))
        return self._best(nearest, directions, n, plan)

    def _nearest(
        self,
        connection: Any,  # noqa: ANN401 - psycopg is imported late
        query: NDArray[np.float32],
        n: int,
        allowed: Allowed | None,
        *,
        is_exact: bool,
    ) -> list[int]:
        """Return the rows of at least ``n`` items near a query, in any order; all if fewer."""
        if n == 0:
            return []
        condition, values = _allowed(allowed)
        statement = (
            f"SELECT {ENTITY_COLUMNS} FROM items "  # noqa: S608
            f"WHERE {VISIBLE} AND {condition} ORDER BY direction <#> %s{', id' * is_exact} LIMIT %s"
        )
        # The second order also keeps PostgreSQL from using the approximate index.
        marks = [self.version, self.version, *values, query, n + MARGIN]
        entities = _entities_of(connection.execute(statement, marks, binary=True))
        self._lately.remember(entities)
        return list(entities)

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass a filter, as the argument ``allowed`` of `candidates`."""
        return ConditionRows(self, *to_condition(part))

    def facets(self, most: int) -> list[Facet]:
        """Describe the label and each field of the description; see `Gallery.facets`."""
        fields = [Field("label"), *map(parse_field, self.described.fields)]
        return [facet_of(self.database, field, self.version, VISIBLE, most) for field in fields]

    def rows(self) -> NDArray[np.int64]:
        """Return the rows (n_items,) of all items, ascending."""
        return self.rows_of("TRUE", [])

    def rows_of(self, condition: str, values: Values) -> NDArray[np.int64]:
        """Return the rows whose items meet a condition, ascending."""
        found = self.database.rows(
            f"SELECT row FROM items WHERE {VISIBLE} AND {condition} ORDER BY row",  # noqa: S608
            [self.version, self.version, *values],
        )
        return np.array([row for (row,) in found], dtype=np.int64)

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Return the rows of the ``limit`` items that follow ``after``, in the order of ids.

        Raises
        ------
        OutdatedCursor : the row ``after`` was replaced or deleted too long ago, so it is not kept.
        """
        follows, values = "TRUE", list[Any]()
        if after is not None:
            follows, values = "id > (SELECT id FROM items WHERE row = %s)", [after]
        found = self.database.rows(
            f"SELECT row FROM items WHERE {VISIBLE} AND {follows} ORDER BY id LIMIT %s",  # noqa: S608
            [self.version, self.version, *values, limit],
        )
        if not found and after is not None and not self._has(after):
            raise OutdatedCursor(
                "The item at which the page begins was replaced or deleted long ago. Request the "
                "first page of the list again."
            )
        return np.array([row for (row,) in found], dtype=np.int64)

    def row(self, item_id: str) -> int:
        """Return the row of the item with this id, or raise `ItemNotFound`."""
        return int(self._of_id(item_id, "row")[0])

    def item(self, item_id: str) -> Item:
        """Return the item with this id, or raise `ItemNotFound`."""
        return Item(*self._of_id(item_id, "id, label, metadata"))

    def thumbnail(self, item_id: str) -> Thumbnail:
        """Return the thumbnail of an item, or raise `ItemNotFound`."""
        return Thumbnail(*self._of_id(item_id, "thumbnail, media_type"))

    def preview(self, item_id: str) -> bytes:
        """Return the preview of an item as JPEG, or raise `ItemNotFound`."""
        return bytes(self._of_id(item_id, "preview")[0])

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def _has(self, row: int) -> bool:
        """Return whether a row is kept, in whatever state."""
        return bool(self.database.rows("SELECT 1 FROM items WHERE row = %s", [row]))

    def _of_id(self, item_id: str, columns: str) -> tuple[Any, ...]:
        if "\0" in item_id:  # PostgreSQL has no such text
            raise item_not_found(item_id)
        found = self.database.rows(
            f"SELECT {columns} FROM items WHERE id = %s AND {VISIBLE}",  # noqa: S608
            [item_id, self.version, self.version],
        )
        for row in found:
            return row
        raise item_not_found(item_id)

    def _read(self, rows: list[int]) -> dict[int, Entity]:
        statement = f"SELECT {ENTITY_COLUMNS} FROM items WHERE row = ANY(%s)"  # noqa: S608
        return _entities_of(self.database.rows(statement, [rows]))

    def _read_variances(self, rows: list[int]) -> dict[int, tuple[Any, float]]:
        found = self.database.rows(
            "SELECT row, variance, norm FROM items WHERE row = ANY(%s)", [rows]
        )
        return {row: (variance.to_numpy(), norm) for row, variance, norm in found}

    def _code(self, label: str | None) -> int:
        return -1 if label is None else self._codes[label]


class ConditionRows(EntityRows):
    """The rows of a gallery that meet a condition."""

    def __init__(self, gallery: PostgresGallery, condition: str, values: Values) -> None:
        super().__init__(gallery)
        self.condition, self.values = condition, values
        self._gallery = gallery

    @cached_property
    def at_most(self) -> int:
        """The number of rows that pass the filter."""
        version = self._gallery.version
        [(n,)] = self._gallery.database.rows(
            f"SELECT count(*) FROM items WHERE {VISIBLE} AND {self.condition}",  # noqa: S608
            [version, version, *self.values],
        )
        return int(n)

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""
        among = self._gallery.rows_of(
            f"row = ANY(%s) AND {self.condition}", [rows.tolist(), *self.values]
        )
        return np.isin(rows, among)

    def rows(self) -> NDArray[np.int64]:
        """Return all allowed rows, ascending."""
        return self._gallery.rows_of(self.condition, self.values)


def _entities_of(found: Iterable[tuple[Any, ...]]) -> dict[int, Entity]:
    return {
        row: Entity(Item(item_id, label, metadata), direction.to_numpy(), total_variance)
        for row, item_id, label, metadata, direction, total_variance in found
    }


def _allowed(allowed: Allowed | None) -> tuple[str, Values]:
    """Return the condition that a row is allowed, and its values."""
    if allowed is None:
        return "TRUE", []
    if isinstance(allowed, ConditionRows):
        return allowed.condition, allowed.values
    return "row = ANY(%s)", [allowed.rows().tolist()]
