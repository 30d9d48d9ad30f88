"""Queries for the rows of a Milvus collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_store.gallery.milvus.collection import EVENTUALLY, NOW, Collection
from model_store.gallery.milvus.filter import literal

READ_AT_ONCE = 1_000
"""Maximum number of items in one request: an answer of Milvus has at most 64 MB."""


class MilvusRows:
    """The rows of a collection that was built with ``n_built`` items.

    A method with ``since`` finds all writes up to that Milvus timestamp.
    """

    def __init__(self, collection: Collection, n_built: int) -> None:
        self._collection = collection
        self._n_built = n_built

    def end(self) -> int:
        """One more than the last row of any writer."""
        if not self._any_from(self._n_built):
            return self._n_built
        step = 1
        while self._any_from(self._n_built + step):
            step *= 2
        # There are rows at or after `low`, and none at or after `high`.
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
        """Return the rows that items with these ids had when the collection was built."""
        rows: dict[str, int] = {}
        for start in range(0, len(item_ids), READ_AT_ONCE):
            listed = ", ".join(map(literal, item_ids[start : start + READ_AT_ONCE]))
            condition = f"id in [{listed}] and row < {self._n_built}"
            rows |= {one["id"]: one["row"] for one in self._find(condition, ["id"], EVENTUALLY)}
        return rows

    def within(self, start: int, end: int, since: int, condition: str = "") -> list[int]:
        """Rows ``start`` to ``end`` − 1 whose item meets the condition."""
        within = f"row >= {start} and row < {end}" + (condition and f" and {condition}")
        return sorted(one["row"] for one in self._find(within, [], since))

    def among(self, rows: Sequence[int], since: int, condition: str) -> set[int]:
        """The subset of ``rows`` whose item meets the condition."""
        within = f"row in {list(rows)} and {condition}"
        return {one["row"] for one in self._find(within, [], since)}

    def at(
        self, rows: Sequence[int], since: int, fields: Sequence[str]
    ) -> dict[int, dict[str, Any]]:
        """The given fields of the existing items at ``rows``."""
        found = self._find(f"row in {list(rows)}", fields, since)
        return {one["row"]: one for one in found}

    def of_id(self, item_id: str, since: int, fields: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of an id with the given fields; at most one row is current."""
        return self._find(f"id == {literal(item_id)}", fields, since)

    def drop(self, rows: Sequence[int]) -> None:
        """Remove rows that are no longer current."""
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
