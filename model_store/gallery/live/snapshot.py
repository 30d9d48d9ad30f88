"""The state of a live gallery after one change. A request uses one snapshot from start to end.

The items are divided into runs. A run has `RUN` items, or 2, 4, 8, … times `RUN` items. Two runs of
equal length merge into one run, so no two runs have the same length. So each item is indexed only a
few times, and a filter reads few runs. The last run can have fewer than `RUN` items; each change
makes its index again.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import ItemNotFound
from model_store.gallery.files.gallery import FaissGallery, similarities_of
from model_store.gallery.filters.columns import Column, Counted, facet_of
from model_store.gallery.filters.grammar import Field, Filter
from model_store.gallery.filters.selection import NO_FIELDS, Allowed, fields_of, select
from model_store.gallery.filters.sql import as_stored
from model_store.gallery.protocol import (
    AT_ONCE,
    PREVIEWED_AT_ONCE,
    SIMILARITY_DECIMALS,
    Candidates,
    Item,
    NewItem,
    Thumbnail,
    Upsert,
    Vector,
    item_not_found,
)
from model_store.records import Facet
from model_store.table import HalfRows

from .log import ChangesFile

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


class RowsOfAll:
    """Allowed rows of the base and of added items, without removed rows; implements `Allowed`.

    Parameters
    ----------
    of_base : allowed rows of the base, 0 to N − 1.
    since : (M,) mask of the allowed rows among the rows N to N + M − 1.
    removed : (N + M,) mask of the rows of removed items.
    """

    def __init__(self, of_base: Allowed, since: Mask, removed: Mask) -> None:
        self._of_base, self._since, self._removed = of_base, since, removed
        self._n_base = len(removed) - len(since)
        self._n_since = int(np.count_nonzero(since))
        self.at_most = of_base.at_most + self._n_since
        self.indexes = of_base.indexes

    @property
    def share(self) -> float:
        """Estimated share of the N + M rows that is allowed; each call returns the same value."""
        of_base = self._of_base.share * self._n_base
        return (of_base + self._n_since) / max(len(self._removed), 1)

    def at(self, rows: Rows) -> Mask:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""
        in_base = rows < self._n_base
        found = np.empty(rows.shape, dtype=bool)
        found[in_base] = self._of_base.at(rows[in_base])
        found[~in_base] = self._since[rows[~in_base] - self._n_base]
        return found & ~self._removed[rows]

    def rows(self) -> Rows:
        """Return all allowed rows, ascending."""
        since = self._n_base + np.flatnonzero(self._since)
        rows: Rows = np.concatenate([self._of_base.rows(), since])
        there: Rows = rows[~self._removed[rows]]
        return there

    def mask(self) -> Mask:
        """Return a read-only mask (N + M,) of the allowed rows."""
        mask = np.concatenate([self._of_base.mask(), self._since])
        mask &= ~self._removed
        mask.flags.writeable = False
        return mask


class RowsOfBase:
    """Allowed rows of the base, 0 to N − 1, without removed rows; implements `Allowed`.

    Parameters
    ----------
    allowed : allowed rows of the whole live gallery; None for all rows.
    removed : (N,) mask of the rows of removed items in the base.
    n_removed : number of True values in ``removed``.
    n_rows : number of rows of the whole live gallery.
    """

    def __init__(self, allowed: Allowed | None, removed: Mask, n_removed: int, n_rows: int) -> None:
        self._allowed, self._removed, self._n_rows = allowed, removed, n_rows
        self._there = len(removed) - n_removed
        self.at_most, self.indexes = self._there, NO_FIELDS
        if allowed is not None:
            self.at_most, self.indexes = min(self._there, allowed.at_most), allowed.indexes

    @property
    def share(self) -> float:
        """Estimated share of the N rows that is allowed; each call returns the same value."""
        n: float = self._there
        if self._allowed is not None:
            n = min(n, self._allowed.share * self._n_rows)
        return n / max(len(self._removed), 1)

    def at(self, rows: Rows) -> Mask:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""
        there = ~self._removed[rows]
        return there if self._allowed is None else there & self._allowed.at(rows)

    def rows(self) -> Rows:
        """Return all allowed rows, ascending."""
        if self._allowed is None:
            return np.flatnonzero(~self._removed)
        rows = self._allowed.rows()
        rows = rows[: np.searchsorted(rows, len(self._removed))]
        return rows[~self._removed[rows]]

    def mask(self) -> Mask:
        """Return a read-only mask (N,) of the allowed rows."""
        mask = ~self._removed
        if self._allowed is not None:
            mask &= self._allowed.mask()[: len(self._removed)]
        mask.flags.writeable = False
        return mask


RUN = 256
"""Number of items in the shortest complete run. To index this many items takes about as long as one
search."""

MOST_COLUMNS, MOST_BYTES = 1_024, 2**26
"""Maximum number of cached indexes, and maximum size of the cache in bytes. There is one index for
each field and run. A compaction runs by default after 10,000 added items. For 10,000 items, the
indexes of a hundred fields fit into the cache."""


class LogColumns:
    """Builds and caches field indexes for the items in a log; thread-safe."""

    def __init__(self, log: ChangesFile) -> None:
        self._log = log
        self._columns: OrderedDict[tuple[Field, int, int], Column] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def matching(self, part: Filter, sequences: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (M,): True for each of the first M items in the log that passes a filter.

        Parameters
        ----------
        sequences : (M,) sequence numbers of the changes that wrote these items, ascending.
        """
        mask = np.zeros(len(sequences), dtype=bool)
        fields, stored = fields_of(part), as_stored(part)
        for run in runs(len(sequences)):
            columns = {field: self._column(field, run, sequences) for field in fields}
            mask[run.start : run.stop] = select(stored, columns, len(run)).mask()
        return mask

    def all(self, field: Field, sequences: NDArray[np.int64]) -> Iterator[tuple[int, Column]]:
        """Yield the start and the index of each run; ``sequences``: see `matching`."""
        for run in runs(len(sequences)):
            yield run.start, self._column(field, run, sequences)

    def _column(self, field: Field, run: range, sequences: NDArray[np.int64]) -> Column:
        """Return the index of a field for the items of one run."""
        key = field, run.start, run.stop
        with self._lock:
            column = self._columns.get(key)
        if column is None:
            column = self._log.column(field, sequences[run.start : run.stop])
        with self._lock:
            if key not in self._columns:
                self._columns[key] = column
                self._n_bytes += column.n_bytes
            self._columns.move_to_end(key)
            while len(self._columns) > MOST_COLUMNS or self._n_bytes > MOST_BYTES:
                _, old = self._columns.popitem(last=False)
                self._n_bytes -= old.n_bytes
        return column


def runs(n: int) -> Iterator[range]:
    """Yield the runs of ``n`` items, the longest first; see `model_store.gallery.live.snapshot`."""
    start, full = 0, n // RUN
    for power in reversed(range(full.bit_length())):
        if full >> power & 1:
            yield range(start, start + (RUN << power))
            start += RUN << power
    if start < n:
        yield range(start, n)


NumberT = TypeVar("NumberT", bound=np.generic)

_SLACK = 1e-5
"""Maximum error of an inner product in float32. Two similarities that differ by less than this
error are computed again in float64."""


@dataclass(frozen=True, slots=True)
class DeltaSegment:
    """Items added after the base was built, oldest first; includes replaced and deleted items.

    Attributes
    ----------
    sequences : (M,) sequence numbers of the changes that added the items.
    ids : ids of the M items; the list may continue with later items.
    is_new : (M,) True if the base has no item with this id.
    directions : (M, D) unit vectors.
    variances : (M, D), divided by the squared norm of the mean.
    total_variances : (M,), sums of ``variances`` over the dimensions.
    label_codes : (M,), -1 for an item without a label.
    rows_of : id → all current and earlier rows of the items with this id. The rows may include rows
        of later snapshots.
    """

    sequences: NDArray[np.int64]
    ids: Sequence[str]
    is_new: NDArray[np.bool_]
    directions: NDArray[np.float32]
    variances: NDArray[np.float32]
    total_variances: NDArray[np.float32]
    label_codes: NDArray[np.int32]
    rows_of: Mapping[str, Sequence[int]]


class GallerySnapshot:
    """A base, added items and removed rows; implements `Gallery`.

    The base has the rows 0 to N − 1; added items have the rows N, N + 1, …

    Parameters
    ----------
    labels : see `Gallery.labels`.
    removed : distinct rows of removed items.
    log : the log with the added items and their pictures.
    columns : field indexes of the added items.

    Attributes
    ----------
    version : sequence number of the last change.
    """

    is_local = True

    def __init__(
        self,
        base: FaissGallery,
        appended: DeltaSegment,
        labels: Sequence[str],
        removed: NDArray[np.int64],
        log: ChangesFile,
        columns: LogColumns,
        version: int,
    ) -> None:
        self._base, self._appended, self._log = base, appended, log
        self._columns = columns
        self.labels = labels
        self.version = version
        self.encoder_fingerprint, self.index_type = base.encoder_fingerprint, base.index_type
        self.index, self.filter_fields = base.index, base.filter_fields
        self.dim, self.preview_side = base.dim, base.preview_side
        self.n_rows = base.n_rows + len(appended.sequences)
        self.n_items = self.n_rows - len(removed)
        # The system allocates zeros lazily, so this takes little memory and time for a large base.
        self._removed = np.zeros(self.n_rows, dtype=bool)
        self._removed[removed] = True
        self._n_removed_of_base = int((removed < base.n_rows).sum())
        self._is_base = self.n_rows == self.n_items == base.n_rows
        n_new = int((appended.is_new & ~self._removed[base.n_rows :]).sum())
        self.n_changed = base.n_changed + self._n_removed_of_base + n_new

    @cached_property
    def held_labels(self) -> Sequence[str]:
        """The labels of the current items, in the order of their codes."""
        if self._is_base:
            return self._base.labels
        codes = self.label_codes(self.rows())
        counts = np.bincount(codes[codes >= 0], minlength=len(self.labels))
        return tuple(self.labels[code] for code in np.flatnonzero(counts).tolist())

    @property
    def n_appended(self) -> int:
        """The number of rows that were added after the base was built.

        A search compares each of these rows with the query.
        """
        return self.n_rows - self._base.n_rows

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D); see `Gallery.candidates`."""
        if self._is_base:
            return self._base.candidates(directions, n, allowed)
        n_base = self._base.n_rows
        usable = ~self._removed[n_base:]
        if allowed is not None:
            usable &= allowed.at(np.arange(n_base, self.n_rows))
        places, in_base = np.flatnonzero(usable), allowed
        if allowed is not None or self._n_removed_of_base:
            removed = self._removed[:n_base]
            in_base = RowsOfBase(allowed, removed, self._n_removed_of_base, self.n_rows)
        found = self._base.candidates(directions, n, in_base)
        if not places.size:
            return found
        merged = [
            self._merged(direction, n, places, rows, similarities)
            for direction, rows, similarities in zip(
                directions, found.rows, found.similarities, strict=True
            )
        ]
        rows, similarities = map(np.stack, zip(*merged, strict=True))
        return Candidates(rows, similarities, found.plan)

    def _merged(
        self,
        direction: NDArray[np.float32],
        n: int,
        places: NDArray[np.int64],
        rows: NDArray[np.int64],
        similarities: NDArray[np.float64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Merge results of the base with appended items at ``places``; return the n nearest."""
        directions = self._appended.directions
        roughly = (directions @ direction)[places]
        if len(places) > n:
            nth = np.partition(roughly, len(places) - n)[len(places) - n]
            places = places[roughly >= nth - _SLACK]
        exactly = similarities_of(directions[places], direction)
        rows = np.concatenate([rows, self._base.n_rows + places])
        similarities = np.concatenate([similarities, np.round(exactly, SIMILARITY_DECIMALS)])
        order = np.argsort(-similarities, kind="stable")
        rows, similarities = rows[order], similarities[order]
        return self._by_id(rows, similarities)[:n], similarities[:n]

    def _by_id(
        self, rows: NDArray[np.int64], similarities: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Return ``rows``, sorted by similarity, with rows of equal similarity sorted by id."""
        equal = similarities[1:] == similarities[:-1]
        tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        if not tied.size:
            return rows
        ids = [item.id for item in self.items(rows[tied])]
        order = sorted(range(len(tied)), key=lambda i: (-similarities[tied[i]], ids[i]))
        ordered = rows.copy()
        ordered[tied] = rows[tied[order]]
        return ordered

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass a filter, as the argument ``allowed`` of `candidates`."""
        if self._is_base:
            return self._base.matching(part)
        since = self._columns.matching(part, self._appended.sequences)
        return RowsOfAll(self._base.matching(part), since, self._removed)

    def facets(self, most: int) -> list[Facet]:
        """Describe the fields that were indexed at the build; see `Gallery.facets`."""
        indexes = self._base.field_indexes().items()
        return [
            facet_of(field.name, self._counted(field, column), most) for field, column in indexes
        ]

    def _counted(self, field: Field, of_base: Column) -> list[Counted]:
        """Return the indexes of a field: the first for the base, the others for added items.

        Each index has the rows of its removed items.
        """
        starts = {0: of_base}
        for start, column in self._columns.all(field, self._appended.sequences):
            starts[self._base.n_rows + start] = column
        return [
            Counted(column, np.flatnonzero(self._removed[start : start + len(column.codes)]))
            for start, column in starts.items()
        ]

    def rows(self) -> NDArray[np.int64]:
        """Return the rows (n_items,) of all items, ascending."""
        return np.flatnonzero(~self._removed)

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit directions (..., D) of ``rows`` (...)."""
        return self._at(rows, self._base.directions, self._appended.directions)

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each total variance, divided by the item's squared norm: Σ_d v_d / ‖m‖², (...)."""
        return self._at(rows, self._base.total_variances, self._appended.total_variances)

    def variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each variance, divided by the item's squared norm: v / ‖m‖², (..., D)."""
        return self._at(rows, self._base.variances, self._appended.variances)

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the label codes of ``rows`` (...); -1 for an item without a label."""
        return self._at(rows, self._base.label_codes, self._appended.label_codes)

    def _at(
        self,
        rows: NDArray[np.int64],
        of_base: Callable[[NDArray[np.int64]], NDArray[NumberT]],
        appended: NDArray[NumberT],
    ) -> NDArray[NumberT]:
        """Return the values of ``rows`` from the base and from the array ``appended``."""
        if self._is_base:
            return of_base(rows)
        in_base = rows < self._base.n_rows
        if in_base.all():
            return of_base(rows)
        values = np.empty((*rows.shape, *appended.shape[1:]), appended.dtype)
        values[in_base] = of_base(rows[in_base])
        values[~in_base] = appended[rows[~in_base] - self._base.n_rows]
        return values

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Return the rows of the ``limit`` items that follow ``after``, in the order of ids."""
        n_base = self._base.n_rows
        start, first = 0, ""
        if after is not None:
            first = self._id(after)
            start = after + 1 if after < n_base else self._base.next_row(first)
        in_base = self._there(start, limit)
        ids, places = self._appended_by_id
        from_place = 0 if after is None else bisect_right(ids, first)
        until = from_place + limit
        since = n_base + np.array(places[from_place:until], dtype=np.int64)
        if not since.size:
            return in_base
        rows = np.concatenate([in_base, since])
        by_id = [item.id for item in self.items(rows)]
        return rows[sorted(range(len(rows)), key=by_id.__getitem__)[:limit]]

    def _there(self, start: int, limit: int) -> NDArray[np.int64]:
        """Return up to ``limit`` rows of the base, from ``start`` on, whose items still exist."""
        n_base, n = self._base.n_rows, limit
        while True:
            rows = start + np.flatnonzero(~self._removed[start : min(start + n, n_base)])
            if len(rows) >= limit or start + n >= n_base:
                return rows[:limit]
            n *= 2  # do not read all later rows of a large gallery for one page

    @cached_property
    def _appended_by_id(self) -> tuple[list[str], list[int]]:
        """The appended items that still exist: their sorted ids, and their indexes in the log."""
        live = np.flatnonzero(~self._removed[self._base.n_rows :]).tolist()
        live.sort(key=self._appended.ids.__getitem__)
        return [self._appended.ids[place] for place in live], live

    def _id(self, row: int) -> str:
        """Return the id of the item at a row, even if the item has been removed."""
        return self.items(np.array([row]))[0].id

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """Return the items at ``rows`` (n,), in the order of ``rows``."""
        if self._is_base:
            return self._base.items(rows)
        in_base = rows < self._base.n_rows
        if in_base.all():
            return self._base.items(rows)
        of_base = iter(self._base.items(rows[in_base]))
        places = rows[~in_base] - self._base.n_rows
        since = iter(self._log.items(self._appended.sequences[places].tolist()))
        return [next(of_base if known else since) for known in in_base]

    def row(self, item_id: str) -> int:
        """Return the row of the item with this id, or raise `ItemNotFound`."""
        held = self._appended.rows_of.get(item_id, ())
        row = next((row for row in reversed(held) if row < self.n_rows), None)
        if row is None:
            row = self._base.row(item_id)
        if self._removed[row]:
            raise item_not_found(item_id)
        return row

    def item(self, item_id: str) -> Item:
        """Return the item with this id, or raise `ItemNotFound`."""
        return self.items(np.array([self.row(item_id)]))[0]

    def thumbnail(self, item_id: str) -> Thumbnail:
        """Return the thumbnail of an item, or raise `ItemNotFound`."""
        row = self.row(item_id)
        if row < self._base.n_rows:
            return self._base.thumbnail(item_id)
        return self._log.thumbnail(int(self._appended.sequences[row - self._base.n_rows]))

    def preview(self, item_id: str) -> bytes:
        """Return the preview of an item, or raise `ItemNotFound`; see `Gallery.preview`."""
        row = self.row(item_id)
        if row < self._base.n_rows:
            return self._base.preview(item_id)
        return self._log.preview(int(self._appended.sequences[row - self._base.n_rows]))

    def appended_ids(self) -> list[str]:
        """Return the ids of the added items that still exist, sorted."""
        return self._appended_by_id[0]

    def edited_ids(self) -> set[str]:
        """Return the ids of added items that have replaced a base item and kept its embedding."""
        edited = set()
        for item_id in self.appended_ids():
            with suppress(ItemNotFound):
                rows = np.array([self._base.row(item_id), self.row(item_id)])
                before, now = self.directions(rows)
                if np.abs(before - now).max() <= _SLACK:
                    edited.add(item_id)
        return edited

    def renamed_labels(self) -> dict[str, str]:
        """Return old label → new label, for base labels whose items all got the same new label."""
        held = set(self.label_codes(self.rows()).tolist())
        new_codes: dict[int, set[int]] = {}
        for item_id in self.edited_ids():
            rows = np.array([self._base.row(item_id), self.row(item_id)])
            before, now = self.label_codes(rows).tolist()
            if before >= 0 and before not in held:
                new_codes.setdefault(before, set()).add(now)
        return {
            self.labels[before]: self.labels[next(iter(now))]
            for before, now in new_codes.items()
            if len(now) == 1 and -1 not in now
        }

    def put_features(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the known features of added items by id, in the format of `HalfRows`."""
        places = [self.row(item_id) - self._base.n_rows for item_id in ids]
        sequences = self._appended.sequences[places].tolist() if ids else []
        found = self._log.features(sequences)
        return {
            item_id: found[sequence]
            for item_id, sequence in zip(ids, sequences, strict=True)
            if sequence in found
        }

    def upsert(self, item_id: str) -> Upsert:
        """Return a write with the current content of an item; raises `ItemNotFound`.

        The features are None for an item of the base, because the base stores no features.
        """
        row = self.row(item_id)
        embeddings, (item,) = self._whole(np.array([row]))
        features = None
        if row >= self._base.n_rows and (found := self.put_features([item_id])):
            features = HalfRows.from_bytes([found[item_id]]).whole()[0]
        return Upsert(item, Vector(embeddings.mean[0], embeddings.variance[0], features))

    def parts(self) -> Iterator[tuple[Embeddings, list[NewItem]]]:
        """Yield all items in the order of ids, divided into parts for `write_faiss_parts`."""
        after = None
        at_once = AT_ONCE if self.preview_side is None else PREVIEWED_AT_ONCE
        while (rows := self.page(after, at_once)).size:
            yield self._whole(rows)
            after = int(rows[-1])

    def _whole(self, rows: NDArray[np.int64]) -> tuple[Embeddings, list[NewItem]]:
        """Return the embeddings and complete items of ``rows`` (n,), in the order of ``rows``."""
        in_base = rows < self._base.n_rows
        of_base = self._base.embeddings(rows[in_base])
        mean = np.empty((len(rows), self.dim), dtype=np.float32)
        variance = np.empty_like(mean)
        mean[in_base], variance[in_base] = of_base.mean, of_base.variance
        sequences = self._appended.sequences[rows[~in_base] - self._base.n_rows]
        since = list(self._log.upserts(sequences.tolist()))
        for place, upsert in zip(np.flatnonzero(~in_base), since, strict=True):
            mean[place], variance[place] = upsert.vector.mean, upsert.vector.variance
        of_log = iter(upsert.item for upsert in since)
        kept = iter(self._base.with_pictures(rows[in_base]))
        items = [next(kept if known else of_log) for known in in_base]
        return Embeddings(mean, variance, np.empty((len(rows), 0), dtype=np.float32)), items
