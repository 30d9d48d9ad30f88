"""Intervals around probabilities: wide where calibration examples like this one are few."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class VennAbers:
    """A fitted inductive Venn-Abers predictor (Vovk & Petej 2014), tabulated.

    Of log-odds s, p₀(s) is the value at s of the isotonic regression of the calibration outcomes
    with (s, 0) added to them, and p₁(s) that with (s, 1) added. For exchangeable examples one of
    the two is perfectly calibrated; the candidates of one query, which are not independent, count
    as one example together. Both rise with s, so that a table of them bounds what lies between its
    rows.

    Attributes
    ----------
    log_odds : (m,) strictly ascending.
    lower, upper : (m,) p₀ and p₁ there, ascending.
    """

    log_odds: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]

    def __call__(self, log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lower and upper probability (..., 2) of ``log_odds`` (...)."""
        before = self.log_odds.searchsorted(log_odds, side="left")
        up_to = self.log_odds.searchsorted(log_odds, side="right")
        bounds: NDArray[np.float64] = self._bounds[before + up_to]
        return bounds

    @cached_property
    def _bounds(self) -> NDArray[np.float64]:
        """The bounds (2 m + 1, 2): before the first row, at it, between it and the next, etc.

        Between two rows, the bounds are the lower of the one and the upper of the other.
        """
        bounds = np.empty((2 * len(self.log_odds) + 1, 2))
        bounds[1::2] = np.stack([self.lower, self.upper], axis=1)
        bounds[::2] = np.stack([np.r_[0.0, self.lower], np.r_[self.upper, 1.0]], axis=1)
        bounds.setflags(write=False)
        return bounds
