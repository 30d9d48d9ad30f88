"""Choose a temperature on validation images, and compare an uncertainty with the feature norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from index_builder.posteriors.laplace.fit import LaplaceFit, LaplacePosterior
from index_builder.posteriors.laplace.prior import PriorSearch
from index_builder.posteriors.stored import Posterior

Criterion = Callable[[Posterior], float]
"""A measure of the quality of a posterior; larger is better."""


def temper_by_validation(
    fit: LaplaceFit, candidates: Sequence[float], criterion: Callable[[LaplacePosterior], float]
) -> LaplaceFit:
    """Return the fit at the candidate temperature for which the criterion is largest.

    Parameters
    ----------
    candidates : temperatures to try.
    criterion : measures the quality of a posterior, on data that are used neither for training nor
        for the evaluation.

    If several temperatures are equally good, the largest of these temperatures is chosen. If the
    best temperature is the smallest or largest candidate, the temperature is 1; see
    `PriorSearch.is_identified`.
    """
    if not candidates:
        raise ValueError("no candidates")
    candidates = sorted(candidates, reverse=True)
    values = [criterion(fit.tempered(value).posterior) for value in candidates]
    return fit.tempered_by(PriorSearch(tuple(candidates), tuple(values)))


def norm_correlation(posterior: LaplacePosterior, features: Tensor) -> float | None:
    """Return the correlation of two log uncertainties: under the posterior, and under the prior.

    The uncertainty of an image is Σ_d v_d / ‖m‖². If the weights have their prior distribution,
    this uncertainty is proportional to ‖φ‖² / ‖m‖². None if one of the two uncertainties is the
    same for all images.

    Parameters
    ----------
    posterior : the posterior to compare.
    features : (N, F) features of images.
    """
    mean, variance = posterior.predict(features)
    squared_norm = mean.double().square().sum(1)
    uncertainty = (variance.double().sum(1) / squared_norm).log()
    length = (features.double().square().sum(1) / squared_norm).log()
    correlation = float(torch.corrcoef(torch.stack([uncertainty, length]))[0, 1])
    return correlation if math.isfinite(correlation) else None
