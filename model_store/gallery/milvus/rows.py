"""The rows of a Milvus collection: which hold items, and where an item is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model_store.errors import ItemNotFound
from model_store.gallery.milvus.collection import Collection
from model_store.gallery.milvus.filter import literal

READ_AT_ONCE = 1_000
"""Items: 64 MB is the most that an answer may have."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of items, rows and changes; see `model_store.gallery.Gallery`."""

    n_items: int
    n_rows: int
    n_changed: int


class MilvusRows:
    """The rows of a collection that was built with ``n_built`` items.

    What writers go by (`counts`, `of`) is what every process has written until now; what readers
    go by may be a moment old.
    """

    def __init__(self, collection: Collection, n_built: int) -> None:
        self._collection = collection
        self._n_built = n_built

    def counts(self, known: Counts | None = None) -> Counts:
        """Count what is there now; ``known`` is kept where as many items and rows are there."""
        n_items, n_rows = self._count(""), self.end()
        if known is not None and (known.n_items, known.n_rows) == (n_items, n_rows):
            return known
        unchanged = self._count("version == 0")
        n_new = self._count(f"row >= {self._n_built}") if n_rows > self._n_built else 0
        return Counts(n_items, n_rows, self._n_built - unchanged + n_new)

    def end(self) -> int:
        """The number after the last row."""
        if not self._any_from(self._n_built):
            return self._n_built
        step = 1
        while self._any_from(self._n_built + step):
            step *= 2
        # There are rows from low on, none from high on.
        low, high = self._n_built, self._n_built + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._any_from(middle) else (low, middle)
        return high

    def of(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the rows of the items with these ids, without ids that do not exist."""
        rows: dict[str, int] = {}
        for start in range(0, len(item_ids), READ_AT_ONCE):
            listed = ", ".join(map(literal, item_ids[start : start + READ_AT_ONCE]))
            rows |= {one["id"]: one["row"] for one in self._now(f"id in [{listed}]", ["row", "id"])}
        return rows

    def within(self, start: int, end: int, condition: str = "") -> list[int]:
        """Rows from ``start`` to before ``end`` that hold an item that meets the condition."""
        within = f"row >= {start} and row < {end}" + (condition and f" and {condition}")
        found = self._collection.ask("query", filter=within, output_fields=["row"])
        return sorted(one["row"] for one in found)

    def by_id(self, item_id: str, fields: Sequence[str]) -> dict[str, Any]:
        """Its row and some fields of the item of that id, or `ItemNotFound`."""
        within = f"id == {literal(item_id)}"
        found = self._collection.ask("query", filter=within, output_fields=["row", *fields])
        if not found:
            raise ItemNotFound(f"The gallery has no item with the id {item_id!r}.")
        return dict(found[0])

    def _any_from(self, row: int) -> bool:
        return bool(self._now(f"row >= {row}", ["row"], limit=1))

    def _count(self, condition: str) -> int:
        [found] = self._now(condition, ["count(*)"])
        return int(found["count(*)"])

    def _now(self, condition: str, fields: list[str], **options: int) -> list[dict[str, Any]]:
        """Ask for what is there now, whoever wrote it."""
        found: list[dict[str, Any]] = self._collection.ask(
            "query",
            filter=condition,
            output_fields=fields,
            consistency_level="Strong",
            **options,
        )
        return found
