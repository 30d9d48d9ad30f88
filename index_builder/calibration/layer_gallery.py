"""A gallery as another last layer embeds it, to search it with queries of this layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from model_store.decision.outliers import unit_rows
from model_store.gallery import Gallery
from model_store.gallery.files.gallery import nearest_items
from model_store.gallery.filters.selection import Allowed
from model_store.gallery.index.search import ExactIndex
from model_store.gallery.protocol import Candidates


@dataclass(frozen=True, slots=True)
class ItemVectors:
    """The features of a gallery's items, by row; a layer embeds them anew.

    Attributes
    ----------
    gallery : the gallery, without removed items.
    rows : (n,) rows of the items whose features are known.
    features : (n, F) features of these items.
    codes : (N,) label code of each item of the gallery.
    """

    gallery: Gallery
    rows: NDArray[np.int64]
    features: NDArray[np.float32]
    codes: NDArray[np.int32]

    @classmethod
    def of(
        cls, gallery: Gallery, ids: tuple[str, ...], features: NDArray[np.float32]
    ) -> ItemVectors:
        """Find the rows of the items ``ids``, whose features are known; some may be removed."""
        every = np.arange(gallery.n_items)
        row_of = {item.id: row for row, item in enumerate(gallery.items(every))}
        rows = np.array([row_of.get(name, -1) for name in ids], dtype=np.int64)
        held = rows >= 0
        if not held.all():
            rows, features = rows[held], features[held]
        return cls(gallery, rows, features, gallery.label_codes(every))

    def embedded(self, weight: NDArray[np.float32]) -> Gallery:
        """Return the gallery with the embeddings of a layer (D, F).

        An item with unknown features keeps its embedding.
        """
        if len(self.rows) == len(self.codes):
            directions = np.empty((len(self.codes), len(weight)), dtype=np.float32)
        else:
            directions = self.gallery.directions(np.arange(len(self.codes)))
        directions[self.rows] = unit_rows(self.features @ weight.T)
        return cast("Gallery", _Embedded(self.gallery, directions, self.codes))


class _Embedded:
    """A gallery whose items have other directions (N, D); every search is exact.

    All methods that do not need a direction are those of ``gallery``.
    """

    def __init__(
        self, gallery: Gallery, directions: NDArray[np.float32], codes: NDArray[np.int32]
    ) -> None:
        self._gallery = gallery
        self._index = ExactIndex.of(directions)
        self._codes = codes

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of any kind
        return getattr(self._gallery, name)

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit directions (..., D) of ``rows`` (...)."""
        return self._index.directions[rows]

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the label codes of ``rows`` (...); -1 for an item without a label."""
        return self._codes[rows]

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D); see `Gallery.candidates`."""
        return nearest_items(self._index, directions, n, allowed)
