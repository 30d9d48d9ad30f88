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
        bounds = np.empty((*np.shape(log_odds), 2))
        bounds[..., 0] = self._lower_from[self.log_odds.searchsorted(log_odds, side="right")]
        bounds[..., 1] = self._upper_from[self.log_odds.searchsorted(log_odds, side="left")]
        return bounds

    @cached_property
    def _lower_from(self) -> NDArray[np.float64]:
        """`lower` (m + 1,), and before it what bounds the log-odds below the table."""
        return np.concatenate([[0.0], self.lower])

    @cached_property
    def _upper_from(self) -> NDArray[np.float64]:
        """`upper` (m + 1,), and after it what bounds the log-odds above the table."""
        return np.concatenate([self.upper, [1.0]])
