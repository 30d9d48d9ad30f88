"""The rows that a search may find, in the form that the search needs: a list, a mask or a test."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.verdicts import IndexedBy

NO_FIELDS: Mapping[str, IndexedBy] = MappingProxyType({})


class Allowed(Protocol):
    """An immutable set of allowed rows. The gallery has the rows 0 to N − 1."""

    @property
    def at_most(self) -> int:
        """An upper bound on the number of allowed rows, known without counting."""

    @property
    def share(self) -> float:
        """Estimated share of the N rows that is allowed; each call returns the same value."""

    @property
    def indexes(self) -> Mapping[str, IndexedBy]:
        """Field of the filter → where the field's index is stored."""

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""

    def rows(self) -> NDArray[np.int64]:
        """All allowed rows, ascending; the time grows with `at_most`."""

    def mask(self) -> NDArray[np.bool_]:
        """Return a read-only mask (N,) of the allowed rows."""


class MaskedRows:
    """The rows that a mask (N,) selects; the mask becomes read-only. Implements `Allowed`."""

    def __init__(
        self, mask: NDArray[np.bool_], indexes: Mapping[str, IndexedBy] = NO_FIELDS
    ) -> None:
        self._mask = mask
        self._mask.flags.writeable = False
        self.at_most = int(np.count_nonzero(mask))
        self.share = self.at_most / max(len(mask), 1)
        self.indexes = indexes

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""
        return self._mask[rows]

    def rows(self) -> NDArray[np.int64]:
        """All allowed rows, ascending."""
        return np.flatnonzero(self._mask)

    def mask(self) -> NDArray[np.bool_]:
        """Return a read-only mask (N,) of the allowed rows."""
        return self._mask
