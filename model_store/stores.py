"""Adapters for vector databases: the database finds the neighbours, and Vouch decides.

Each adapter takes a client object of the store's library and does not import the library: Qdrant,
PostgreSQL, LanceDB and FAISS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Terms
from model_store.errors import InvalidVector
from model_store.queries import (
    ListDecision,
    NeighbourList,
    VectorQuery,
    cosines_of,
    decide_list,
    predictive_of,
)
from model_store.retriever import Retriever
from model_store.search import N_CANDIDATES

__all__ = [
    "FaissStore",
    "LanceStore",
    "PgvectorStore",
    "QdrantStore",
    "Store",
    "StoreAnswer",
    "search_and_decide",
]

Direction = NDArray[np.float32]


class Store(Protocol):
    """A vector database with the gallery's vectors; each result is sorted by descending cosine."""

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` items nearest to a unit vector (D,); all items if there are fewer."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The neighbours that a store has found, and the decision on these neighbours."""

    neighbours: NeighbourList
    decided: ListDecision


def search_and_decide(
    retriever: Retriever, store: Store, query: VectorQuery, terms: Terms | None = None
) -> StoreAnswer:
    """Find as many neighbours as the calibration needs in a store, and decide on these neighbours.

    Parameters
    ----------
    retriever : retriever of the bundle whose calibration is used.
    terms : options of the decision; None for the calibration's defaults.

    Raises
    ------
    InvalidVector : the store finds too few items. `decide_list` lists the other reasons.
    """
    calibration = retriever.calibration
    n = N_CANDIDATES if calibration is None else calibration.n_candidates
    neighbours = store.nearest(predictive_of(retriever, query).direction, n)
    terms = terms or Terms(retriever.alpha, stale=retriever.stale)
    return StoreAnswer(neighbours, decide_list(retriever, query, neighbours, terms))


def by_cosine(
    direction: Direction,
    ids: Sequence[str],
    labels: Sequence[str | None],
    vectors: Sequence[Sequence[float]] | NDArray[np.float32],
) -> NeighbourList:
    """Sort items by cosine, nearest first.

    Use this function if the store does not sort by cosine.
    """
    found = np.asarray(vectors, np.float64).reshape(len(ids), len(direction))
    cosines = np.nan_to_num(cosines_of(found, direction))
    order = np.argsort(-cosines, kind="stable").tolist()
    return NeighbourList(
        [ids[place] for place in order],
        [labels[place] for place in order],
        similarities=cosines[order],
    )


def label_of(value: object) -> str | None:
    """Convert a store's label to a text or None."""
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class QdrantStore:
    """A collection of Qdrant with any distance measure.

    Attributes
    ----------
    client : a ``qdrant_client.QdrantClient``.
    collection : name of the collection.
    label, id : payload keys of an item's label and id. If ``id`` is None, the point's id is used.
    vector : name of the vector, if a point has several vectors.
    options : options of ``query_points``, for example a filter.
    """

    client: Any
    collection: str
    label: str = "label"
    id: str | None = None
    vector: str | None = None
    options: dict[str, Any] | None = None

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` nearest points, by cosine."""
        by_score = self._is_cosine()
        found = self.client.query_points(
            self.collection,
            query=direction.tolist(),
            using=self.vector,
            limit=n,
            with_payload=True,
            with_vectors=not by_score,
            **(self.options or {}),
        ).points
        ids = [str(one.id if self.id is None else one.payload[self.id]) for one in found]
        labels = [label_of((one.payload or {}).get(self.label)) for one in found]
        if by_score:
            return NeighbourList(ids, labels, similarities=[one.score for one in found])
        vectors = [one.vector if self.vector is None else one.vector[self.vector] for one in found]
        return by_cosine(direction, ids, labels, vectors)

    def _is_cosine(self) -> bool:
        """Return whether scores are cosines.

        Raises
        ------
        InvalidVector : the collection has no vector of the given name.
        """
        params = self.client.get_collection(self.collection).config.params.vectors
        names = sorted(params) if isinstance(params, dict) else [None]
        if self.vector not in names:
            raise InvalidVector(
                f"The collection {self.collection!r} has vectors named {names}, but `vector` is "
                f"{self.vector!r}. Set `vector` to one of these."
            )
        one = params if self.vector is None else params[self.vector]
        return str(getattr(one.distance, "value", one.distance)).lower() == "cosine"


@dataclass(frozen=True, slots=True)
class PgvectorStore:
    """A table of PostgreSQL with pgvector; uses an index for cosine distance if there is one.

    Attributes
    ----------
    connection : a ``psycopg.Connection``.
    table : name of the table, optionally with its schema.
    vector, id, label : names of columns.
    where : a condition in SQL. The condition becomes part of the SQL statement, so never pass
        untrusted text.
    """

    connection: Any
    table: str
    vector: str = "embedding"
    id: str = "id"
    label: str = "label"
    where: str | None = None

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` nearest rows, by cosine."""
        columns = f"{_quoted(self.id)}, {_quoted(self.label)}"
        distance = f"{_quoted(self.vector)} <=> %s::vector"
        condition = "" if self.where is None else f"WHERE {self.where} "
        statement = (
            f"SELECT {columns}, 1 - ({distance}) FROM {_quoted(self.table)} {condition}"  # noqa: S608 - quoted, but for the caller's own condition
            f"ORDER BY {distance} LIMIT %s"
        )
        text = str(direction.tolist())
        with self.connection.transaction(), self.connection.cursor() as cursor:
            # an HNSW index returns at most `ef_search` rows; pgvector allows at most 1000
            wide = str(min(max(n, 40), 1000))
            cursor.execute("SELECT set_config('hnsw.ef_search', %s, true)", (wide,))
            found = cursor.execute(statement, (text, text, n)).fetchall()
        return NeighbourList(
            [str(row[0]) for row in found],
            [label_of(row[1]) for row in found],
            similarities=[float(row[2]) for row in found],
        )


def _quoted(name: str) -> str:
    """Quote each part of a dotted name."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in name.split("."))


@dataclass(frozen=True, slots=True)
class LanceStore:
    """A table of LanceDB.

    Attributes
    ----------
    table : a ``lancedb.table.Table``.
    vector, id, label : names of columns.
    where : a condition in LanceDB's syntax.
    """

    table: Any
    vector: str = "vector"
    id: str = "id"
    label: str = "label"
    where: str | None = None

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` nearest rows, by cosine."""
        search = self.table.search(direction.tolist(), vector_column_name=self.vector)
        search = search.distance_type("cosine").limit(n)
        search = search.select([self.id, self.label, "_distance"])
        if self.where is not None:
            search = search.where(self.where, prefilter=True)
        found = search.to_list()
        return NeighbourList(
            [str(row[self.id]) for row in found],
            [label_of(row[self.label]) for row in found],
            similarities=[1 - float(row["_distance"]) for row in found],
        )


_INNER_PRODUCT = 0
"""``faiss.METRIC_INNER_PRODUCT``."""


@dataclass(frozen=True, slots=True)
class FaissStore:
    """An index of FAISS over unit vectors, by inner product or by Euclidean distance.

    Attributes
    ----------
    index : a ``faiss.Index``; its row numbers are indexes into ``ids`` and ``labels``.
    ids : ids of all vectors in ``index``.
    labels : labels of all vectors in ``index``.
    """

    index: Any
    ids: Sequence[str]
    labels: Sequence[str | None]

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` nearest vectors.

        Raises
        ------
        InvalidVector : the index has vectors of another size, or another number of vectors than
            there are ids and labels.
        """
        if self.index.d != len(direction):
            raise InvalidVector(
                f"The index of FAISS has vectors of {self.index.d} numbers, but the query's vector "
                f"has {len(direction)}. Index vectors from the gallery's encoder."
            )
        if not self.index.ntotal == len(self.ids) == len(self.labels):
            raise InvalidVector(
                f"The index of FAISS has {self.index.ntotal:,} vectors, but there are "
                f"{len(self.ids):,} ids and {len(self.labels):,} labels. Give one of each for "
                "every vector."
            )
        measured, places = self.index.search(np.ascontiguousarray(direction[None]), n)
        found = places[0] >= 0  # −1 stands for a missing result
        cosines = measured[0][found].astype(np.float64)
        if self.index.metric_type != _INNER_PRODUCT:
            cosines = 1 - cosines / 2  # for unit vectors, |a - b|² = 2 - 2 a·b
        chosen = places[0][found].tolist()
        return NeighbourList(
            [self.ids[place] for place in chosen],
            [self.labels[place] for place in chosen],
            similarities=cosines,
        )
