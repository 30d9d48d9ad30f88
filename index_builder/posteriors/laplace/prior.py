"""The prior precision (inverse prior variance of the weights), and ways to choose it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from index_builder.arrays import Array
from index_builder.posteriors.laplace.curvature import Curvature
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature
from model_store.errors import CalibrationError

FeltCurvature = Curvature | KroneckerCurvature
"""A non-negative curvature; together with a prior, it gives the precision of the posterior."""

PRIOR_FRACTION = {"kronecker": 3.0, "diagonal": 0.01}
"""Default ratio of the prior precision to the mean curvature, see `relative_prior_precision`. With
Kronecker factors, the curvature of a few feature directions is many times the mean curvature. With
a diagonal curvature, the weights have similar curvatures."""

_BISECTIONS = 60
"""Number of bisections in log λ, enough for float64 precision from any start interval."""

_NO_CURVATURE = (
    "The curvature is zero everywhere, so the data say nothing about the prior; this is so when "
    "every negative is inside the margin. Lower the margin, take approximation = 'positives', or "
    "give a prior precision."
)

_DECADES = 4
"""The evidence is recorded for this number of decades below and above the chosen prior
precision."""


@dataclass(frozen=True, slots=True)
class PriorSearch:
    """The candidates of a search, and the value of each candidate.

    Attributes
    ----------
    candidates : prior precisions, or temperatures.
    values : value of the criterion for each candidate; larger is better.
    """

    candidates: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The first candidate with the largest value.

        If the spread of the posterior does not affect the validation results, all candidates have
        the same value. Candidates are therefore in order of preference, the widest posterior first.
        """
        return self.candidates[self.values.index(max(self.values))]

    @property
    def is_identified(self) -> bool:
        """True if the best candidate is neither the smallest nor the largest.

        A maximum at an end of the grid identifies no candidate: a value outside the grid may be
        better, or all values may be equal.
        """
        return min(self.candidates) < self.best < max(self.candidates)

    @property
    def temperature(self) -> float:
        """The best temperature; 1.0 if the criterion does not identify a best temperature."""
        return self.best if self.is_identified else 1.0


def relative_prior_precision(curvature: FeltCurvature, fraction: float) -> float:
    """Return ``fraction`` times the mean curvature as the prior precision.

    The posterior is wide in feature directions that the training data do not determine. An outlier
    has large features in these directions, which makes the outlier detectable. If the prior
    precision is far above the curvature, the posterior has the same width in all directions; the
    uncertainty is then only the norm of the features. If the prior precision is far below the
    curvature, the posterior is also narrow in directions that only noise determines. Between these
    two extremes, the choice of the prior precision hardly matters. The temperature sets the overall
    width of the posterior.

    Raises
    ------
    CalibrationError : the curvature is zero.
    """
    if not curvature.mean > 0:
        raise CalibrationError(_NO_CURVATURE)
    return fraction * curvature.mean


def log_marginal_likelihood(
    curvature: FeltCurvature, weight: Array, bias: Array, prior_precision: float
) -> float:
    """Return the Laplace evidence of a prior precision λ, without the constant data term.

    For a diagonal curvature H, log p(D | λ) = -L(θ) - ½ λ ‖θ‖² + ½ Σ_k log λ - ½ Σ_k log(H_k + λ)
    (MacKay 1992, "Bayesian interpolation"). L is the negative log-likelihood; the constant -L(θ) is
    left out. A Kronecker-factored curvature computes these sums and ‖θ‖² from its eigenvalues and
    scales.

    Parameters
    ----------
    curvature : non-negative curvature of the sum over the data, with the data scale.
    weight, bias : (D, F), (D,), the parameters θ; the prior is centred at zero.
    prior_precision : λ > 0.
    """
    penalty = prior_precision * curvature.squared_norm(weight, bias)
    return -0.5 * (penalty + curvature.log_determinant(prior_precision))


def tune_prior_precision(curvature: FeltCurvature, weight: Array, bias: Array) -> float:
    """Find the prior precision with the largest evidence.

    The derivative with respect to log λ is ½ (γ - λ ‖θ‖²). Here γ is the number of well-determined
    parameters, which is Σ_k H_k / (H_k + λ) for a diagonal curvature (MacKay 1992). With increasing
    λ, γ falls and λ ‖θ‖² rises. There is therefore one root, which bisection in log λ finds.

    Raises
    ------
    CalibrationError : the curvature or the weights are zero, so the evidence has no maximum.
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
    curvature: FeltCurvature, weight: Array, bias: Array, prior_precision: float
) -> PriorSearch:
    """Return the log evidence of precisions around ``prior_precision``, two for each decade."""
    factors = np.logspace(-_DECADES, _DECADES, 4 * _DECADES + 1)
    candidates = tuple(float(prior_precision * factor) for factor in factors)
    values = (log_marginal_likelihood(curvature, weight, bias, value) for value in candidates)
    return PriorSearch(candidates, tuple(values))
