"""A correction of match probabilities by users' feedback on earlier matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from model_store.decision.logistic import bounded_logit


@dataclass(frozen=True, slots=True)
class Recalibration:
    """P = expit(slope · ℓ + intercept) of uncorrected log-odds ℓ (Platt 1999).

    Attributes
    ----------
    slope : > 0, so that no order changes; 1 as long as nothing is corrected.
    intercept : 0 as long as nothing is corrected.
    n_pairs : pairs of a query and an item that it was fitted to.
    """

    slope: float = 1.0
    intercept: float = 0.0
    n_pairs: int = 0

    def __post_init__(self) -> None:
        if not (self.slope > 0 and np.isfinite(self.slope) and np.isfinite(self.intercept)):
            raise ValueError(
                f"{self.slope=} and {self.intercept=}: wanted a positive slope, both finite"
            )

    @property
    def is_identity(self) -> bool:
        """True if nothing is corrected."""
        return self.slope == 1 and self.intercept == 0

    def __call__(self, log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities (...) of uncorrected ``log_odds`` (...)."""
        probabilities: NDArray[np.float64] = expit(self.slope * log_odds + self.intercept)
        return probabilities

    def of(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same of uncorrected ``probabilities`` (...); 0 and 1 stay what they are."""
        if self.is_identity:  # as it is until users have said enough
            return probabilities
        certain = (probabilities <= 0) | (probabilities >= 1)
        return np.where(certain, probabilities, self(bounded_logit(probabilities)))
