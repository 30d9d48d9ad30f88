"""A fitted logistic regression, and a choice between several outcomes (conditional logit)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

_BOUND = 1e-12
"""Minimum distance of a probability from 0 and 1."""


@dataclass(frozen=True)
class LogisticModel:
    """P(y = 1 | x) = expit(w · (x − centre) / scale + intercept).

    Attributes
    ----------
    weights, centre, scale : (M,) each; ``scale`` > 0.
    intercept : scalar offset of the log-odds.
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
        """Return log-odds (...) for ``values`` (..., M)."""
        slopes, offset = self._line
        log_odds: NDArray[np.float64] = np.vecdot(values, slopes) + offset
        return log_odds

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return probabilities (...) for ``values`` (..., M)."""
        probabilities: NDArray[np.float64] = expit(self.log_odds(values))
        return probabilities

    @cached_property
    def _line(self) -> tuple[NDArray[np.float64], float]:
        """Slopes (M,) and offset of the log-odds as a function of unscaled ``values``."""
        slopes = self.weights / self.scale
        return slopes, float(self.intercept - self.centre @ slopes)


def choice_probabilities(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities (g,) of mutually exclusive outcomes (McFadden 1974).

    Parameters
    ----------
    log_odds : (g,) log-odds ℓ of each outcome against no outcome: p_i = exp(ℓ_i) / (1 + Σ_j
        exp(ℓ_j)).
    """
    most = max(0.0, *log_odds.tolist())
    odds = np.exp(log_odds - most)
    probabilities: NDArray[np.float64] = odds / (math.exp(-most) + float(np.add.reduce(odds)))
    return probabilities


def bounded(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Clip probabilities so that their log-odds are finite."""
    return np.minimum(np.maximum(probabilities, _BOUND), 1 - _BOUND)


def bounded_logit(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-odds of probabilities. The result is finite even for 0 and 1."""
    log_odds: NDArray[np.float64] = logit(bounded(probabilities))
    return log_odds
