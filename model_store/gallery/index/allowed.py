"""The rows that a search may find, read only as far as the search needs them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.verdicts import IndexedBy

NO_FIELDS: Mapping[str, IndexedBy] = MappingProxyType({})


class Allowed(Protocol):
    """A set of the rows 0 to N − 1 of a gallery, which never changes."""

    @property
    def at_most(self) -> int:
        """An upper bound on the number of allowed rows, known without counting."""

    @property
    def share(self) -> float:
        """The estimated share of the N rows; the same at each call."""

    @property
    def indexes(self) -> Mapping[str, IndexedBy]:
        """For each field of the filter, where its index is stored."""

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``rows`` (n,) are allowed, (n,)."""

    def rows(self) -> NDArray[np.int64]:
        """All allowed rows, ascending; the time grows with `at_most`."""

    def mask(self) -> NDArray[np.bool_]:
        """The mask (N,) of them, read-only."""


class MaskedRows:
    """The rows of a mask (N,), which must not change afterwards; implements `Allowed`."""

    def __init__(
        self, mask: NDArray[np.bool_], indexes: Mapping[str, IndexedBy] = NO_FIELDS
    ) -> None:
        self._mask = mask
        self._mask.flags.writeable = False
        self.at_most = int(np.count_nonzero(mask))
        self.share = self.at_most / max(len(mask), 1)
        self.indexes = indexes

    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of ``rows`` (n,) are allowed, (n,)."""
        return self._mask[rows]

    def rows(self) -> NDArray[np.int64]:
        """All allowed rows, ascending."""
        return np.flatnonzero(self._mask)

    def mask(self) -> NDArray[np.bool_]:
        """The mask (N,) of them, read-only."""
        return self._mask
