"""A table of LanceDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model_store.stores.store import Direction, label_of
from model_store.vector_queries import NeighbourList


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
