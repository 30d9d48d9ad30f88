"""Where each label lies in the gallery, on average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LabelMeans:
    """The mean direction of each label's items: what they share, less what each has of its own.

    Where an encoder has not been trained on a gallery's labels, the nearest mean is right more
    often than the nearest item (Snell et al. 2017, Prototypical networks).

    Attributes
    ----------
    directions : (C, D) unit, by label code; none of a gallery without labels.
    """

    directions: NDArray[np.float32]

    def similarities(
        self,
        direction: NDArray[np.float32],
        label_codes: NDArray[np.int32],
        similarities: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Cosine (n,) of a query to the mean of each candidate's label.

        Parameters
        ----------
        direction : (D,) of the query, unit.
        label_codes : (n,) of the candidates; one without a label, -1, is its own mean.
        similarities : (n,) of the candidates.
        """
        if not len(self.directions):
            return similarities
        of_label = (self.directions[label_codes] * direction).sum(axis=1)
        return np.where(label_codes < 0, similarities, of_label)
