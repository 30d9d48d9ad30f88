"""Indexes of the fields of added items, built on first use by a filter.

The items are divided into runs. A run has `RUN` items, or 2, 4, 8, … times `RUN` items. Two runs of
equal length merge into one run, so no two runs have the same length. So each item is indexed only a
few times, and a filter reads few runs. After the last run, there are fewer than `RUN` items. These
items have no index, and a filter checks each of these items.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.filters.columns import Column
from model_store.gallery.filters.grammar import Field, Filter
from model_store.gallery.filters.selection import fields_of, select
from model_store.gallery.filters.sql import as_stored
from model_store.gallery.live.log import ChangesFile

RUN = 256
"""Number of items in the shortest run. Checking this many items takes about as long as one
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
        fields, stored, done = fields_of(part), as_stored(part), 0
        for run in runs(len(sequences)):
            within = sequences[run.start : run.stop]
            columns = {field: self._column(field, run, within) for field in fields}
            mask[run.start : run.stop] = select(stored, columns, len(run)).mask()
            done = run.stop
        if done < len(sequences):
            last = sequences[done:]
            found = self._log.matching(part, int(last[0]), int(last[-1]))
            mask[done:] = np.isin(last, found)
        return mask

    def all(self, field: Field, sequences: NDArray[np.int64]) -> Iterator[tuple[int, Column]]:
        """Yield the start and the index of each run.

        If items follow the last run, the last pair has the start and the index of these items.

        Parameters
        ----------
        sequences : see `matching`.
        """
        done = 0
        for run in runs(len(sequences)):
            yield run.start, self._column(field, run, sequences[run.start : run.stop])
            done = run.stop
        if done < len(sequences):
            yield done, self._log.column(field, sequences[done:])

    def _column(self, field: Field, run: range, sequences: NDArray[np.int64]) -> Column:
        """Return the index of a field for the items of one run."""
        key = field, run.start, run.stop
        with self._lock:
            column = self._columns.get(key)
        if column is None:
            column = self._log.column(field, sequences)
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
    """Yield the runs of ``n`` items; the longest run comes first."""
    start, full = 0, n // RUN
    for power in reversed(range(full.bit_length())):
        if full >> power & 1:
            yield range(start, start + (RUN << power))
            start += RUN << power
