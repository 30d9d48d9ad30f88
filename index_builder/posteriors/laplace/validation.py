"""The prior precision chosen by what the posterior is for, on held-out queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from index_builder.metrics import auroc
from index_builder.posteriors.laplace.fit import LaplaceFit, LaplacePosterior
from index_builder.posteriors.laplace.prior import PriorSearch, log_marginal_likelihood
from index_builder.posteriors.stored import Posterior
from model_store.errors import CalibrationError

Criterion = Callable[[Posterior], float]
"""A measure of the quality of a posterior; larger is better."""


def select_by_validation(
    fit: LaplaceFit, candidates: Sequence[float], criterion: Callable[[LaplacePosterior], float]
) -> LaplaceFit:
    """Fit again with the candidate prior precision of the largest criterion.

    Parameters
    ----------
    fit : its curvature is kept.
    candidates : prior precisions to try, in the order of preference where criteria are equal.
    criterion : judged on data that neither trained the layer nor will evaluate it.
    """
    mean = fit.posterior
    curvature = fit.curvature * fit.data_scale

    def with_prior(precision: float) -> LaplacePosterior:
        posterior = curvature.posterior(mean.weight_mean, mean.bias_mean, precision)
        return posterior.tempered(fit.temperature)

    search = _tried(candidates, criterion, with_prior)
    return replace(
        fit,
        posterior=with_prior(search.best),
        prior_precision=search.best,
        prior_chosen_by="validation",
        prior_search=search,
        log_marginal_likelihood=log_marginal_likelihood(
            curvature, mean.weight_mean, mean.bias_mean, search.best
        ),
    )


def temper_by_validation(
    fit: LaplaceFit, candidates: Sequence[float], criterion: Callable[[LaplacePosterior], float]
) -> LaplaceFit:
    """The fit at the candidate temperature of the largest criterion; see `select_by_validation`.

    Where validation cannot tell, because its images are found right whatever the spread, the
    widest posterior of those that are equally good is taken: the data do not ask for less. Where
    the best is an end of the candidates, the temperature is 1: see `PriorSearch.is_identified`.
    """
    candidates = sorted(candidates, reverse=True)
    search = _tried(candidates, criterion, lambda value: fit.tempered(value).posterior)
    return replace(fit.tempered(search.temperature), temperature_search=search)


def _tried(
    candidates: Sequence[float],
    criterion: Callable[[LaplacePosterior], float],
    posterior_of: Callable[[float], LaplacePosterior],
) -> PriorSearch:
    if not candidates:
        raise ValueError("no candidates")
    values = tuple(criterion(posterior_of(value)) for value in candidates)
    return PriorSearch(tuple(candidates), values)


def nearest_neighbour_criterion(
    posterior: LaplacePosterior,
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
) -> Criterion:
    """AUROC of the uncertainty for telling queries whose nearest neighbour has a wrong label.

    The uncertainty is 1 - R with R = ‖m‖ / sqrt(‖m‖² + Σ_d v_d), the mean resultant length of the
    normalised embedding of mean m and variance v. The neighbours depend on the mean alone.

    Parameters
    ----------
    posterior : only its mean is used.
    queries : (Q, F), features.
    query_labels : (Q,) int64.
    gallery : (M, F), features.
    gallery_labels : (M,) int64.

    Raises
    ------
    CalibrationError : every nearest neighbour is right, or every one wrong.
    """
    mean, _ = posterior.predict(queries)
    directions = torch.nn.functional.normalize(posterior.predict(gallery)[0])
    nearest = (mean @ directions.T).argmax(1)
    wrong = (gallery_labels[nearest] != query_labels).cpu().numpy()
    if wrong.all() or not wrong.any():
        raise CalibrationError(
            f"{int(wrong.sum())} of {len(wrong)} nearest neighbours are wrong; to choose a prior "
            "precision by them, some must be wrong and some right. Give more queries."
        )

    def criterion(candidate: Posterior) -> float:
        embedding, variance = candidate.predict(queries)
        squared_norm = embedding.square().sum(1)
        uncertainty = 1 - (squared_norm / (squared_norm + variance.sum(1))).sqrt()
        values = uncertainty.double().cpu().numpy()
        area = auroc(values[wrong], values[~wrong])
        return float("-inf") if area is None else area

    return criterion


def norm_correlation(posterior: LaplacePosterior, features: Tensor) -> float | None:
    """Return the correlation, in logs, of an uncertainty with what it is without any data.

    The uncertainty Σ_d v_d / ‖m‖² (which 1 - R rises with) of a posterior that is all prior is
    ‖φ‖² / ‖m‖² up to a factor. None where either is the same for all images.

    Parameters
    ----------
    posterior : what is asked how much it adds.
    features : (N, F), of images.
    """
    mean, variance = posterior.predict(features)
    squared_norm = mean.double().square().sum(1)
    uncertainty = (variance.double().sum(1) / squared_norm).log()
    length = (features.double().square().sum(1) / squared_norm).log()
    correlation = float(torch.corrcoef(torch.stack([uncertainty, length]))[0, 1])
    return correlation if math.isfinite(correlation) else None
