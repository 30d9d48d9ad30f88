"""A collection of Qdrant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model_store.stores.store import Direction, by_cosine, label_of
from model_store.vector_queries import NeighbourList


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
        """Return whether scores are cosines."""
        params = self.client.get_collection(self.collection).config.params.vectors
        one = params if self.vector is None else params[self.vector]
        return str(getattr(one.distance, "value", one.distance)).lower() == "cosine"
