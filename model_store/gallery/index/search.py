"""Finds the nearest rows with an exact or an approximate index."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.errors import BundleMismatch
from model_store.gallery.filters.selection import Allowed
from model_store.gallery.index.build import (
    FETCHED,
    IndexReport,
    faiss_threads,
    parameters_of,
    selector,
)
from model_store.machine import usable_processors
from model_store.messages import Plan

_USABLE_PROCESSORS = usable_processors()

INDEX_FILE = "gallery.faiss"
DIRECTIONS_FILE = "directions.npy"

EXACT_ROWS = 10_000
"""Maximum number of allowed rows for an exact search, which compares the query with each allowed
row and does not use the approximate index. The comparison takes some milliseconds and misses no
row."""

SEARCH_FIRST_SHARE = 0.3
"""If at least this share of all rows is allowed, an inverted index is searched without the filter.
This unfiltered search fetches more rows than requested. Then the filter is applied to the fetched
rows. A test with 10⁶ rows compared an unfiltered search and a search that uses the mask of allowed
rows. With half of the rows allowed, the unfiltered search took 0.9 times as long as the search with
the mask. With 5 % of the rows allowed, the unfiltered search took twice as long as the search with
the mask."""

_MARGIN = 4
"""Safety margin in standard deviations. The number of allowed rows in the result of an unfiltered
search is uncertain. The search fetches so many rows that the expected number of allowed rows
exceeds the wanted number by this many standard deviations."""

_AT_ONCE = 16_384

Rows = NDArray[np.int64]


class RowIndex(Protocol):
    """An index of unit directions that finds the directions nearest to a query."""

    @property
    def directions(self) -> NDArray[np.float32]:
        """All directions, (N, D)."""

    def nearest(
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None
    ) -> tuple[list[Rows], Plan]:
        """Return at least ``n`` rows near each query, or all allowed rows, in any order.

        The `Plan` describes how the rows were found.
        """


def open_index(directory: Path, report: IndexReport) -> RowIndex:
    """Open the index in ``directory``.

    Raises
    ------
    BundleMismatch : the file is not an index of the kind in ``report``, or it refers to another
        file.
    """
    # An index file may name another file that has the inverted lists, and FAISS opens any path.
    # With this flag, FAISS opens only a file in the directory of the index. If the index is
    # memory-mapped, FAISS opens no other file.
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR
    if report.kind != "flat":
        # The index is memory-mapped, so it opens quickly and processes share its memory. Skip the
        # precomputed tables of product quantisation: they would take more memory than the codes.
        flags |= faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
    try:
        index = faiss.read_index(str(directory / INDEX_FILE), flags)
    except RuntimeError as error:
        raise _not_an_index(report) from error
    if report.kind == "flat":
        if not isinstance(index, faiss.IndexFlatIP):
            raise _not_an_index(report)
        return ExactIndex(index)
    # The file is memory-mapped too; a plain array avoids the overhead of `numpy.memmap`.
    directions = np.asarray(np.load(directory / DIRECTIONS_FILE, mmap_mode="r"))
    return ApproximateIndex(index, report, directions)


def _not_an_index(report: IndexReport) -> BundleMismatch:
    return BundleMismatch(
        f"{INDEX_FILE} is not an index of kind {report.kind}, or refers to another file. Build the "
        "bundle again, or take it from a publisher whom you trust."
    )


class ExactIndex:
    """Compares every row."""

    def __init__(self, index: Any) -> None:  # noqa: ANN401 - FAISS has no types
        self._index = index
        # a view of the vectors in FAISS, not a copy
        stored = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
        self.directions: NDArray[np.float32] = stored.reshape(index.ntotal, index.d)

    @classmethod
    def of(cls, directions: NDArray[np.float32]) -> ExactIndex:
        """Index unit ``directions`` (N, D), which are copied."""
        index = faiss.IndexFlatIP(directions.shape[1])
        index.add(directions)
        return cls(index)

    def nearest(
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None
    ) -> tuple[list[Rows], Plan]:
        """Return the ``n`` nearest allowed rows; all allowed rows if there are fewer."""
        mask = None if allowed is None else allowed.mask()
        n_allowed = self._index.ntotal if mask is None else int(np.count_nonzero(mask))
        if min(n, n_allowed) == 0:
            return [np.empty(0, dtype=np.int64)] * len(queries), "exact"
        if mask is not None and n_allowed <= n:
            return [np.flatnonzero(mask)] * len(queries), "exact"
        parameters = None if mask is None else faiss.SearchParameters(sel=selector(mask))
        with faiss_threads(threads_for(len(queries))):
            _, found = self._index.search(
                np.ascontiguousarray(queries), min(n, n_allowed), params=parameters
            )
        return list(found), "exact"


class ApproximateIndex:
    """An approximate index: a search compares the codes of only a part of the rows.

    If a search finds too few rows, it is repeated with twice the effort.

    Queries are searched one by one. In a batch, FAISS rounds the distances to the centroids
    differently, so a result would depend on the other queries.
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
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None
    ) -> tuple[list[Rows], Plan]:
        """Return at least ``n`` rows near each query.

        If few rows are allowed, all allowed rows are compared, so the result is exact.
        """
        with faiss_threads(1):
            if allowed is None:
                return self._filtered_first(queries, min(n, self._n_items), None), "filter_first"
            if allowed.at_most <= EXACT_ROWS:
                return self._compared(queries, n, allowed.rows()), "exact"
            if not self._searches_first(allowed):
                return self._masked(queries, n, allowed.mask())
            found = [self._found_first(query, n, allowed) for query in queries]
            missing = [place for place, rows in enumerate(found) if rows is None]
            if not missing:
                return [rows for rows in found if rows is not None], "search_first"
            # The result of a query must not depend on the other queries.
            others, plan = self._masked(queries[missing], n, allowed.mask())
            rest = iter(others)
            return [next(rest) if rows is None else rows for rows in found], plan

    def _masked(
        self, queries: NDArray[np.float32], n: int, mask: NDArray[np.bool_]
    ) -> tuple[list[Rows], Plan]:
        """Return at least ``n`` rows of a mask near each query.

        If the mask has few rows, all rows of the mask are compared, so the result is exact.
        """
        n_allowed = int(np.count_nonzero(mask))
        if n_allowed <= EXACT_ROWS:
            return self._compared(queries, n, np.flatnonzero(mask)), "exact"
        rest = None if n_allowed == self._n_items else mask
        return self._filtered_first(queries, min(n, n_allowed), rest), "filter_first"

    def _compared(self, queries: NDArray[np.float32], n: int, rows: Rows) -> list[Rows]:
        """Compare all ``rows`` with each query; return at most the ``n`` nearest rows of each."""
        return [self._exact(query, n, rows) for query in queries]

    def _searches_first(self, allowed: Allowed) -> bool:
        """Return whether an unfiltered search would find enough allowed rows.

        The estimated number of allowed rows must be at least twice `EXACT_ROWS`. The factor of two
        allows for the error of the estimate. For a graph, the result is always False, because a
        filter changes the path through the graph. A filter does not change which inverted lists are
        read.
        """
        least = max(SEARCH_FIRST_SHARE * self._n_items, 2 * EXACT_ROWS)
        possible = self._knob == "nprobe" and allowed.at_most >= least
        return possible and allowed.share * self._n_items >= least

    def _found_first(self, query: NDArray[np.float32], n: int, allowed: Allowed) -> Rows | None:
        """Search without the filter; return the nearest allowed rows, or None if too few are found.

        This method and `_filtered_first` read the same number of lists, and return the same number
        of rows. If ``allowed.share`` is exact, both methods return the same rows. If
        ``allowed.share`` is an estimate, the two methods possibly return different rows.
        """
        wanted = max(n, FETCHED)
        fetched = math.ceil((wanted + _MARGIN * math.sqrt(wanted)) / allowed.share)
        fetched = min(fetched, self._n_items)
        effort = min(math.ceil(self._effort / allowed.share), self._most)
        _, near = self._index.search(query[None], fetched, params=self._parameters(effort, None))
        every: Rows = near[0][near[0] >= 0]
        rows = every[allowed.at(every)][:wanted]
        # If the lists that were read contain fewer rows than ``fetched``, ``n`` rows are enough.
        return None if len(rows) < (wanted if len(every) == fetched else n) else rows

    def _filtered_first(
        self,
        queries: NDArray[np.float32],
        n: int,
        mask: NDArray[np.bool_] | None,
    ) -> list[Rows]:
        """Return at least ``n`` rows near each query; only rows of the mask are compared."""
        n_allowed = self._n_items if mask is None else int(np.count_nonzero(mask))
        among = None if mask is None else selector(mask)
        # With this effort, the search compares as many allowed rows as a search without a filter.
        effort = math.ceil(self._effort * self._n_items / n_allowed)
        fetched = min(max(n, FETCHED), n_allowed)
        found = [self._search(query, n, fetched, effort, among) for query in queries]
        if all(rows is not None for rows in found):
            return [rows for rows in found if rows is not None]
        every = np.arange(self._n_items) if mask is None else np.flatnonzero(mask)
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
        among: Any,  # noqa: ANN401 - FAISS has no types
    ) -> Rows | None:
        """Widen the search until it finds ``n`` rows; None if the widest search finds fewer."""
        while True:
            effort = min(effort, self._most)
            _, found = self._index.search(
                query[None], fetched, params=self._parameters(effort, among)
            )
            rows: Rows = found[0][found[0] >= 0]
            if len(rows) >= n:
                return rows
            if effort == self._most:
                return None
            effort *= 2

    def _parameters(self, effort: int, among: Any) -> Any:  # noqa: ANN401 - FAISS has no types
        if among is None and effort == self._effort:
            return None  # the parameters stored with the index
        return parameters_of(self._index, effort, among)

    def _exact(self, query: NDArray[np.float32], n: int, rows: Rows) -> Rows:
        """Among ``rows``, return the ``n`` rows that are nearest to the query."""
        parts = range(0, len(rows), _AT_ONCE)
        similarities = [self.directions[rows[at : at + _AT_ONCE]] @ query for at in parts]
        if n >= len(rows):
            return rows
        return rows[np.argpartition(-np.concatenate(similarities), n - 1)[:n]]


def threads_for(n_queries: int) -> int:
    """Return the number of threads for a search with ``n_queries`` queries in one call.

    The search for a single query uses only one thread. On two cores, a search with waiting OpenMP
    threads took three times as long as a search without these threads.
    """
    return 1 if n_queries == 1 else min(faiss.omp_get_max_threads(), _USABLE_PROCESSORS)
