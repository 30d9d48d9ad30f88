"""Choose a temperature on validation images, and compare an uncertainty with the feature norm.

One criterion for a temperature is the likelihood of votes: predictive samples vote on the label of
a query.
"""

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


N_SAMPLES = 50

N_NEAREST, N_OTHERS = 100, 400
"""Number of candidates of a query: nearest items and random items. If a label has hundreds of
images, nearly all of the nearest items have the same label. Without random items, a posterior that
is too wide would get as many correct votes as a posterior with the right width."""

_CHUNK = 50
"""Number of queries in a batch; the similarities of 50 queries × 50 samples × 500 candidates fit
into memory."""


def vote_log_likelihood(
    posterior: Posterior,
    queries: Tensor,
    query_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    generator: torch.Generator,
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
    generator : draws the noise; every posterior gets the same noise.
    """
    directions = torch.nn.functional.normalize(posterior.predict(gallery)[0])
    nearest = posterior.predict(queries)[0] @ directions.T
    candidates = nearest.topk(min(N_NEAREST, len(gallery))).indices
    others = torch.randperm(len(gallery), generator=generator)[:N_OTHERS]
    candidates = torch.cat([candidates, others.expand(len(queries), -1)], 1)
    is_right = gallery_labels[candidates] == query_labels[:, None]
    noise = torch.randn(N_SAMPLES, directions.shape[1], generator=generator)

    def criterion(candidate: Posterior) -> float:
        mean, variance = candidate.predict(queries)
        total = 0.0
        for start in range(0, len(queries), _CHUNK):
            rows = slice(start, start + _CHUNK)
            # Normalising a sample does not change its nearest candidate.
            samples = mean[rows, None] + variance[rows, None].sqrt() * noise
            votes = (samples @ directions[candidates[rows]].mT).argmax(-1)
            right = is_right[rows].gather(1, votes).sum(1)
            total += float(((right + 1) / (N_SAMPLES + 2)).log().sum())
        return total / len(queries)

    return criterion
