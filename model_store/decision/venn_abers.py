"""Probability intervals that are valid whatever the probabilities they stand beside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VennAbers:
    """A fitted inductive Venn-Abers predictor (Vovk & Petej 2014), tabulated.

    Of a score s, p₀(s) is the value at s of the isotonic regression of the calibration outcomes
    with (s, 0) added to them, and p₁(s) that with (s, 1) added. One of the two is perfectly
    calibrated, so that the probability lies between them; they are far apart where calibration
    examples are few. Both rise with s, so that a table of them bounds the scores between its rows.

    Attributes
    ----------
    scores : (m,) strictly ascending.
    lower, upper : (m,) p₀ and p₁ there, ascending.
    """

    scores: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    def __call__(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lower and upper probability (..., 2) of ``scores`` (...)."""
        below = np.searchsorted(self.scores, scores, side="right") - 1
        above = np.searchsorted(self.scores, scores, side="left")
        last = len(self.scores) - 1
        lower = np.where(below >= 0, self.lower[np.maximum(below, 0)], 0.0)
        upper = np.where(above <= last, self.upper[np.minimum(above, last)], 1.0)
        return np.stack([lower, upper], axis=-1)
