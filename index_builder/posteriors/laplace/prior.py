"""The prior precision (inverse prior variance of the weights), and ways to choose it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from index_builder.posteriors.laplace.curvature import Curvature
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature
from model_store.errors import CalibrationError

FeltCurvature = Curvature | KroneckerCurvature
"""A non-negative curvature; with a prior it is a precision."""

PRIOR_FRACTION = {"kronecker": 3.0, "diagonal": 0.01}
"""Default prior precision over the mean curvature, see `relative_prior_precision`. With Kronecker
factors most curvature lies in few feature directions, where it is many times its mean. A diagonal
spreads it evenly."""

_BISECTIONS = 60
"""Number of bisections in log λ; they reach float64 precision from any bracket."""

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
    values : value of the criterion for each candidate; larger is better.
    """

    candidates: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The candidate with the largest value; the first of equal values.

        If the posterior's spread does not change which validation images are correct, all values
        are equal. Candidates are therefore in order of preference, widest first.
        """
        return self.candidates[self.values.index(max(self.values))]

    @property
    def is_identified(self) -> bool:
        """True if the best candidate lies between others.

        A maximum at an end of the grid does not identify a candidate: a better one may lie beyond,
        or all are equal.
        """
        return min(self.candidates) < self.best < max(self.candidates)

    @property
    def temperature(self) -> float:
        """The best candidate; 1 if the criterion does not identify one."""
        return self.best if self.is_identified else 1.0


def relative_prior_precision(curvature: FeltCurvature, fraction: float) -> float:
    """Return a fraction of the mean curvature as the prior precision.

    Outliers are detected by feature directions that the data have not determined. A prior far above
    the curvature hides these directions: the uncertainty is then the norm of the features. A prior
    far below it also counts directions that only noise has determined. Between these limits the
    choice hardly matters. The temperature sets the overall width of the posterior.

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
    """Return the Laplace evidence of a prior precision λ, without the constant data term.

    For a diagonal curvature H, log p(D | λ) = -L(θ) - ½ λ ‖θ‖² + ½ Σ_k log λ - ½ Σ_k log(H_k + λ)
    (MacKay 1992, "Bayesian interpolation"). L is the negative log-likelihood; -L(θ) is left out. A
    Kronecker-factored curvature has its own log-determinant and prior.

    Parameters
    ----------
    curvature : non-negative curvature of the sum over the data (data scale included).
    weight, bias : (D, F), (D,), the parameters θ; the prior is centred at zero.
    prior_precision : λ > 0.
    """
    penalty = prior_precision * curvature.squared_norm(weight, bias)
    return -0.5 * (penalty + curvature.log_determinant(prior_precision))


def tune_prior_precision(curvature: FeltCurvature, weight: Tensor, bias: Tensor) -> float:
    """Find the prior precision with the largest evidence.

    The derivative with respect to log λ is ½ (γ - λ ‖θ‖²). Here γ is the number of well-determined
    parameters, Σ_k H_k / (H_k + λ) for a diagonal (MacKay 1992). γ falls and λ ‖θ‖² rises with λ,
    so there is one root; bisection in log λ finds it.

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
    curvature: FeltCurvature, weight: Tensor, bias: Tensor, prior_precision: float
) -> PriorSearch:
    """Return the log marginal likelihood around a prior precision, at two values a decade."""
    factors = np.logspace(-_DECADES, _DECADES, 4 * _DECADES + 1)
    candidates = tuple(float(prior_precision * factor) for factor in factors)
    values = (log_marginal_likelihood(curvature, weight, bias, value) for value in candidates)
    return PriorSearch(candidates, tuple(values))
