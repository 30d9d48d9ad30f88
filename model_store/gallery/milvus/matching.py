"""The rows that pass a filter; Milvus evaluates the filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.index.allowed import NO_FIELDS
from model_store.gallery.milvus.log import Head
from model_store.gallery.milvus.rows import MilvusRows
from model_store.verdicts import IndexedBy

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
