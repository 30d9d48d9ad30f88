"""Choose a temperature on validation images, and compare an uncertainty with the feature norm.

One criterion for a temperature is the likelihood of votes: predictive samples vote on the label of
a query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from index_builder.arrays import Array, to_numpy, unit
from index_builder.posteriors.laplace.fit import LaplaceFit, LaplacePosterior
from index_builder.posteriors.laplace.prior import PriorSearch


class Predicts(Protocol):
    """A posterior: a map from features to the mean and variance of the embedding."""

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""


Criterion = Callable[[Predicts], float]
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


def norm_correlation(posterior: LaplacePosterior, features: Array) -> float | None:
    """Return the correlation of two log uncertainties: under the posterior, and under the prior.

    The uncertainty of an image is Σ_d v_d / ‖m‖². If the weights have their prior distribution,
    this uncertainty is proportional to ‖φ‖² / ‖m‖². None if one of the two uncertainties is the
    same for all images.

    Parameters
    ----------
    posterior : the posterior to compare.
    features : (N, F) features of images.
    """
    mean, variance = _predicted(posterior, features)
    squared_norm = (mean**2).sum(axis=1)
    uncertainty = np.log(variance.sum(axis=1) / squared_norm)
    length = np.log((to_numpy(features).astype(np.float64) ** 2).sum(axis=1) / squared_norm)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = float(np.corrcoef(uncertainty, length)[0, 1])
    return correlation if math.isfinite(correlation) else None


N_SAMPLES = 50

N_NEAREST, N_OTHERS = 100, 400
"""Number of candidates of a query: nearest items and random items. If a label has hundreds of
images, nearly all of the nearest items have the same label. Without random items, a posterior that
is too wide would get as many correct votes as a posterior with the right width."""


def vote_log_likelihood(
    posterior: Predicts,
    queries: Array,
    query_labels: NDArray[np.int64],
    gallery: Array,
    gallery_labels: NDArray[np.int64],
    seed: int,
) -> Criterion:
    """Return a criterion: the mean log-probability of the true label, estimated by sampled votes.

    Each predictive sample of a query votes for the label of its nearest candidate. The probability
    of the true label is its share of the votes, after adding one vote for the label and one vote
    against the label (Laplace's rule). The criterion is a proper scoring rule: it is largest if the
    spread of the samples fits the frequency of errors. If the posterior is too wide, the votes are
    random. If the posterior is too narrow, all samples vote for one label, even if this label is
    wrong. An area under a ROC curve cannot choose the temperature, because the area does not depend
    on the scale of the uncertainties.

    Parameters
    ----------
    posterior : the posterior whose mean finds the candidates.
    queries : (Q, F) features of images not used in training.
    query_labels : (Q,) int64.
    gallery : (M, F) features of gallery images.
    gallery_labels : (M,) int64.
    seed : seed of the noise; every posterior gets the same noise.
    """
    generator = np.random.default_rng(seed)
    directions = unit(to_numpy(posterior.predict(gallery)[0]))
    similarities = to_numpy(posterior.predict(queries)[0]) @ directions.T
    n_nearest = min(N_NEAREST, len(gallery))
    nearest = np.argpartition(-similarities, n_nearest - 1, axis=1)[:, :n_nearest]
    others = generator.permutation(len(gallery))[:N_OTHERS]
    candidates = np.concatenate([nearest, np.tile(others, (len(queries), 1))], axis=1)
    is_right = gallery_labels[candidates] == query_labels[:, None]
    noise = generator.standard_normal((N_SAMPLES, directions.shape[1])).astype(directions.dtype)

    def criterion(candidate: Predicts) -> float:
        mean, variance = (to_numpy(one) for one in candidate.predict(queries))
        deviation = np.sqrt(variance)
        total = 0.0
        for row, (centre, std) in enumerate(zip(mean, deviation, strict=True)):
            # Normalising a sample does not change its nearest candidate.
            votes = ((centre + std * noise) @ directions[candidates[row]].T).argmax(axis=1)
            total += math.log((is_right[row, votes].sum() + 1) / (N_SAMPLES + 2))
        return total / len(queries)

    return criterion


def _predicted(posterior: Predicts, features: Array) -> tuple[NDArray[np.float64], ...]:
    """Return mean and variance (N, D) in float64."""
    return tuple(to_numpy(one).astype(np.float64) for one in posterior.predict(features))
