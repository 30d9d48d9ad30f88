"""Finds rows of a Milvus collection by number, id or condition; Milvus evaluates filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.entities import READ_AT_ONCE
from model_store.gallery.index.allowed import NO_FIELDS
from model_store.gallery.milvus.collection import EVENTUALLY, NOW, Collection
from model_store.gallery.milvus.filter import literal
from model_store.gallery.milvus.log import Head
from model_store.verdicts import IndexedBy


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


class MatchingRows:
    """The rows of a gallery for which an expression is true; implements `Allowed`.

    A search sends the expression to Milvus. Milvus also counts the rows and checks single rows.
    Only `rows` and `mask` fetch all rows; a search calls `rows` only if Milvus finds too few rows.

    Parameters
    ----------
    expression : filter expression of Milvus.
    head : head of the log.
    n_rows : number of rows of the gallery at this head.
    current : function that takes rows (n,) and returns the rows that are current.
    """

    def __init__(
        self,
        rows: MilvusRows,
        expression: str,
        head: Head,
        n_rows: int,
        current: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    ) -> None:
        self.expression = expression
        self._rows, self._head, self._n_rows = rows, head, n_rows
        self._current = current

    @cached_property
    def at_most(self) -> int:
        """The number of rows that pass the filter; may include recently replaced rows."""
        return self._rows.count(self.expression, self._head.since)

    @property
    def share(self) -> float:
        """The share of the gallery's items that pass the filter."""
        return min(self.at_most / max(self._head.n_items, 1), 1.0)

    @property
    def indexes(self) -> Mapping[str, IndexedBy]:
        """An empty mapping, because Milvus does not report which index it uses."""
        return NO_FIELDS

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

    def mask(self) -> NDArray[np.bool_]:
        """Return a read-only mask (N,) of the allowed rows."""
        mask = np.zeros(self._n_rows, dtype=bool)
        mask[self.rows()] = True
        mask.flags.writeable = False
        return mask
