"""A temperature chosen by a criterion on validation images, and what adds to a norm."""

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
    """The fit at the candidate temperature of the largest criterion.

    Parameters
    ----------
    candidates : temperatures to try.
    criterion : judged on data that neither trained the layer nor will evaluate it.

    Where validation cannot tell, because its images are found right whatever the spread, the
    widest of the equally good posteriors is taken: the data do not ask for less. Where
    the best is an end of the candidates, the temperature is 1: see `PriorSearch.is_identified`.
    """
    if not candidates:
        raise ValueError("no candidates")
    candidates = sorted(candidates, reverse=True)
    values = [criterion(fit.tempered(value).posterior) for value in candidates]
    return fit.tempered_by(PriorSearch(tuple(candidates), tuple(values)))


def norm_correlation(posterior: LaplacePosterior, features: Tensor) -> float | None:
    """Return the correlation, in logs, of an uncertainty with what it is without any data.

    The uncertainty Σ_d v_d / ‖m‖² (which 1 - R rises with) of a posterior that is all prior is
    ‖φ‖² / ‖m‖² up to a factor. None where either is the same for all images.

    Parameters
    ----------
    posterior : the one that is judged.
    features : (N, F), of images.
    """
    mean, variance = posterior.predict(features)
    squared_norm = mean.double().square().sum(1)
    uncertainty = (variance.double().sum(1) / squared_norm).log()
    length = (features.double().square().sum(1) / squared_norm).log()
    correlation = float(torch.corrcoef(torch.stack([uncertainty, length]))[0, 1])
    return correlation if math.isfinite(correlation) else None
