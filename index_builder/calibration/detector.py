"""Fitting the outlier detector, and the fusion of its signals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.folds import stratified_folds
from model_store.decision import OutlierDetector, OutlierFusion
from model_store.decision.outliers import (
    averaged_features,
    averaging,
    feature_lengths,
    log_lengths,
    unit_rows,
)
from model_store.encoder.contract import Embeddings
from model_store.errors import CalibrationError
from model_store.sphere import unit_direction

RANK = 64
"""Principal directions of the features that the outlier detector keeps. Twice as many tell spoilt
images apart a little better (AUROC by 0.004), other worlds no better, and cost a query more."""

MOST_BASIS_ENTRIES = 82_000
"""Entries of the basis at most; every query reads them all. They are 64 directions of a MobileNet's
1,280 features."""

MIN_REFERENCES = 20
"""Gallery images below which there is no subspace to speak of."""

REFERENCES_PER_LABEL, LEAST_REFERENCES, MOST_REFERENCES = 50, 500, 2000
"""Gallery images whose features and embeddings a query's are compared with: as many for each label
on average, at least, and at most. Every query reads them all. Of Fashion-MNIST's ten labels four
times as many tell outliers apart no better (AUROC −0.007 to 0.000, one seed)."""

LEAST_OF_LABEL = 5
"""Gallery images of each label that are compared with, if it has them and there is room: a label
of few images, such as one that was enrolled, would look alien wherever chance leaves it out."""

MOST_LEVELS = 512
"""Calibration values of each signal that its p-values are interpolated between."""

TAIL_SHARE, LEAST_TAIL = 0.1, 5
"""Share, and least number, of the calibration values that tell how fast p-values fall beyond the
largest of them."""

_LEAST_SPREAD = 1e-3
"""The least standard deviation assumed of log lengths: where all features are equally long, as
normalised ones are, rounding errors are no signal."""

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
    from sklearn.decomposition import PCA  # noqa: PLC0415 - slow

    if len(embeddings) < MIN_REFERENCES:
        raise CalibrationError(
            f"The gallery has {len(embeddings)} images; outlier detection needs at least "
            f"{MIN_REFERENCES}. Index more images."
        )
    n_averaged = averaging(embeddings.features.shape[1])
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
    references = _references(label_codes, n_references)
    residual = ((rows - centre) ** 2).sum() - (coordinates.astype(np.float64) ** 2).sum()
    lengths = log_lengths(feature_lengths(features))
    n_outside = max(len(rows) * (n_features - rank), 1)
    return OutlierDetector(
        n_averaged,
        centre,
        basis,
        coordinates[references],
        means.astype(np.float32),
        _whitening(coordinates - means[codes], len(rows) - len(counts)),
        float(max(residual / n_outside, np.finfo(np.float32).eps)),
        float(lengths.mean()),
        float(max(lengths.std(), _LEAST_SPREAD)),
        unit_direction(embeddings.mean[references]),
    )


def _references(label_codes: NDArray[np.integer[Any]], n_references: int) -> NDArray[np.int64]:
    """Choose images to compare with: the first ones, and the first few of each label."""
    order = np.argsort(label_codes, kind="stable")
    _, starts, counts = np.unique(label_codes[order], return_index=True, return_counts=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, counts)
    chosen = np.argsort(place >= LEAST_OF_LABEL, kind="stable")[:n_references]
    return np.sort(chosen)


def _whitening(deviations: Floats, degrees_of_freedom: int) -> NDArray[np.float32]:
    """L with L Lᵀ the inverse of the covariance (r, r) of ``deviations`` (N, r), shrunk.

    The means of the labels have taken some of their degrees of freedom (N − C).
    """
    from sklearn.covariance import ledoit_wolf  # noqa: PLC0415 - slow

    covariance, _ = ledoit_wolf(deviations, assume_centered=True)
    covariance *= len(deviations) / max(degrees_of_freedom, 1)
    floor = np.finfo(np.float32).eps * np.trace(covariance) / len(covariance)
    covariance += (floor + np.finfo(np.float64).tiny) * np.eye(len(covariance))
    lower = np.linalg.cholesky(np.linalg.inv(covariance))
    return np.ascontiguousarray(lower, dtype=np.float32)


def fit_fusion(inliers: Floats, outliers: Sequence[Floats]) -> OutlierFusion:
    """Fit the weighted harmonic mean of p-values that makes one outlier score of the signals.

    A signal weighs as much as it tells outliers from inliers: with D = 2 AUROC − 1 (Somers 1962),

        w_s ∝ max(D_s, 0) + (1 − max_s D_s) / S

    so that what the best signal leaves open is shared out equally. Where features order the gallery
    badly no signal is good, weights are nearly equal, and the harmonic mean keeps to whichever
    signal is the most alien.

    The first kind of outliers is always learned from. Another one is only where the weights that it
    alone would give tell the other kinds apart better than equal weights do, by more than the
    standard error of that gain: on a network that orders CIFAR-10 badly, learning from digits would
    cost photographs 0.06 of AUROC (0.89 to 0.83), and learning from photographs birds 0.01.

    Parameters
    ----------
    inliers : (N, S) signals of ordinary queries.
    outliers : for each of one or more kinds (N_k, S), corrupted queries first. Kinds that are
        learned from weigh the same.
    """
    n_signals = inliers.shape[1]
    equal = _fusion_of(inliers, np.full(n_signals, 1 / n_signals))
    separations = [_separation(kind, inliers) for kind in outliers]

    def helps(taught: int) -> bool:
        """Return whether weights learned from one kind alone serve the other kinds."""
        learned = replace(equal, weights=_weights(separations[taught]))
        before, after = equal(inliers), learned(inliers)
        gains, variances = np.transpose(
            [
                _gain(learned(kind), after, equal(kind), before)
                for number, kind in enumerate(outliers)
                if number != taught
            ]
        )
        return bool(gains.sum() > np.sqrt(variances.sum()))

    teachers = [
        separation for number, separation in enumerate(separations) if number == 0 or helps(number)
    ]
    return replace(equal, weights=_weights(np.mean(teachers, axis=0)))


def _fusion_of(inliers: Floats, weights: Floats) -> OutlierFusion:
    """Return a fusion with these ``weights`` (S,), its p-values those among ``inliers`` (N, S)."""
    from scipy.stats import rankdata  # noqa: PLC0415 - slow

    ordered = np.sort(inliers, axis=0).T
    n = len(inliers)
    # As many inliers are at least as large: equal ones share the largest p-value.
    n_below = rankdata(ordered, method="min", axis=1) - 1
    kept = np.unique(np.linspace(0, n - 1, min(n, MOST_LEVELS)).round().astype(int))
    n_tail = min(max(round(TAIL_SHARE * n), LEAST_TAIL), n - 1)
    excess = (ordered[:, n - n_tail :] - ordered[:, [n - n_tail - 1]]).mean(axis=1)
    return OutlierFusion(
        weights,
        np.ascontiguousarray(ordered[:, kept]),
        -np.log((n - n_below[:, kept]) / (n + 1)),
        1 / np.where(excess > 0, excess, 1.0),
    )


def _weights(separations: Floats) -> Floats:
    """Return weights (S,) with sum 1 for ``separations`` (S,), see `fit_fusion`."""
    gained = np.maximum(separations, 0) + (1 - separations.max()) / len(separations)
    weights: Floats = gained / gained.sum()
    return weights


def _separation(outliers: Floats, inliers: Floats) -> Floats:
    """Return Somers' D (...) of ``outliers`` (A, ...) against ``inliers`` (N, ...).

    The probability that an alien has the larger value minus that of the reverse: 2 AUROC − 1.
    """
    separation: Floats = _placements(outliers, inliers)[0].mean(axis=0)
    return separation


def _gain(
    outliers: Floats, inliers: Floats, other_outliers: Floats, other_inliers: Floats
) -> tuple[float, float]:
    """Return how much larger D is of one score than of another of the same queries.

    Returns
    -------
    The difference, and its variance (DeLong, DeLong and Clarke-Pearson 1988).
    """
    of_one = _placements(outliers, inliers)
    of_other = _placements(other_outliers, other_inliers)
    changes = [one - other for one, other in zip(of_one, of_other, strict=True)]
    variance = sum(float(change.var()) / max(len(change) - 1, 1) for change in changes)
    return float(changes[0].mean()), variance


def _placements(outliers: Floats, inliers: Floats) -> tuple[Floats, Floats]:
    """Return where each of ``outliers`` (A, ...) and ``inliers`` (N, ...) lies among the others.

    For an outlier, the share of inliers below it minus that of those above; for an inlier, the same
    of outliers above and below. The mean of either is D.
    """
    from scipy.stats import rankdata  # noqa: PLC0415 - slow

    n_outliers, n_inliers = len(outliers), len(inliers)
    ranks = rankdata(np.concatenate([outliers, inliers]), axis=0)
    above = ranks[:n_outliers] - rankdata(outliers, axis=0)
    below = ranks[n_outliers:] - rankdata(inliers, axis=0)
    return 2 * above / n_inliers - 1, 1 - 2 * below / n_outliers


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
    for kept, left_out in stratified_folds(kinds, clusters, seed):
        of_kind = [values[kept][kinds[kept] == kind] for kind in range(len(groups))]
        fusion = fit_fusion(of_kind[0], of_kind[1:])
        scores[left_out] = fusion(values[left_out])
        for (signals, own), scored in zip(judged, of_judged, strict=True):
            rows = np.isin(own, clusters[left_out])
            scored[rows] = fusion(signals[rows])
    of_groups = [scores[kinds == kind] for kind in range(len(groups))]
    return of_groups[0], of_groups[1:], of_judged
