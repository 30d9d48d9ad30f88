"""The mean direction of each label's items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.decision.outliers import unit_rows
from model_store.gallery import Gallery

_ROWS = 4096
"""Number of items whose directions are read in one call."""


@dataclass(frozen=True, slots=True)
class LabelMeans:
    """The mean direction of each label's items.

    If the encoder was not trained on the gallery's labels, the nearest mean is right more often
    than the nearest item (Snell et al. 2017, Prototypical networks).

    Attributes
    ----------
    directions : (C, D) unit vectors by label code; empty for a gallery without labels.
    """

    directions: NDArray[np.float32]

    def similarities(
        self,
        direction: NDArray[np.float32],
        label_codes: NDArray[np.int32],
        similarities: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the cosine (n,) between a query and the mean direction of each candidate's label.

        Parameters
        ----------
        direction : (D,) unit direction of the query.
        label_codes : (n,) label codes of the candidates. Some candidates have no label (−1), or a
            label that was added after the means were computed. For such a candidate, the result is
            the candidate's own value in ``similarities``.
        similarities : (n,) similarities of the candidates.
        """
        n_known, codes = len(self.directions), label_codes.tolist()
        if min(codes) >= 0 and max(codes) < n_known:  # the usual case
            return (self.directions[label_codes] @ direction).astype(np.float64)
        of_label = similarities.copy()
        known = (label_codes >= 0) & (label_codes < n_known)
        of_label[known] = self.directions[label_codes[known]] @ direction
        return of_label


def label_means(gallery: Gallery) -> LabelMeans:
    """The mean direction of each label of a gallery."""
    codes = gallery.label_codes(np.arange(gallery.n_items))
    sums = label_sums(gallery, codes)
    return LabelMeans(unit_rows(sums.astype(np.float32)))


def label_sums(gallery: Gallery, codes: NDArray[np.int32]) -> NDArray[np.float64]:
    """For each label, the sum of the directions of its items: (C, D)."""
    sums = np.zeros((len(gallery.labels), gallery.dim))
    for start in range(0, gallery.n_items, _ROWS):
        rows = np.arange(start, min(start + _ROWS, gallery.n_items))
        labelled = rows[codes[rows] >= 0]
        np.add.at(sums, codes[labelled], gallery.directions(labelled))
    return sums
