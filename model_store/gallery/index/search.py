"""Finding rows in an index: all of them looked at, or as few as recall allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.gallery.index.build import IndexReport
from model_store.gallery.index.recall import FETCHED
from model_store.threads import faiss_threads, threads_for

INDEX_FILE = "gallery.faiss"
DIRECTIONS_FILE = "directions.npy"

EXACT_ROWS = 10_000
"""Allowed rows up to which an approximate index is left alone and each row is looked at: some
milliseconds, and nothing is missed."""

_AT_ONCE = 16_384

Rows = NDArray[np.int64]


class RowIndex(Protocol):
    """Unit directions, and which are near a query."""

    @property
    def directions(self) -> NDArray[np.float32]:
        """All of them, (N, D)."""

    def nearest(
        self, queries: NDArray[np.float32], n: int, allowed: NDArray[np.bool_] | None
    ) -> list[Rows]:
        """At least ``n`` rows near each query, or all that are allowed, in any order."""


def open_index(directory: Path, report: IndexReport) -> RowIndex:
    """The index in ``directory``."""
    path = str(directory / INDEX_FILE)
    if report.kind == "flat":
        return ExactIndex(faiss.read_index(path))
    # Mapped, so that opening takes no time and several processes share what they read; the tables
    # that speed up product quantisation would take more memory than the codes.
    flags = faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
    index = faiss.read_index(path, flags)
    # Mapped all the same, but without the ceremony of `numpy.memmap` at each look-up.
    directions = np.asarray(np.load(directory / DIRECTIONS_FILE, mmap_mode="r"))
    return ApproximateIndex(index, report, directions)


class ExactIndex:
    """Looks at every row."""

    def __init__(self, index: Any) -> None:  # noqa: ANN401 - FAISS has no types
        self._index = index
        # A view of the vectors FAISS holds, not a second copy.
        stored = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
        self.directions: NDArray[np.float32] = stored.reshape(index.ntotal, index.d)

    def nearest(
        self, queries: NDArray[np.float32], n: int, allowed: NDArray[np.bool_] | None
    ) -> list[Rows]:
        """The ``n`` nearest rows, or all that are allowed."""
        n_allowed = self._index.ntotal if allowed is None else int(np.count_nonzero(allowed))
        if min(n, n_allowed) == 0:
            return [np.empty(0, dtype=np.int64)] * len(queries)
        if allowed is not None and n_allowed <= n:
            return [np.flatnonzero(allowed)] * len(queries)
        parameters = None if allowed is None else faiss.SearchParameters(sel=_selector(allowed))
        with faiss_threads(threads_for(len(queries))):
            _, found = self._index.search(
                np.ascontiguousarray(queries), min(n, n_allowed), params=parameters
            )
        return list(found)


class ApproximateIndex:
    """Looks at the likely rows, by their codes, until there are enough.

    One query at a time: among others its distance to a centroid is rounded otherwise, and what it
    finds would depend on its company.
    """

    def __init__(
        self,
        index: Any,  # noqa: ANN401 - FAISS has no types
        report: IndexReport,
        directions: NDArray[np.float32],
    ) -> None:
        self._index = index
        self.directions = directions
        self._n_items = len(directions)
        [(self._knob, self._effort)] = report.parameters.items()
        self._most = int(index.nlist) if self._knob == "nprobe" else self._n_items

    def nearest(
        self, queries: NDArray[np.float32], n: int, allowed: NDArray[np.bool_] | None
    ) -> list[Rows]:
        """At least ``n`` rows near each query; of few allowed ones exactly the nearest."""
        n_allowed = self._n_items if allowed is None else int(np.count_nonzero(allowed))
        n = min(n, n_allowed)
        if n_allowed == self._n_items:
            allowed = None
        with faiss_threads(1):
            if allowed is not None and n_allowed <= EXACT_ROWS:
                rows = np.flatnonzero(allowed)
                return [self._exact(query, n, rows) for query in queries]
            selector = None if allowed is None else _selector(allowed)
            # As many allowed rows are looked at as there would be without a filter.
            effort = math.ceil(self._effort * self._n_items / n_allowed)
            fetched = min(max(n, FETCHED), n_allowed)
            found = [self._search(query, n, fetched, effort, selector) for query in queries]
        if all(rows is not None for rows in found):
            return [rows for rows in found if rows is not None]
        every = np.arange(self._n_items) if allowed is None else np.flatnonzero(allowed)
        return [
            self._exact(query, n, every) if rows is None else rows
            for query, rows in zip(queries, found, strict=True)
        ]

    def _search(
        self,
        query: NDArray[np.float32],
        n: int,
        fetched: int,
        effort: int,
        selector: Any,  # noqa: ANN401 - FAISS has no types
    ) -> Rows | None:
        """At least ``n`` rows, by as wide a search as it takes; None if none is wide enough."""
        while True:
            effort = min(effort, self._most)
            _, found = self._index.search(
                query[None], fetched, params=self._parameters(effort, selector)
            )
            rows: Rows = found[0][found[0] >= 0]
            if len(rows) >= n:
                return rows
            if effort == self._most:
                return None
            effort *= 2

    def _parameters(self, effort: int, selector: Any) -> Any:  # noqa: ANN401 - FAISS has no types
        if selector is None and effort == self._effort:
            return None  # what the index was written with
        kind = faiss.SearchParametersIVF if self._knob == "nprobe" else faiss.SearchParametersHNSW
        options = {self._knob: effort}
        return kind(**options) if selector is None else kind(sel=selector, **options)

    def _exact(self, query: NDArray[np.float32], n: int, rows: Rows) -> Rows:
        """The ``n`` nearest of ``rows``."""
        parts = range(0, len(rows), _AT_ONCE)
        similarities = [self.directions[rows[at : at + _AT_ONCE]] @ query for at in parts]
        if n >= len(rows):
            return rows
        return rows[np.argpartition(-np.concatenate(similarities), n - 1)[:n]]


def _selector(allowed: NDArray[np.bool_]) -> Any:  # noqa: ANN401 - FAISS has no types
    return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
