"""How strong the prior is: the inverse variance that the weights have without data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from index_builder.posteriors.curvature import Curvature
from model_store.errors import CalibrationError

_BISECTIONS = 60
"""Halvings in log λ: any bracket that doubles can express then ends at double rounding."""

_DECADES = 4
"""The evidence is recorded this far to each side of the prior precision that was taken."""


@dataclass(frozen=True, slots=True)
class PriorSearch:
    """What was tried, and what it came to.

    Attributes
    ----------
    candidates : prior precisions, or temperatures.
    values : of the criterion, one each; larger is better.
    """

    candidates: tuple[float, ...]
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        """The candidate of the largest value; of equal ones the first."""
        return self.candidates[self.values.index(max(self.values))]


def log_marginal_likelihood(
    curvature: Curvature, weight: Tensor, bias: Tensor, prior_precision: float
) -> float:
    """Laplace evidence of a prior precision λ, without the data term, which does not depend on it.

    log p(D | λ) = -L(θ) - ½ λ ‖θ‖² + ½ Σ_k log λ - ½ Σ_k log(H_k + λ) for the diagonal curvature H
    of a loss L that stands for a negative log-likelihood (MacKay 1992, "Bayesian interpolation");
    -L(θ) is left out.

    Parameters
    ----------
    curvature : of the sum over the data (data scale included), non-negative.
    weight, bias : (D, F), (D,), the parameters θ; the prior is centred at zero.
    prior_precision : λ > 0.
    """
    h, squared_norm = _flat(curvature), _squared_norm(weight, bias)
    return -0.5 * (prior_precision * squared_norm + float(torch.log1p(h / prior_precision).sum()))


def tune_prior_precision(curvature: Curvature, weight: Tensor, bias: Tensor) -> float:
    """Find the prior precision of the largest evidence.

    The derivative by log λ is ½ (γ - λ ‖θ‖²), with γ = Σ_k H_k / (H_k + λ) the number of
    well-determined parameters (MacKay 1992). γ falls and λ ‖θ‖² rises with λ, so that there is one
    root, and bisection in log λ finds it.

    Raises
    ------
    CalibrationError : the curvature or the weights are zero, and the evidence has no maximum.
    """
    h, squared_norm = _flat(curvature), _squared_norm(weight, bias)
    largest = float(h.max())
    if not largest > 0 or not squared_norm > 0:
        raise CalibrationError(
            "The curvature is zero everywhere, so the data say nothing about the prior; this is so "
            "when every negative is inside the margin. Lower the margin or give a prior precision."
        )
    # γ is at least ½ while λ ≤ max H, and never more than the number of parameters.
    lower, upper = math.log(min(largest, 0.5 / squared_norm)), math.log(len(h) / squared_norm)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (lower + upper)
        candidate = math.exp(middle)
        if float((h / (h + candidate)).sum()) > candidate * squared_norm:
            lower = middle
        else:
            upper = middle
    return math.exp(0.5 * (lower + upper))


def evidence_curve(
    curvature: Curvature, weight: Tensor, bias: Tensor, prior_precision: float
) -> PriorSearch:
    """Log marginal likelihood around a prior precision, two values a decade."""
    factors = np.logspace(-_DECADES, _DECADES, 4 * _DECADES + 1)
    candidates = tuple(float(prior_precision * factor) for factor in factors)
    values = (log_marginal_likelihood(curvature, weight, bias, value) for value in candidates)
    return PriorSearch(candidates, tuple(values))


def _flat(curvature: Curvature) -> Tensor:
    """All entries in double precision."""
    return torch.cat([curvature.weight.flatten(), curvature.bias]).double()


def _squared_norm(weight: Tensor, bias: Tensor) -> float:
    return float(weight.double().square().sum() + bias.double().square().sum())
