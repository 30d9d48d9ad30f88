"""Fitting the outlier detector, and the fusion of its signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.covariance import ledoit_wolf
from sklearn.decomposition import PCA
from sklearn.model_selection import StratifiedGroupKFold

from model_store.decision import OUTLIER_SIGNALS, OutlierDetector, OutlierFusion
from model_store.decision.outliers import (
    averaged_features,
    feature_lengths,
    log_lengths,
    unit_rows,
)
from model_store.encoder import Embeddings
from model_store.errors import CalibrationError
from model_store.sphere import unit_direction

RANK = 64
"""Principal directions of the features that the outlier detector keeps. Twice as many tell spoilt
images apart a little better (AUROC by 0.004), other worlds no better, and cost a query more."""

MOST_BASIS_ENTRIES = 82_000
"""Of the basis, all of which every query reads: 64 directions of a MobileNet's 1,280 features."""

MOST_FEATURES = 2500
"""Of more, adjacent ones are averaged. On Fashion-MNIST the means of four of 9,216 tell spoilt
images apart better than all (AUROC 0.94 for 0.92), and another world as well (0.996; one seed).
Those of twelve do worse."""

MIN_REFERENCES = 20
"""Gallery images below which there is no subspace to speak of."""

REFERENCES_PER_LABEL, LEAST_REFERENCES, MOST_REFERENCES = 50, 500, 2000
"""Gallery images whose features and embeddings a query's are compared with: as many for each label
on average, at least, and at most. Every query reads them all. Of Fashion-MNIST's ten labels four
times as many tell outliers apart no better (AUROC −0.007 to 0.000, one seed)."""

FUSION_PRIOR = np.array([1.0, 0.25, 0.25, 0.0625, 0.0625])
"""Weights of the outlier signals, each in its own standard deviations, that the fusion starts from:
no single distance is best against every kind of outlier, but that in the features nearly is."""

assert len(FUSION_PRIOR) == len(OUTLIER_SIGNALS)  # noqa: S101 - one each

PRIOR_STRENGTH = 0.2
"""Of that prior against the data, which weighs one in all. What tells the calibration outliers
apart is a hint and no more: others will differ from ordinary images in other ways."""

_MAX_LOG_SCALE = 3.0
"""Of the fusion: at e³ standard deviations no overlap is left that a larger one could resolve."""

_LEAST_SPREAD = 1e-3
"""Of log lengths: where all features are as long, as normalised ones are, rounding is no sign."""

N_FOLDS = 5

Floats = NDArray[np.float64]


def fit_detector(
    embeddings: Embeddings, label_codes: NDArray[np.integer[Any]], seed: int
) -> OutlierDetector:
    """Fit the outlier detector on gallery images.

    Parameters
    ----------
    embeddings : N of them, in random order.
    label_codes : (N,) their labels; where these are too many for their images, as one for each, all
        count as one.
    seed : of the randomised decomposition.

    Raises
    ------
    CalibrationError : too few images for a subspace.
    """
    if len(embeddings) < MIN_REFERENCES:
        raise CalibrationError(
            f"The gallery has {len(embeddings)} images; outlier detection needs at least "
            f"{MIN_REFERENCES}. Index more images."
        )
    n_averaged = -(-embeddings.features.shape[1] // MOST_FEATURES)
    features = averaged_features(embeddings.features, n_averaged)
    rows = unit_rows(features)
    n_features = rows.shape[1]
    rank = min(RANK, len(rows) // 2, n_features, MOST_BASIS_ENTRIES // n_features)
    pca = PCA(rank, svd_solver="randomized", random_state=seed).fit(rows)
    centre = pca.mean_.astype(np.float32)
    basis = np.ascontiguousarray(pca.components_.T, dtype=np.float32)
    coordinates = (rows - centre) @ basis
    _, codes, counts = np.unique(label_codes, return_inverse=True, return_counts=True)
    n_labels = len(counts)
    if len(rows) - len(counts) < rank:  # too few images of each label to know a spread within
        codes, counts = np.zeros_like(codes), np.array([len(rows)])
    means = np.zeros((len(counts), rank))
    np.add.at(means, codes, coordinates)
    means /= counts[:, None]
    n_references = min(max(REFERENCES_PER_LABEL * n_labels, LEAST_REFERENCES), MOST_REFERENCES)
    residual = ((rows - centre) ** 2).sum() - (coordinates.astype(np.float64) ** 2).sum()
    lengths = log_lengths(feature_lengths(features))
    n_outside = max(len(rows) * (n_features - rank), 1)
    return OutlierDetector(
        n_averaged,
        centre,
        basis,
        coordinates[:n_references],
        means.astype(np.float32),
        _whitening(coordinates - means[codes], len(rows) - len(counts)),
        float(max(residual / n_outside, np.finfo(np.float32).eps)),
        float(lengths.mean()),
        float(max(lengths.std(), _LEAST_SPREAD)),
        unit_direction(embeddings.mean[:n_references]),
    )


def _whitening(deviations: Floats, degrees_of_freedom: int) -> NDArray[np.float32]:
    """L with L Lᵀ the inverse of the covariance (r, r) of ``deviations`` (N, r), shrunk.

    The means of the labels have taken some of their degrees of freedom (N − C).
    """
    covariance, _ = ledoit_wolf(deviations, assume_centered=True)
    covariance *= len(deviations) / max(degrees_of_freedom, 1)
    floor = np.finfo(np.float32).eps * np.trace(covariance) / len(covariance)
    covariance += (floor + np.finfo(np.float64).tiny) * np.eye(len(covariance))
    lower = np.linalg.cholesky(np.linalg.inv(covariance))
    return np.ascontiguousarray(lower, dtype=np.float32)


def fit_fusion(inliers: Floats, outliers: Sequence[Floats]) -> OutlierFusion:
    """Fuse outlier signals: a logistic regression of inliers against kinds of outliers.

    Its weights are a (w₀ + δ), with w₀ the `FUSION_PRIOR`, and minimise the mean logistic loss plus
    `PRIOR_STRENGTH` ‖δ‖²: weights stay near those of the prior up to scale, unless the data speak
    loudly. The scale a means nothing, and has none to speak of where inliers and outliers do not
    overlap; scores are brought to mean 0 and deviation 1 over the inliers, so that those of several
    fits can stand beside each other.

    Parameters
    ----------
    inliers : (N, S) signals of ordinary queries; they weigh as much as all outliers.
    outliers : for each kind (N_k, S); every kind weighs as much as another.
    """
    centre, scale = inliers.mean(axis=0), inliers.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    values = (np.concatenate([inliers, *outliers]) - centre) / scale
    sign = np.where(np.arange(len(values)) < len(inliers), -1.0, 1.0)
    weights = [np.full(len(inliers), 0.5 / len(inliers))]
    weights += [np.full(len(kind), 0.5 / len(outliers) / len(kind)) for kind in outliers]
    weight = np.concatenate(weights)

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        log_scale, shift, intercept = parameters[0], parameters[1:-1], parameters[-1]
        projected = np.exp(log_scale) * (values @ (FUSION_PRIOR + shift))
        margin = sign * (projected + intercept)
        loss = weight @ np.logaddexp(0, -margin) + PRIOR_STRENGTH * (shift @ shift)
        slope = -sign * weight * expit(-margin)
        by_shift = np.exp(log_scale) * (slope @ values) + 2 * PRIOR_STRENGTH * shift
        return float(loss), np.r_[slope @ projected, by_shift, slope.sum()]

    bounds = [(None, _MAX_LOG_SCALE), *[(None, None)] * (len(FUSION_PRIOR) + 1)]
    found = minimize(
        loss_and_gradient, np.zeros(len(bounds)), jac=True, method="L-BFGS-B", bounds=bounds
    ).x
    direction = FUSION_PRIOR + found[1:-1]
    spread = float((values[: len(inliers)] @ direction).std()) or 1.0
    return OutlierFusion(direction / spread, centre, scale)


def cross_fitted_scores(
    inliers: Floats,
    outliers: Sequence[Floats],
    clusters: NDArray[np.int64],
    seed: int,
    judged: Sequence[tuple[Floats, NDArray[np.int64]]] = (),
) -> tuple[Floats, list[Floats], list[Floats]]:
    """Return outlier scores of the inliers and of each kind, by fusions that have not seen them.

    Parameters
    ----------
    inliers, outliers : as in `fit_fusion`.
    clusters : of all of them in that order; those of one cluster are left out together.
    seed : of the folds.
    judged : signals (N_j, S) of others, which nothing is learned from, and the clusters (N_j,) of
        inliers that they belong to.

    Returns
    -------
    Scores of the inliers, of each kind of outlier, and of each of ``judged``.
    """
    groups = [inliers, *outliers]
    values = np.concatenate(groups)
    kinds = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    scores = np.empty(len(values))
    of_judged = [np.empty(len(signals)) for signals, _ in judged]
    folds = StratifiedGroupKFold(N_FOLDS, shuffle=True, random_state=seed)
    for kept, left_out in folds.split(values, kinds, clusters):
        of_kind = [values[kept][kinds[kept] == kind] for kind in range(len(groups))]
        fusion = fit_fusion(of_kind[0], of_kind[1:])
        scores[left_out] = fusion(values[left_out])
        for (signals, own), scored in zip(judged, of_judged, strict=True):
            rows = np.isin(own, clusters[left_out])
            scored[rows] = fusion(signals[rows])
    of_groups = [scores[kinds == kind] for kind in range(len(groups))]
    return of_groups[0], of_groups[1:], of_judged
