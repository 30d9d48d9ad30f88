"""A gallery that changes while it is searched: an immutable base and a log of changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import usable_vectors
from model_store.gallery.files.gallery import FaissGallery
from model_store.gallery.live.log import ChangesFile
from model_store.gallery.live.rows import changes_after, first_sequence
from model_store.gallery.live.snapshot import DeltaSegment, GallerySnapshot, LogColumns
from model_store.gallery.protocol import (
    NO_NOTE,
    Change,
    Receipt,
    Retry,
    Vector,
    Write,
    find_row,
    plan_writes,
)
from model_store.sphere import unit_direction

logger = logging.getLogger(__name__)


class LiveGallery:
    """A base gallery and the log of its changes; implements `Writable`. Thread-safe.

    A search takes a `snapshot` and uses it from start to end. A writer calls `commit`. `refresh`
    reads the changes that other processes have written to the log.

    Raises
    ------
    BundleMismatch : the log belongs to another base.
    StorageFailed : the log cannot be read.
    LogDamaged : the log differs from its checksums.
    """

    def __init__(self, base: FaissGallery, log: ChangesFile) -> None:
        self.log = log
        self._base = base
        self._lock = threading.Lock()
        self._labels = list(base.labels)
        self._codes: dict[str | None, int] = {
            **{label: code for code, label in enumerate(base.labels)},
            None: -1,
        }
        self._rows: dict[str, int | None] = {}  # current row of each changed item
        self._rows_of: dict[str, list[int]] = {}
        self._ids: list[str] = []
        self._columns = _Columns(base.dim)
        self._removed_rows = _Column(np.int64)
        self._removed_since = _Column(np.int64)  # number of the change that removed the row
        self._fields = LogColumns(log)
        log.verify()
        self._start = self._version = log.start()
        self._snapshot = self._at(self._version)
        self.refresh()

    def snapshot(self, version: int | None = None) -> GallerySnapshot:
        """Return the current snapshot, or the snapshot of an earlier ``version``.

        If ``version`` is earlier than the base, the snapshot of the base is returned.
        """
        with self._lock:
            if version is None or version == self._version:
                return self._snapshot
            return self._at(max(version, self._start))

    def refresh(self) -> GallerySnapshot:
        """Read the changes of other processes, and return the current snapshot.

        Raises
        ------
        StorageFailed : the log cannot be read.
        """
        with self._lock:
            self._catch_up(self.log.start(), self.log.after(self._version))
            return self._snapshot

    def mark(self) -> tuple[int, int] | None:
        """See `ChangesFile.mark`."""
        return self.log.mark()

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return a request's receipt; None if the request is new. May raise `KeyReused`."""
        return self.log.receipt(retry)

    def commit(
        self,
        writes: Sequence[Write],
        retry: Retry | None = None,
        note: Mapping[str, Any] = NO_NOTE,
        most_items: int | None = None,
    ) -> Receipt:
        """Make all changes or none; see `Writable`."""
        with self.log.transaction() as turn:
            with self._lock:
                known = turn.connection, self._version
                self._catch_up(first_sequence(turn.connection), changes_after(*known))
                now = self._snapshot
                there = {write.id for write in writes if self._row(write.id) is not None}
            before = None if retry is None else turn.receipt(retry)
            if before is not None:
                return before
            stored, receipt = plan_writes(
                writes, there, now.upsert, now.n_items, now.version, note, most_items
            )
            changes = turn.add(stored)
            if retry is not None:
                turn.remember(retry, receipt)
        with self._lock:
            self._apply([change for change in changes if change.sequence > self._version])
        return receipt

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    def _catch_up(self, start: int, unread: Sequence[Change]) -> None:
        """Apply the unread changes of a log that begins after the change ``start``."""
        if self._version < start:
            self._start = self._version = start
            self._snapshot = self._at(start)
        self._apply(unread)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Apply logged changes, in order.

        Earlier releases logged items without a usable embedding. Such an item gets a row that is
        removed at once, because each logged item must have a row; see `rows.field_column`. The
        earlier item with this id stays.
        """
        if not changes:
            return
        for change in changes:
            vector = change.vector
            if vector is not None and not usable_vectors(vector.mean, vector.variance):
                logger.error(
                    "change %d of the gallery is left out, because the embedding of the item %r "
                    "is not finite, or zero",
                    change.sequence,
                    change.id,
                )
                nowhere = Vector(np.ones_like(vector.mean), np.zeros_like(vector.variance))
                self._remove(self._append(replace(change, label=None), nowhere), change)
                continue
            row = self._row(change.id)
            if row is not None:
                self._remove(row, change)
            self._rows[change.id] = None
            if vector is not None:
                row = self._rows[change.id] = self._append(change, vector)
                self._rows_of.setdefault(change.id, []).append(row)
        self._version = changes[-1].sequence
        self._snapshot = self._at(self._version)

    def _remove(self, row: int, change: Change) -> None:
        """Remove a row since ``change``."""
        self._removed_rows.append(row)
        self._removed_since.append(change.sequence)

    def _append(self, change: Change, vector: Vector) -> int:
        """Store the vector of an added item in the next row; return the row."""
        row = self._base.n_rows + len(self._ids)
        self._ids.append(change.id)
        if change.label not in self._codes:
            self._codes[change.label] = len(self._labels)
            self._labels.append(str(change.label))
        relative = vector.variance / np.linalg.norm(vector.mean) ** 2
        columns = self._columns
        columns.sequences.append(change.sequence)
        columns.is_new.append(find_row(self._base, change.id) is None)
        columns.directions.append(unit_direction(vector.mean))
        columns.variances.append(relative)
        columns.total_variances.append(relative.sum())
        columns.label_codes.append(self._codes[change.label])
        return row

    def _row(self, item_id: str) -> int | None:
        """Return the current row of an item; None if the item does not exist."""
        if item_id in self._rows:
            return self._rows[item_id]
        return find_row(self._base, item_id)

    def _at(self, version: int) -> GallerySnapshot:
        """Return the snapshot after the change ``version``."""
        columns = self._columns
        n = int(np.searchsorted(columns.sequences.until(), version, side="right"))
        n_removed = int(np.searchsorted(self._removed_since.until(), version, side="right"))
        removed = self._removed_rows.until(n_removed)
        appended = DeltaSegment(
            columns.sequences.until(n),
            self._ids,
            columns.is_new.until(n),
            columns.directions.until(n),
            columns.variances.until(n),
            columns.total_variances.until(n),
            columns.label_codes.until(n),
            self._rows_of,
        )
        return GallerySnapshot(
            self._base, appended, tuple(self._labels), removed, self.log, self._fields, version
        )


class _Column:
    """An array that grows at its end; earlier results of `until` stay valid."""

    def __init__(self, dtype: type[np.generic], *shape: int) -> None:
        self._values = np.empty((16, *shape), dtype=dtype)
        self._n = 0

    def append(self, value: object) -> None:
        """Add an element."""
        if self._n == len(self._values):
            # The capacity doubles, so each element is copied about once on average.
            self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._values[self._n] = value
        self._n += 1

    def until(self, n: int | None = None) -> NDArray[Any]:
        """Return the first ``n`` elements; all elements by default."""
        return self._values[: self._n if n is None else n]


class _Columns:
    """The data of added items that a search needs; see `DeltaSegment`."""

    def __init__(self, dim: int) -> None:
        self.sequences = _Column(np.int64)
        self.is_new = _Column(np.bool_)
        self.directions = _Column(np.float32, dim)
        self.variances = _Column(np.float32, dim)
        self.total_variances = _Column(np.float32)
        self.label_codes = _Column(np.int32)
