"""An index of FAISS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_store.stores.store import Direction
from model_store.vector_queries import NeighbourList

_INNER_PRODUCT = 0
"""``faiss.METRIC_INNER_PRODUCT``."""


@dataclass(frozen=True, slots=True)
class FaissStore:
    """An index of FAISS over unit vectors, by inner product or by Euclidean distance.

    Attributes
    ----------
    index : a ``faiss.Index``; its row numbers are indexes into ``ids`` and ``labels``.
    ids : ids of all vectors in ``index``.
    labels : labels of all vectors in ``index``.
    """

    index: Any
    ids: Sequence[str]
    labels: Sequence[str | None]

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` nearest vectors."""
        measured, places = self.index.search(np.ascontiguousarray(direction[None]), n)
        found = places[0] >= 0  # −1 stands for a missing result
        cosines = measured[0][found].astype(np.float64)
        if self.index.metric_type != _INNER_PRODUCT:
            cosines = 1 - cosines / 2  # for unit vectors, |a - b|² = 2 - 2 a·b
        chosen = places[0][found].tolist()
        return NeighbourList(
            [self.ids[place] for place in chosen],
            [self.labels[place] for place in chosen],
            similarities=cosines,
        )
