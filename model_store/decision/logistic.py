"""A fitted logistic regression, applied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit


@dataclass(frozen=True, slots=True)
class LogisticModel:
    """P(y = 1 | x) = expit(w · (x − centre) / scale + intercept).

    Attributes
    ----------
    weights, centre, scale : (M,) each; ``scale`` > 0.
    intercept : scalar.
    """

    weights: NDArray[np.float64]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]
    intercept: float

    def __post_init__(self) -> None:
        if not self.weights.shape == self.centre.shape == self.scale.shape:
            raise ValueError(
                f"{self.weights.shape=}, {self.centre.shape=}, {self.scale.shape=} differ"
            )
        if not np.all(self.scale > 0):
            raise ValueError("scale must be positive")

    def log_odds(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-odds (...) of ``values`` (..., M)."""
        log_odds: NDArray[np.float64] = (
            (values - self.centre) / self.scale
        ) @ self.weights + self.intercept
        return log_odds

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities (...) of ``values`` (..., M)."""
        probabilities: NDArray[np.float64] = expit(self.log_odds(values))
        return probabilities
