"""Fitted logistic regressions, and the correction of match probabilities by feedback."""

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


_PRIOR_STD = np.array([0.5, 1.0, 1.0])
"""Standard deviations of the prior for the log slope, the intercept, and the additional intercept
of pairs with unsolicited feedback. All three prior means are 0, which means no correction."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Recalibration:
    """P = expit(slope · ℓ + intercept) of uncorrected log-odds ℓ (Platt 1999).

    Attributes
    ----------
    slope : positive, so that the order of items does not change; 1 without correction.
    intercept : 0 without correction.
    n_pairs : number of (query, item) pairs of the fit.
    """

    slope: float = 1.0
    intercept: float = 0.0
    n_pairs: int = 0

    def __post_init__(self) -> None:
        if not (self.slope > 0 and np.isfinite(self.slope) and np.isfinite(self.intercept)):
            raise ValueError(
                f"{self.slope=} and {self.intercept=}; wanted a positive slope and finite values"
            )

    @property
    def is_identity(self) -> bool:
        """True if nothing is corrected."""
        return self.slope == 1 and self.intercept == 0

    def __call__(self, log_odds: Floats) -> Floats:
        """Return corrected probabilities (...) for uncorrected ``log_odds`` (...)."""
        probabilities: Floats = expit(self.slope * log_odds + self.intercept)
        return probabilities

    def of(self, probabilities: Floats) -> Floats:
        """Return corrected ``probabilities`` (...); values of 0 and 1 do not change."""
        if self.is_identity:  # not enough feedback yet
            return probabilities
        certain = (probabilities <= 0) | (probabilities >= 1)
        return np.where(certain, probabilities, self(bounded_logit(probabilities)))


def fit_recalibration(
    log_odds: Floats,
    correct: Bools,
    volunteered: Bools | None = None,
    weights: Floats | None = None,
) -> Recalibration:
    """Fit slope and intercept on log-odds (Platt 1999), with a penalty for large corrections.

    The fit minimises the summed log loss plus ½ (log slope / 0.5)² + ½ (intercept / 1)². Fitting
    the logarithm of the slope keeps the slope positive.

    Parameters
    ----------
    log_odds : (n,) log-odds of the pairs.
    correct : (n,) whether each pair is a match.
    volunteered : (n,) mask of pairs with unsolicited feedback. Users may report errors more often
        than correct matches. This bias affects only the intercept of these pairs (Prentice and Pyke
        1979). So all pairs have one slope, and the pairs in the mask have an additional intercept.
        Both intercepts have the same prior. None if all pairs were drawn from served queries.
    weights : (n,) weight of each pair's loss: proportional to 1 / the probability that the pair was
        drawn. The mean weight is 1. None for equal weights.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - slow

    sign = np.where(correct, 1.0, -1.0)
    counts = np.ones(len(correct)) if weights is None else weights
    chosen = np.zeros(len(correct)) if volunteered is None else volunteered.astype(np.float64)

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        slope = np.exp(parameters[0])
        margin = sign * (slope * log_odds + parameters[1] + parameters[2] * chosen)
        pull = parameters / _PRIOR_STD**2
        by_margin = -sign * expit(-margin) * counts
        gradient = np.array([slope * (by_margin @ log_odds), by_margin.sum(), by_margin @ chosen])
        loss = counts @ np.logaddexp(0, -margin) + 0.5 * parameters @ pull
        return float(loss), gradient + pull

    log_slope, intercept, _ = minimize(
        loss_and_gradient, np.zeros(3), jac=True, method="L-BFGS-B"
    ).x.tolist()
    return Recalibration(float(np.exp(log_slope)), intercept, len(correct))
