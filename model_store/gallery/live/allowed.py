"""The rows that a search of a live gallery may find: rows of the base and rows of added items."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.index.allowed import NO_FIELDS, Allowed

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
