"""A gallery in a Milvus collection, for several machines.

Row numbers are the primary key of the collection. The items of the build have rows in the order of
their ids; each later change adds a row. The current state is a `Head` of the log of changes. The
state of a gallery at a head never changes, but Milvus deletes replaced rows after `GRACE_S`. Only
recently found items are cached in this process. `page` returns added and changed items last; a
gallery in files returns all items in the order of the ids.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.entities import (
    READ_AT_ONCE,
    Entity,
    EntityCache,
    EntityGallery,
    EntityRows,
    parts_of,
)
from model_store.gallery.filters.grammar import Filter
from model_store.gallery.filters.selection import Allowed
from model_store.gallery.index.build import FETCHED
from model_store.gallery.index.search import EXACT_ROWS
from model_store.gallery.milvus.collection import (
    EVENTUALLY,
    NO_ACCESS,
    NOW,
    Collection,
    MilvusAccess,
    MilvusDescription,
)
from model_store.gallery.milvus.entities import (
    ENTITY_FIELDS,
    EVERYTHING,
    literal,
    read_entity,
    read_hits,
    rows_of,
    to_expression,
    write_entity,
)
from model_store.gallery.protocol import (
    Candidates,
    Item,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
    item_not_found,
)
from model_store.messages import Plan

from .log import Head


class MilvusRows:
    """The rows of a collection that was built with ``n_built`` items.

    Methods with a parameter ``since`` find all writes up to this Milvus timestamp.
    """

    def __init__(self, collection: Collection, n_built: int) -> None:
        self._collection = collection
        self._n_built = n_built

    def end(self) -> int:
        """Return the number of the last row that any writer has written, plus 1."""
        if not self._any_from(self._n_built):
            return self._n_built
        step = 1
        while self._any_from(self._n_built + step):
            step *= 2
        # A row at or after `low` exists; no row at or after `high` exists.
        low, high = self._n_built, self._n_built + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._any_from(middle) else (low, middle)
        return high

    def count(self, condition: str, since: int) -> int:
        """Return the number of rows that meet a condition."""
        [found] = self._find(condition, ["count(*)"], since)
        return int(found["count(*)"])

    def as_built(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return item id → row, for the rows that were written when the collection was built."""
        rows: dict[str, int] = {}
        for start in range(0, len(item_ids), READ_AT_ONCE):
            listed = ", ".join(map(literal, item_ids[start : start + READ_AT_ONCE]))
            condition = f"id in [{listed}] and row < {self._n_built}"
            rows |= {one["id"]: one["row"] for one in self._find(condition, ["id"], EVENTUALLY)}
        return rows

    def within(self, start: int, end: int, since: int, condition: str = "") -> list[int]:
        """Return the rows from ``start`` to ``end`` − 1 whose items meet the condition."""
        within = f"row >= {start} and row < {end}" + (condition and f" and {condition}")
        return sorted(one["row"] for one in self._find(within, [], since))

    def among(self, rows: Sequence[int], since: int, condition: str) -> set[int]:
        """Return the subset of ``rows`` whose items meet the condition."""
        within = f"row in {list(rows)} and {condition}"
        return {one["row"] for one in self._find(within, [], since)}

    def at(
        self, rows: Sequence[int], since: int, fields: Sequence[str]
    ) -> dict[int, dict[str, Any]]:
        """Return row → values of ``fields``; rows without an item are left out."""
        found = self._find(f"row in {list(rows)}", fields, since)
        return {one["row"]: one for one in found}

    def of_id(self, item_id: str, since: int, fields: Sequence[str]) -> list[dict[str, Any]]:
        """Return all rows of one item, with the values of ``fields``; at most one is current."""
        return self._find(f"id == {literal(item_id)}", fields, since)

    def drop(self, rows: Sequence[int]) -> None:
        """Delete rows from Milvus; these rows are no longer current."""
        for start in range(0, len(rows), READ_AT_ONCE):
            self._collection.ask("delete", ids=list(rows[start : start + READ_AT_ONCE]))

    def _any_from(self, row: int) -> bool:
        return bool(self._find(f"row >= {row}", [], NOW, limit=1))

    def _find(
        self, condition: str, fields: Sequence[str], since: int, **options: int
    ) -> list[dict[str, Any]]:
        names = list(fields) if fields == ["count(*)"] else ["row", *fields]
        found = self._collection.read(
            "query", since, filter=condition, output_fields=names, **options
        )
        return [dict(one) for one in found]


_ROWS_AT_ONCE = 100_000
"""Maximum number of rows that Milvus filters in one request."""


class MatchingRows(EntityRows):
    """The rows of a gallery for which an expression is true.

    Milvus also counts the rows and checks single rows. A search calls `rows` only if Milvus finds
    too few rows.

    Parameters
    ----------
    expression : filter expression of Milvus.
    """

    def __init__(self, gallery: MilvusGallery, expression: str) -> None:
        super().__init__(gallery)
        self.expression = expression
        self._rows, self._head, self._current = gallery.by_number, gallery.head, gallery.current

    @cached_property
    def at_most(self) -> int:
        """The number of rows that pass the filter; may include recently replaced rows."""
        return self._rows.count(self.expression, self._head.since)

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""
        if not rows.size:
            return np.zeros(0, dtype=bool)
        among = self._rows.among(rows.tolist(), self._head.since, self.expression)
        return np.array([row in among for row in rows.tolist()], dtype=bool)

    def rows(self) -> NDArray[np.int64]:
        """Return all allowed rows, ascending."""
        found: list[int] = []
        for start in range(0, self._n_rows, _ROWS_AT_ONCE):
            end = min(start + _ROWS_AT_ONCE, self._n_rows)
            found += self._rows.within(start, end, self._head.since, self.expression)
        return self._current(np.array(found, dtype=np.int64))


MARGIN = 16
"""Number of extra candidates to fetch. Milvus compares in float32 and orders ties arbitrarily."""

MOST_FOUND = 16_384
"""Maximum number of items that one search in Milvus returns."""

_SEARCHED_AT_ONCE = 32
"""Maximum number of queries in one request."""


class MilvusGallery(EntityGallery):
    """The gallery that a bundle's ``directory`` describes; thread-safe.

    Raises
    ------
    BundleMismatch : the collection is missing or differs from the description.
    ConfigError : ``access`` has no address.
    GalleryUnavailable : Milvus does not answer; every method can raise it.
    """

    def __init__(self, directory: Path, access: MilvusAccess = NO_ACCESS) -> None:
        described = MilvusDescription.load(directory)
        self.described, self.access = described, access
        self.encoder_fingerprint = described.encoder
        self.dim = described.dim
        self.index_type, self.preview_side, self.is_local = described.engine, None, False
        self.collection = Collection(described.collection, access)
        self.collection.require(described)
        self.collection.ask("load_collection")
        self._labels = list(described.labels)
        self._codes: dict[str | None, int] = {
            **{label: code for code, label in enumerate(self._labels)},
            None: -1,
        }
        self.by_number = MilvusRows(self.collection, described.n_items)
        self._lately = EntityCache()
        self._naming = threading.Lock()

    def at(self, head: Head) -> MilvusGallery:
        """Return the gallery at a head of its log; all heads share one cache of items."""
        gallery = copy(self)
        gallery.__dict__["head"] = head
        return gallery

    @cached_property
    def head(self) -> Head:
        """The current state; without a log, the collection is counted on first use.

        The count waits until all writes are readable. So later searches need not wait.
        """
        n_built, end = self.described.n_items, self.by_number.end()
        n_new = self.by_number.count(f"row >= {n_built}", NOW) if end > n_built else 0
        n_left = self.by_number.count(f"row < {n_built}", NOW)
        return Head(end - n_built, EVENTUALLY, n_left + n_new, n_built - n_left + n_new, {})

    @property
    def version(self) -> int:
        """The number of the last change in this state."""
        return self.head.version

    @property
    def n_items(self) -> int:
        """The number of items."""
        return self.head.n_items

    @property
    def n_rows(self) -> int:
        """N, the number of rows; rows are numbered from 0 to N − 1."""
        return self.described.n_items + self.head.version

    @property
    def n_changed(self) -> int:
        """The number of items added, replaced or removed since the gallery was built."""
        return self.head.n_changed

    @property
    def labels(self) -> Sequence[str]:
        """The distinct labels; a later label is appended when it is first found in an item."""
        return tuple(self._labels)

    @property
    def held_labels(self) -> Sequence[str]:
        """All labels, including labels of removed items.

        To find the labels of the current items, the process would have to read all items.
        """
        return self.labels

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D); see `Gallery.candidates`."""
        n_allowed = self.n_items if allowed is None else min(allowed.at_most, self.n_items)
        n = min(n, n_allowed)
        plan: Plan = "filter_first"
        if allowed is None or self._compares(allowed):
            plan = "exact"
        return self._best(self._nearest(directions, n, allowed, plan), directions, n, plan)

    def _compares(self, allowed: Allowed) -> bool:
        """Return True if so few rows are allowed that the search compares every allowed row."""
        if isinstance(allowed, MatchingRows) or self.described.index["type"] == "FLAT":
            return False
        return allowed.at_most <= EXACT_ROWS

    def _nearest(
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None, plan: Plan
    ) -> list[NDArray[np.int64]]:
        """Return at least ``n`` rows near each query, or all allowed rows, in any order."""
        if n == 0:
            return [np.empty(0, dtype=np.int64)] * len(queries)
        if allowed is not None and plan == "exact":
            return [self._exact(query, n, allowed.rows()) for query in queries]
        expressions = [""] if allowed is None else _expressions(allowed)
        share = 1.0 if allowed is None else max(allowed.share, 1e-9)
        parts = [self._search(queries, n, expression, share) for expression in expressions]
        found = [np.concatenate(of_query) for of_query in zip(*parts, strict=True)]
        if all(len(rows) >= n for rows in found):
            return found
        every = np.arange(self.n_rows) if allowed is None else allowed.rows()
        return [
            rows if len(rows) >= n else self._exact(query, n, every)
            for query, rows in zip(queries, found, strict=True)
        ]

    def _search(
        self, queries: NDArray[np.float32], n: int, expression: str, share: float
    ) -> list[NDArray[np.int64]]:
        """Search in Milvus; return current rows near each query, usually more than ``n``."""
        limit = min(max(n, FETCHED) + MARGIN, MOST_FOUND)
        found = self._hits(queries, limit, expression, share)
        current = [self.current(rows) for rows in found]
        if all(
            len(left) >= n or len(rows) < limit for left, rows in zip(current, found, strict=True)
        ):
            return current
        # Too many hits are replaced rows: exclude all replaced rows and search again.
        gone = [row for row, change in [*self.head.hidden.items()] if change <= self.version]
        conditions = [f"row < {self.n_rows}", f"row not in {gone}" if gone else "", expression]
        rest = " and ".join(one for one in conditions if one)
        return [self.current(rows) for rows in self._hits(queries, limit, rest, share)]

    def _hits(
        self, queries: NDArray[np.float32], limit: int, expression: str, share: float
    ) -> list[NDArray[np.int64]]:
        """Search for rows near each query; if few items are cached, also read the rows' items."""
        whole = len(queries) * limit <= READ_AT_ONCE and not self._lately.mostly_knows
        found = []
        for start in range(0, len(queries), _SEARCHED_AT_ONCE):
            found += self.collection.read(
                "search",
                self.head.since,
                data=list(queries[start : start + _SEARCHED_AT_ONCE]),
                anns_field="direction",
                filter=expression,
                limit=limit,
                # Before Milvus 2.4, a hit does not contain its primary key.
                output_fields=["row", *ENTITY_FIELDS] if whole else ["row"],
                search_params={"metric_type": "IP", "params": self.described.effort(limit, share)},
            )
        rows = [rows_of(hits) for hits in found]
        for hits, of_query in zip(found, rows, strict=True):
            self._lately.observe(of_query)
            if whole:
                self._lately.remember(read_hits(hits))
        return [np.array(of_query, dtype=np.int64) for of_query in rows]

    def _is_current(self, row: int) -> bool:
        replaced = self.head.hidden.get(row)
        return row < self.n_rows and (replaced is None or replaced > self.version)

    def current(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the subset of ``rows`` (n,) that the state has."""
        current = [self._is_current(row) for row in rows.tolist()]
        return rows if all(current) else rows[np.array(current, dtype=bool)]

    def _exact(
        self, query: NDArray[np.float32], n: int, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Read all ``rows``; return the ``n`` nearest rows, and at most `MARGIN` more."""
        there, similarities = [], []
        for part in parts_of(self.current(rows), READ_AT_ONCE):
            entities = self._entities(part)
            there += list(entities)
            if entities:
                directions = np.stack([entity.direction for entity in entities.values()])
                similarities.append(directions @ query)
        found = np.array(there, dtype=np.int64)
        if len(found) <= n + MARGIN:
            return found
        return found[np.argpartition(-np.concatenate(similarities), n + MARGIN)[: n + MARGIN]]

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass a filter, as the argument ``allowed`` of `candidates`."""
        return MatchingRows(self, to_expression(part))

    def facets(self, most: int) -> None:
        """Return None, because Milvus cannot count values."""

    def rows(self) -> NDArray[np.int64]:
        """Return the rows (n_items,) of all items, ascending; reads them page by page."""
        return self.page(None, self.n_items)

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Return the rows of the ``limit`` items that follow the row ``after``, by row number."""
        found: list[int] = []
        start = 0 if after is None else after + 1
        while start < self.n_rows and len(found) < limit:
            end = start + READ_AT_ONCE
            rows = self.by_number.within(start, min(end, self.n_rows), self.head.since)
            found += [row for row in rows if self._is_current(row)]
            start = end
        return np.array(found[:limit], dtype=np.int64)

    def row(self, item_id: str) -> int:
        """Return the row of the item with this id, or raise `ItemNotFound`."""
        return int(self._by_id(item_id, [])["row"])

    def item(self, item_id: str) -> Item:
        """Return the item with this id, or raise `ItemNotFound`."""
        return read_entity(self._by_id(item_id, ENTITY_FIELDS)).item

    def thumbnail(self, item_id: str) -> Thumbnail:
        """Return the thumbnail of an item, or raise `ItemNotFound`."""
        found = self._by_id(item_id, ["thumbnail", "media_type"])
        return Thumbnail(base64.b64decode(found["thumbnail"]), found["media_type"])

    def preview(self, item_id: str) -> bytes:
        """Return no bytes, or raise `ItemNotFound`: Milvus has no field for large previews."""
        self.row(item_id)
        return b""

    def put(self, upserts: Sequence[tuple[int, Upsert]]) -> int:
        """Write items to their rows; return the Milvus timestamp of the last write.

        Readers find an item once the head of the log includes the change that wrote the item. A
        repeated call is harmless.
        """
        since = NOW
        for _, upsert in upserts:
            self._code(upsert.item.label)
        for start in range(0, len(upserts), READ_AT_ONCE):
            since = self.collection.put(
                [
                    write_entity(row, upsert.item, upsert.vector.mean, upsert.vector.variance)
                    for row, upsert in upserts[start : start + READ_AT_ONCE]
                ]
            )
        return since

    def upsert(self, row: int) -> Upsert:
        """Return a write with the current content of the item at ``row``."""
        fields = [*ENTITY_FIELDS, "variance", "norm", "thumbnail", "media_type"]
        found = self.by_number.at([row], NOW, fields)
        self._require(np.array([row]), found)
        entity, one = read_entity(found[row]), found[row]
        picture = Thumbnail(base64.b64decode(one["thumbnail"]), one["media_type"])
        item = NewItem(entity.item.id, entity.item.label, entity.item.metadata, picture)
        mean = entity.direction * np.float32(one["norm"])
        return Upsert(item, Vector(mean, np.array(one["variance"], dtype=np.float32)))

    def close(self) -> None:
        """Close the connection."""
        self.collection.close()

    def _by_id(self, item_id: str, fields: Sequence[str]) -> dict[str, Any]:
        for found in self.by_number.of_id(item_id, self.head.since, fields):
            if self._is_current(found["row"]):
                return found
        raise item_not_found(item_id)

    def _read(self, rows: list[int]) -> dict[int, Entity]:
        found = self.by_number.at(rows, self.head.since, ENTITY_FIELDS)
        return {row: read_entity(one) for row, one in found.items()}

    def _read_variances(self, rows: list[int]) -> dict[int, tuple[Any, float]]:
        found = self.by_number.at(rows, self.head.since, ["variance", "norm"])
        return {row: (one["variance"], one["norm"]) for row, one in found.items()}

    def _code(self, label: str | None) -> int:
        """Return the code of a label; a new label gets the next code."""
        with self._naming:
            if label not in self._codes:
                self._codes[label] = len(self._labels)
                self._labels.append(str(label))
            return self._codes[label]


def _expressions(allowed: Allowed) -> list[str]:
    """Return expressions; a row is allowed if it satisfies one of these expressions."""
    if isinstance(allowed, MatchingRows):
        return [allowed.expression]
    if allowed.mask().all():
        return [EVERYTHING]
    return [f"row in {part.tolist()}" for part in parts_of(allowed.rows(), EXACT_ROWS)]
