"""The prior precision: the inverse variance of the weights before data, and ways to choose it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from index_builder.posteriors.laplace.curvature import Curvature
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature
from model_store.errors import CalibrationError

FeltCurvature = Curvature | KroneckerCurvature
"""A curvature that is cut off at zero, so that with a prior it is a precision."""

PRIOR_FRACTION = {"kronecker": 3.0, "diagonal": 0.01}
"""Prior precision over the mean curvature of the data: see `relative_prior_precision`. Most of the
curvature lies in few directions of the features, where it is many times its mean; over the entries
of a diagonal it is spread evenly."""

_BISECTIONS = 60
"""Halvings in log λ: any bracket that doubles can express then ends at double rounding."""

_NO_CURVATURE = (
    "The curvature is zero everywhere, so the data say nothing about the prior; this is so when "
    "every negative is inside the margin. Lower the margin, take approximation = 'positives', or "
    "give a prior precision."
)

_DECADES = 4
"""Decades on each side of the chosen prior precision for which the evidence is recorded."""


@dataclass(frozen=True, slots=True)
class PriorSearch:
    """The candidates of a search and their values.

    Attributes
    ----------
    candidates : prior precisions, or temperatures.
    values : of the criterion, one each; larger is better.
    """

    candidates: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The candidate of the largest value; of equal ones the first.

        Validation images that are all found right, or all wrong, whatever the posterior's spread,
        give a plateau of equal values: candidates come in the order of preference, widest first.
        """
        return self.candidates[self.values.index(max(self.values))]

    @property
    def is_identified(self) -> bool:
        """True if the best candidate lies between others.

        At an end of the grid the criterion does not see what it chooses: a better candidate may lie
        beyond, or none is better than any other.
        """
        return min(self.candidates) < self.best < max(self.candidates)

    @property
    def temperature(self) -> float:
        """The best candidate; 1 where the criterion does not identify one."""
        return self.best if self.is_identified else 1.0


def relative_prior_precision(curvature: FeltCurvature, fraction: float) -> float:
    """Return a prior precision relative to what the data say: a fraction of the mean curvature.

    What tells outliers apart is which directions the data have determined. A prior many times the
    curvature levels them, so that the uncertainty is the length of the features; one far below it
    leaves directions that only noise has determined. In between the choice hardly matters,
    and how wide the posterior is altogether is its temperature's to say.

    Raises
    ------
    CalibrationError : the curvature is zero.
    """
    if not curvature.mean > 0:
        raise CalibrationError(_NO_CURVATURE)
    return fraction * curvature.mean


def log_marginal_likelihood(
    curvature: FeltCurvature, weight: Tensor, bias: Tensor, prior_precision: float
) -> float:
    """Laplace evidence of a prior precision λ, without the data term, which does not depend on it.

    log p(D | λ) = -L(θ) - ½ λ ‖θ‖² + ½ Σ_k log λ - ½ Σ_k log(H_k + λ) for the diagonal curvature H
    of a loss L that stands for a negative log-likelihood (MacKay 1992, "Bayesian interpolation");
    -L(θ) is left out. Of a Kronecker-factored one, the same with its log-determinant and its prior.

    Parameters
    ----------
    curvature : of the sum over the data (data scale included), non-negative.
    weight, bias : (D, F), (D,), the parameters θ; the prior is centred at zero.
    prior_precision : λ > 0.
    """
    penalty = prior_precision * curvature.squared_norm(weight, bias)
    return -0.5 * (penalty + curvature.log_determinant(prior_precision))


def tune_prior_precision(curvature: FeltCurvature, weight: Tensor, bias: Tensor) -> float:
    """Find the prior precision of the largest evidence.

    The derivative by log λ is ½ (γ - λ ‖θ‖²), with γ the number of well-determined parameters,
    Σ_k H_k / (H_k + λ) for a diagonal (MacKay 1992). γ falls and λ ‖θ‖² rises with λ: there
    is one root, and bisection in log λ finds it.

    Raises
    ------
    CalibrationError : the curvature or the weights are zero, and the evidence has no maximum.
    """
    squared_norm = curvature.squared_norm(weight, bias)
    if not curvature.largest > 0 or not squared_norm > 0:
        raise CalibrationError(_NO_CURVATURE)
    # γ is at least ½ while λ ≤ max H, and never more than the number of parameters.
    lower = math.log(min(curvature.largest, 0.5 / squared_norm))
    upper = math.log(curvature.n_parameters / squared_norm)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (lower + upper)
        candidate = math.exp(middle)
        if curvature.n_determined(candidate) > candidate * squared_norm:
            lower = middle
        else:
            upper = middle
    return math.exp(0.5 * (lower + upper))


def evidence_curve(
    curvature: FeltCurvature, weight: Tensor, bias: Tensor, prior_precision: float
) -> PriorSearch:
    """Log marginal likelihood around a prior precision, two values a decade."""
    factors = np.logspace(-_DECADES, _DECADES, 4 * _DECADES + 1)
    candidates = tuple(float(prior_precision * factor) for factor in factors)
    values = (log_marginal_likelihood(curvature, weight, bias, value) for value in candidates)
    return PriorSearch(candidates, tuple(values))
