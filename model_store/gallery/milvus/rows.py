"""Finds rows of a Milvus collection by number, id or condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_store.gallery.milvus.collection import EVENTUALLY, NOW, Collection
from model_store.gallery.milvus.filter import literal

READ_AT_ONCE = 1_000
"""Maximum number of items in one request, because a response of Milvus has at most 64 MB."""


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
