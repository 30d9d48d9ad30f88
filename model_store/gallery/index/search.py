"""Finding rows in an index: all of them looked at, or as few as recall allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from model_store.errors import BundleMismatch
from model_store.gallery.index.allowed import Allowed
from model_store.gallery.index.build import IndexReport, parameters_of, selector
from model_store.gallery.index.recall import FETCHED
from model_store.threads import faiss_threads, threads_for
from model_store.verdicts import Plan

INDEX_FILE = "gallery.faiss"
DIRECTIONS_FILE = "directions.npy"

EXACT_ROWS = 10_000
"""Allowed rows up to which an approximate index is left alone and each row is looked at: some
milliseconds, and nothing is missed."""

SEARCH_FIRST_SHARE = 0.3
"""Share of allowed rows from which an inverted index is searched for more rows than are wanted,
whichever are allowed: nothing is then computed for rows that are not near. With 10⁶ rows it takes
0.9 of the time that a search among a mask takes at half of them allowed, twice that at 5 %."""

_MARGIN = 4
"""Standard deviations of the number of allowed ones among rows that were found, to be on the safe
side."""

_AT_ONCE = 16_384

Rows = NDArray[np.int64]


class RowIndex(Protocol):
    """Unit directions, and which are near a query."""

    @property
    def directions(self) -> NDArray[np.float32]:
        """All of them, (N, D)."""

    def nearest(
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None
    ) -> tuple[list[Rows], Plan]:
        """At least ``n`` rows near each query, or all that are allowed, in any order.

        Also how they were found.
        """


def open_index(directory: Path, report: IndexReport) -> RowIndex:
    """Open the index in ``directory``.

    Raises
    ------
    BundleMismatch : the file is not an index of the kind that ``report`` names, or refers to
        another file.
    """
    # An index may name a file with its inverted lists; FAISS would open that, wherever it is. With
    # this flag FAISS looks in the directory of the index only, and ignores it if it maps the index.
    flags = faiss.IO_FLAG_ONDISK_SAME_DIR
    if report.kind != "flat":
        # Mapped, so that opening takes no time and several processes share what they read; the
        # tables that speed up product quantisation would take more memory than the codes.
        flags |= faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
    try:
        index = faiss.read_index(str(directory / INDEX_FILE), flags)
    except RuntimeError as error:
        raise _not_an_index(report) from error
    if report.kind == "flat":
        if not isinstance(index, faiss.IndexFlatIP):
            raise _not_an_index(report)
        return ExactIndex(index)
    # Memory-mapped too, but without the overhead of `numpy.memmap` at each look-up.
    directions = np.asarray(np.load(directory / DIRECTIONS_FILE, mmap_mode="r"))
    return ApproximateIndex(index, report, directions)


def _not_an_index(report: IndexReport) -> BundleMismatch:
    return BundleMismatch(
        f"{INDEX_FILE} is not an index of kind {report.kind}, or refers to another file. Build the "
        "bundle again, or take it from a publisher whom you trust."
    )


class ExactIndex:
    """Looks at every row."""

    def __init__(self, index: Any) -> None:  # noqa: ANN401 - FAISS has no types
        self._index = index
        # A view of the vectors FAISS holds, not a second copy.
        stored = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
        self.directions: NDArray[np.float32] = stored.reshape(index.ntotal, index.d)

    def nearest(
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None
    ) -> tuple[list[Rows], Plan]:
        """The ``n`` nearest rows, or all that are allowed."""
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
        self, queries: NDArray[np.float32], n: int, allowed: Allowed | None
    ) -> tuple[list[Rows], Plan]:
        """At least ``n`` rows near each query; of few allowed ones exactly the nearest."""
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
            # Each as it would be alone.
            others, plan = self._masked(queries[missing], n, allowed.mask())
            rest = iter(others)
            return [next(rest) if rows is None else rows for rows in found], plan

    def _masked(
        self, queries: NDArray[np.float32], n: int, mask: NDArray[np.bool_]
    ) -> tuple[list[Rows], Plan]:
        """At least ``n`` rows of a mask near each query, each compared or searched for."""
        n_allowed = int(np.count_nonzero(mask))
        if n_allowed <= EXACT_ROWS:
            return self._compared(queries, n, np.flatnonzero(mask)), "exact"
        rest = None if n_allowed == self._n_items else mask
        return self._filtered_first(queries, min(n, n_allowed), rest), "filter_first"

    def _compared(self, queries: NDArray[np.float32], n: int, rows: Rows) -> list[Rows]:
        """The nearest of few rows."""
        return [self._exact(query, min(n, len(rows)), rows) for query in queries]

    def _searches_first(self, allowed: Allowed) -> bool:
        """Tell whether so many rows are allowed that a search finds enough of them unasked.

        And surely more than `EXACT_ROWS`, as the share is an estimate. Inverted lists are read in
        the same way with and without a filter; the way through a graph is another.
        """
        least = max(SEARCH_FIRST_SHARE * self._n_items, 2 * EXACT_ROWS)
        possible = self._knob == "nprobe" and allowed.at_most >= least
        return possible and allowed.share * self._n_items >= least

    def _found_first(self, query: NDArray[np.float32], n: int, allowed: Allowed) -> Rows | None:
        """The first allowed of the rows near a query; None where too few of them are.

        As many lists are read, and as many allowed rows taken, as by `_filtered_first`: what is
        found is the same where the share is known, and as much where it is estimated.
        """
        wanted = max(n, FETCHED)
        fetched = math.ceil((wanted + _MARGIN * math.sqrt(wanted)) / allowed.share)
        fetched = min(fetched, self._n_items)
        effort = min(math.ceil(self._effort / allowed.share), self._most)
        _, near = self._index.search(query[None], fetched, params=self._parameters(effort, None))
        every: Rows = near[0][near[0] >= 0]
        rows = every[allowed.at(every)][:wanted]
        # Fewer will do where the lists that are read hold no more.
        return None if len(rows) < (wanted if len(every) == fetched else n) else rows

    def _filtered_first(
        self,
        queries: NDArray[np.float32],
        n: int,
        mask: NDArray[np.bool_] | None,
    ) -> list[Rows]:
        """At least ``n`` of the rows of a mask near each query, which alone are compared."""
        n_allowed = self._n_items if mask is None else int(np.count_nonzero(mask))
        among = None if mask is None else selector(mask)
        # As many allowed rows are looked at as there would be without a filter.
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
        """At least ``n`` rows, by as wide a search as it takes; None if none is wide enough."""
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
            return None  # what the index was written with
        return parameters_of(self._index, effort, among)

    def _exact(self, query: NDArray[np.float32], n: int, rows: Rows) -> Rows:
        """The ``n`` nearest of ``rows``."""
        parts = range(0, len(rows), _AT_ONCE)
        similarities = [self.directions[rows[at : at + _AT_ONCE]] @ query for at in parts]
        if n >= len(rows):
            return rows
        return rows[np.argpartition(-np.concatenate(similarities), n - 1)[:n]]
