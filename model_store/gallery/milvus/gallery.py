"""The gallery beyond one machine: a collection of Milvus.

Rows are the collection's primary key. They begin in the order of the ids; an item that comes later
has the next one, one that is deleted leaves a hole. Nothing of the collection is held here but the
items that were found lately. What a gallery in one file does and this does not:

- It is no snapshot: what others write is found when Milvus has it, within a search at worst.
- `matching` gives a row for every number up to the last: a filter costs a byte an item and a pass
  over the collection, of a hundred answers at 10⁷ items and ten thousand at 10⁹.
- A mask that does not come from `matching` is sent by its rows, in parts.
- `page` ends with the items that came later, ordered by when they came.
- Writers take turns at `MilvusLive`; two at once, who do not, would give the same row twice.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import ItemNotFound
from model_store.gallery.files.gallery import similarities_of
from model_store.gallery.filters.facets import Facet
from model_store.gallery.filters.grammar import Filter
from model_store.gallery.index.allowed import Allowed, MaskedRows
from model_store.gallery.index.recall import FETCHED
from model_store.gallery.index.search import EXACT_ROWS
from model_store.gallery.milvus.cache import EntityCache
from model_store.gallery.milvus.collection import (
    NO_ACCESS,
    Collection,
    MilvusAccess,
    MilvusDescription,
)
from model_store.gallery.milvus.entities import ENTITY_FIELDS, Entity, read_entity, write_entity
from model_store.gallery.milvus.filter import EVERYTHING, to_expression
from model_store.gallery.milvus.rows import READ_AT_ONCE, Counts, MilvusRows
from model_store.gallery.protocol import SIMILARITY_DECIMALS, Candidates, Item, NewItem, Thumbnail
from model_store.verdicts import Plan

MARGIN = 16
"""Candidates fetched beyond those wanted: Milvus compares in float32, and ends ties anyhow."""

MOST_FOUND = 16_384
"""Items that Milvus finds at once."""

_SEARCHED_AT_ONCE = 32
"""Queries."""

_ROWS_AT_ONCE = 100_000
"""Number of rows that one request to Milvus filters."""


class _Matching(MaskedRows):
    """Rows that pass a filter, and the expression they were found by."""

    def __init__(self, mask: NDArray[np.bool_], expression: str) -> None:
        super().__init__(mask)
        self.expression = expression


class MilvusGallery:
    """The gallery that `write_milvus_gallery` described in ``directory``; safe to share by threads.

    Raises
    ------
    BundleMismatch : the collection is missing, or is not the one described.
    GalleryUnavailable : Milvus does not answer; so does every method.
    """

    def __init__(self, directory: Path, access: MilvusAccess = NO_ACCESS) -> None:
        described = MilvusDescription.load(directory)
        self.described = described
        self.encoder_fingerprint = described.encoder
        self.dim = described.dim
        self.index_type = _engine(described)
        self._collection = Collection(described.collection, access, described.uri)
        self._collection.require(described)
        self._collection.ask("load_collection")
        self._labels = list(described.labels)
        self._codes: dict[str | None, int] = {
            **{label: code for code, label in enumerate(self._labels)},
            None: -1,
        }
        self._rows = MilvusRows(self._collection, described.n_items)
        self._lately = EntityCache()
        self._naming = threading.Lock()
        self._writing = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Count again what is there, as others may have written; a pass over all versions."""
        self._take(self._rows.counts())

    def glance(self) -> None:
        """The same without the pass: what others have replaced is counted with their next item."""
        self._take(self._rows.counts(self._counts))

    def _take(self, counts: Counts) -> None:
        self._counts = counts
        self.n_items, self.n_rows = counts.n_items, counts.n_rows
        self.n_changed = counts.n_changed

    @property
    def labels(self) -> Sequence[str]:
        """The distinct labels; those that came later stand at the end, once they were found."""
        return tuple(self._labels)

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D), among the ``allowed`` rows."""
        n_allowed = self.n_items if allowed is None else int(np.count_nonzero(allowed.mask()))
        n = min(n, n_allowed)
        plan: Plan = "filter_first"
        if allowed is None or self._compares(n_allowed):
            plan = "exact"
        found = self._nearest(directions, n, allowed, plan)
        ranked = [
            self._ranked(rows, query, n) for rows, query in zip(found, directions, strict=True)
        ]
        n = min(len(rows) for rows, _ in ranked)  # where an item was deleted meanwhile
        return Candidates(
            np.stack([rows[:n] for rows, _ in ranked]),
            np.stack([similarities[:n] for _, similarities in ranked]),
            plan,
        )

    def _compares(self, n_allowed: int) -> bool:
        """Tell whether so few rows are allowed that each is read and compared."""
        return self.described.index["type"] != "FLAT" and n_allowed <= EXACT_ROWS

    def _nearest(
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None, plan: Plan
    ) -> list[NDArray[np.int64]]:
        """At least ``n`` rows near each of the queries, where there are, in any order."""
        if n == 0:
            return [np.empty(0, dtype=np.int64)] * len(queries)
        every = np.arange(self.n_rows) if allowed is None else allowed.rows()
        if allowed is not None and plan == "exact":
            return [self._exact(query, n, every) for query in queries]
        expressions = [""] if allowed is None else _expressions(allowed)
        parts = [self._search(queries, n, expression) for expression in expressions]
        found = [np.concatenate(of_query) for of_query in zip(*parts, strict=True)]
        return [
            rows if len(rows) >= n else self._exact(query, n, every)
            for query, rows in zip(queries, found, strict=True)
        ]

    def _search(
        self, queries: NDArray[np.float32], n: int, expression: str
    ) -> list[NDArray[np.int64]]:
        """Rows that Milvus finds near each of the queries, ``n`` and some more."""
        limit = min(max(n, FETCHED) + MARGIN, MOST_FOUND)
        parameters = dict(self.described.index["parameters"])
        if "ef" in parameters:
            parameters["ef"] = max(parameters["ef"], limit)
        found = []
        for start in range(0, len(queries), _SEARCHED_AT_ONCE):
            found += self._collection.ask(
                "search",
                data=list(queries[start : start + _SEARCHED_AT_ONCE]),
                anns_field="direction",
                filter=expression,
                limit=limit,
                output_fields=["version"],
                search_params={"metric_type": "IP", "params": parameters},
            )
        versions = {hit["row"]: hit["entity"]["version"] for hits in found for hit in hits}
        self._lately.forget_others(versions)
        return [np.array([hit["row"] for hit in hits], dtype=np.int64) for hits in found]

    def _exact(
        self, query: NDArray[np.float32], n: int, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The ``n`` nearest of ``rows``, and as near ones; each is read."""
        there, similarities = [], []
        for part in _parts(rows, READ_AT_ONCE):
            entities = self._entities(part)
            there += list(entities)
            if entities:
                directions = np.stack([entity.direction for entity in entities.values()])
                similarities.append(directions @ query)
        found = np.array(there, dtype=np.int64)
        if len(found) <= n + MARGIN:
            return found
        return found[np.argpartition(-np.concatenate(similarities), n + MARGIN)[: n + MARGIN]]

    def _ranked(
        self, rows: NDArray[np.int64], query: NDArray[np.float32], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ``n`` nearest of ``rows``, nearest first, and their similarities."""
        entities = list(self._entities(rows).items())
        if not entities:
            return np.empty(0, dtype=np.int64), np.empty(0)
        exact = similarities_of(np.stack([entity.direction for _, entity in entities]), query)
        similarities = np.round(exact, SIMILARITY_DECIMALS)
        order = sorted(
            range(len(entities)),
            key=lambda place: (-similarities[place], entities[place][1].item.id),
        )[:n]
        return np.array([entities[place][0] for place in order]), similarities[order]

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass a filter, as `candidates` takes them."""
        expression = to_expression(part)
        mask = np.zeros(self.n_rows, dtype=bool)
        for start in range(0, self.n_rows, _ROWS_AT_ONCE):
            end = min(start + _ROWS_AT_ONCE, self.n_rows)
            mask[self._rows.within(start, end, expression)] = True
        return _Matching(mask, expression)

    def facets(self, most: int) -> list[Facet]:  # noqa: ARG002 - as `Gallery` has it
        """None: Milvus counts no values."""
        return []

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unit directions of ``rows`` (...), shape (..., D)."""
        values = np.empty((rows.size, self.dim), dtype=np.float32)
        for place, entity in enumerate(self._each(rows)):
            values[place] = entity.direction
        return values.reshape(*rows.shape, self.dim)

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each item relative to its squared norm, Σ_d v_d / ‖m‖², shape (...)."""
        values = [entity.total_variance for entity in self._each(rows)]
        return np.array(values, dtype=np.float32).reshape(rows.shape)

    def variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each item's embedding, relative to its squared norm: v / ‖m‖², (..., D)."""
        stored: dict[int, tuple[Any, Any]] = {}
        for part in _parts(rows.ravel(), READ_AT_ONCE):
            found = self._read(part, ["variance", "norm"])
            stored |= {row: (one["variance"], one["norm"]) for row, one in found.items()}
        self._require(rows.ravel(), stored)
        variances, norms = zip(*(stored[row] for row in rows.ravel().tolist()), strict=True)
        relative = np.array(variances, dtype=np.float32)
        relative /= np.array(norms, dtype=np.float32)[:, None] ** 2
        return relative.reshape(*rows.shape, self.dim)

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Codes of the rows' labels, -1 where an item has none, shape (...)."""
        codes = [self._code(entity.item.label) for entity in self._each(rows)]
        return np.array(codes, dtype=np.int32).reshape(rows.shape)

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """The items at ``rows`` (n,), in that order."""
        return [entity.item for entity in self._each(rows)]

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Rows of at most ``limit`` items, from the one after the row ``after`` on."""
        found: list[int] = []
        start = 0 if after is None else after + 1
        while start < self.n_rows and len(found) < limit:
            end = start + READ_AT_ONCE
            found += self._rows.within(start, end)
            start = end
        return np.array(found[:limit], dtype=np.int64)

    def row(self, item_id: str) -> int:
        """Return the row of an item, or raise `ItemNotFound`."""
        return int(self._rows.by_id(item_id, [])["row"])

    def item(self, item_id: str) -> Item:
        """The item of that id, or `ItemNotFound`."""
        return read_entity(self._rows.by_id(item_id, ENTITY_FIELDS)).item

    def thumbnail(self, item_id: str) -> Thumbnail:
        """The picture of that item, or `ItemNotFound`."""
        found = self._rows.by_id(item_id, ["thumbnail", "media_type"])
        return Thumbnail(base64.b64decode(found["thumbnail"]), found["media_type"])

    def upsert(self, items: Sequence[NewItem], embeddings: Embeddings) -> None:
        """Put items in place of those of the same id, or beside the others.

        Searches of this process find them on return, those of others a moment later. Each is there
        whole or not at all; of several, those before one that fails stay.

        Raises
        ------
        DatasetError : an item is more than Milvus takes; nothing was changed.
        """
        if len(items) != len(embeddings) or embeddings.mean.shape[1] != self.dim:
            raise ValueError(
                f"{len(items)} items, embeddings {embeddings.mean.shape}; wanted one for each, of "
                f"{self.dim} dimensions"
            )
        with self._writing:
            rows, free = self._rows.of([item.id for item in items]), self._rows.end()
            for item in items:
                if item.id not in rows:
                    rows[item.id], free = free, free + 1
                self._code(item.label)
            version = time.time_ns()
            entities = [
                write_entity(rows[item.id], item, mean, variance, version)
                for item, mean, variance in zip(
                    items, embeddings.mean, embeddings.variance, strict=True
                )
            ]
            try:
                for start in range(0, len(entities), READ_AT_ONCE):
                    self._collection.ask("upsert", entities[start : start + READ_AT_ONCE])
            finally:
                self._forget(rows.values())

    def delete(self, item_ids: Sequence[str]) -> None:
        """Take items out; searches of this process do not find them on return.

        Raises
        ------
        ItemNotFound : one is not there; nothing was changed.
        """
        with self._writing:
            rows = self._rows.of(item_ids)
            for item_id in item_ids:
                if item_id not in rows:
                    raise ItemNotFound(f"The gallery has no item with the id {item_id!r}.")
            try:
                self._collection.ask("delete", ids=list(rows.values()))
            finally:
                self._forget(rows.values())

    def existing(self, item_ids: Sequence[str]) -> set[str]:
        """Return the ids among ``item_ids`` that the collection holds, whoever wrote them."""
        return set(self._rows.of(item_ids))

    def close(self) -> None:
        """Hang up."""
        self._collection.close()

    def _read(self, rows: NDArray[np.int64], fields: list[str]) -> dict[int, Any]:
        """Some fields of the items at ``rows`` (n,), those that there are."""
        within = f"row in {rows.tolist()}"
        found = self._collection.ask("query", filter=within, output_fields=["row", *fields])
        return {one["row"]: one for one in found}

    def _each(self, rows: NDArray[np.int64]) -> Iterator[Entity]:
        """The items at ``rows``, in that order, or `ItemNotFound`."""
        for part in _parts(rows.ravel(), READ_AT_ONCE):
            entities = self._entities(part)
            self._require(part, entities)
            yield from (entities[row] for row in part.tolist())

    @staticmethod
    def _require(rows: NDArray[np.int64], found: Container[int]) -> None:
        for row in rows.tolist():
            if row not in found:
                raise ItemNotFound(f"The item at row {row} is no longer in the gallery.")

    def _entities(self, rows: NDArray[np.int64]) -> dict[int, Entity]:
        """The items at ``rows`` (n,), those that there are; not those found lately are read."""
        known = self._lately.known(rows.tolist())
        missing = np.array([row for row in rows.tolist() if row not in known], dtype=np.int64)
        if missing.size:
            found = self._read(missing, ENTITY_FIELDS)
            read = {row: read_entity(one) for row, one in found.items()}
            self._lately.remember(read)
            known |= read
        return known

    def _forget(self, rows: Iterable[int]) -> None:
        self._lately.forget(rows)
        self.refresh()

    def _code(self, label: str | None) -> int:
        """The code of a label; of one that came later, the next one."""
        with self._naming:
            if label not in self._codes:
                self._codes[label] = len(self._labels)
                self._labels.append(str(label))
            return self._codes[label]


def _engine(described: MilvusDescription) -> str:
    """The index and how it is searched, in Milvus's words."""
    parameters = [f"{name}={value}" for name, value in described.index["parameters"].items()]
    return ",".join([f"Milvus {described.index['type']}", *parameters])


def _expressions(allowed: Allowed) -> list[str]:
    """Expressions that are true of the allowed rows between them."""
    if isinstance(allowed, _Matching):
        return [allowed.expression]
    if allowed.mask().all():
        return [EVERYTHING]
    return [f"row in {part.tolist()}" for part in _parts(allowed.rows(), EXACT_ROWS)]


def _parts(rows: NDArray[np.int64], n: int) -> list[NDArray[np.int64]]:
    return [rows[start : start + n] for start in range(0, len(rows), n)]
