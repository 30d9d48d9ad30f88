"""The metrics of an evaluation, as pure functions of arrays.

==================  =============================================================================
ranked lists        recall at k, mAP at k, mAP at R, average precision
structure           of an embedding: NMI, entropy, feature and cluster diversity
probabilities       reliability, calibration error, Brier score, consensus
separation          a value should be larger for positives: AUROC, AUPRC, FPR at 95 %
selective answers   the errors if the most uncertain queries get no answer: sparsification, AUSC,
                    AURC, AUGRC
open sets           one threshold accepts queries with a match and rejects absent queries, which
                    have no match in the gallery: detection and identification, OSCR
==================  =============================================================================

An undefined metric, for example a rate over an empty set, is None. NaN raises a ``ValueError``.
Metrics do not depend on the order of the images. A threshold never separates images with equal
values. If several images have equal values, their order could change a result. Each of these images
then gets the mean result of all of them. In selective answering, equally uncertain queries count
with the mean correctness of their group; this equals the expected value over all their orders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from model_store.records import ReliabilityBin

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.integer[Any]]
Counts = NDArray[np.integer[Any]]
Vectors = NDArray[np.floating[Any]]


def recall_at_k(matches: Bools, k: int) -> float:
    """Return the share of queries with a true match in the first k results."""
    return float(matches[:, :k].any(axis=1).mean())


def map_at_k(matches: Bools, n_relevant: Counts, k: int) -> float | None:
    """Mean over queries of AP@k = Σ_{i ≤ k} P(i) · rel(i) / min(R, k).

    P(i) is the share of true matches in the first i results. R is the number of true matches in the
    gallery. Queries without a match are left out. The code of the Laplace metric-learning paper has
    the same definition, except that such queries count as 1.

    Parameters
    ----------
    matches : (B, ≥ min(k, items)).
    n_relevant : (B,) R of each query.
    """
    return _mean_precision(matches[:, :k], n_relevant, np.minimum(n_relevant, k))


def map_at_r(matches: Bools, n_relevant: Counts) -> float | None:
    """Mean over queries of MAP@R = Σ_{i ≤ R} P(i) · rel(i) / R (Musgrave et al. 2020).

    Parameters
    ----------
    matches : (B, ≥ the largest R).
    n_relevant : (B,) R of each query; queries with R = 0 are left out.
    """
    within = np.arange(matches.shape[1]) < n_relevant[:, None]
    return _mean_precision(matches & within, n_relevant, n_relevant)


def average_precision(matches: Bools) -> float | None:
    """Mean over queries of AP = Σ_i P(i) · rel(i) / R, over whole rankings.

    Parameters
    ----------
    matches : (B, n) over all n items; queries without a match are left out.
    """
    n_relevant = matches.sum(axis=1)
    return _mean_precision(matches, n_relevant, n_relevant)


def _mean_precision(matches: Bools, n_relevant: Counts, divisor: Counts) -> float | None:
    """Return the mean of Σ_i P(i) · rel(i) / divisor over queries with R > 0, or None."""
    has = n_relevant > 0
    if not has.any():
        return None
    hits = matches[has]
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    return float(((precision * hits).sum(axis=1) / divisor[has]).mean())


MAX_PER_LABEL = 500
"""Maximum number of items of a label for `cluster_diversity`; 500 items form 125,000 pairs."""

MAX_FOR_ENTROPY = 2_000
"""Maximum number of vectors for `mean_nn_entropy`; 2,000 vectors form two million pairs."""


def normalised_mutual_information(vectors: Vectors, label_codes: Codes, seed: int) -> float | None:
    """Return the normalised mutual information of labels and k-means clusters.

    The value is 2 I(label; cluster) / (H(label) + H(cluster)), in [0, 1]. There are as many
    clusters as labels.

    Parameters
    ----------
    vectors : (N, D) unit embeddings.
    label_codes : (N,).
    seed : seed of k-means.

    Returns
    -------
    The value; None if there are fewer than two labels.
    """
    from sklearn.cluster import KMeans  # noqa: PLC0415 - slow
    from sklearn.metrics import normalized_mutual_info_score  # noqa: PLC0415 - slow

    n_labels = len(np.unique(label_codes))
    if n_labels < 2:
        return None
    clusters = KMeans(n_labels, n_init=1, random_state=seed).fit_predict(vectors)
    return float(normalized_mutual_info_score(label_codes, clusters))


def feature_diversity(vectors: Vectors) -> float:
    """Compute how evenly embeddings use their dimensions: exp(−KL(uniform ‖ spectrum)).

    The spectrum is the singular values of ``vectors`` (N, D), divided by their sum. Roth et al.
    2020 call the divergence spectral decay; Kirchhof et al. 2022, appendix L, call it feature
    diversity. The result is 1 if all singular values are equal, and 0 if one of them is 0.
    """
    values = np.linalg.svd(np.asarray(vectors, dtype=np.float64), compute_uv=False)
    if len(values) < vectors.shape[1] or values[-1] <= np.finfo(np.float64).eps * values[0]:
        return 0.0
    spectrum = values / values.sum()
    divergence = -np.log(spectrum * len(spectrum)).mean()
    return float(np.exp(-divergence))


def mean_nn_entropy(vectors: Vectors) -> float | None:
    """Estimate the entropy of an embedding up to a constant: D/(N(N − 1)) Σ_{i≠j} log d_ij².

    This is the estimator of Faivishevsky & Goldberger (2010), in the form of Boudiaf et al. 2020,
    Eq. 6. The terms i = j are left out, because they are −∞.

    Parameters
    ----------
    vectors : (N, D).

    Returns
    -------
    The entropy in nats; None if there are fewer than two vectors, or if two vectors are equal.
    """
    distances = pdist(vectors[:MAX_FOR_ENTROPY].astype(np.float64), "sqeuclidean")
    if not len(distances) or not distances.all():
        return None
    return float(vectors.shape[1] * np.log(distances).mean())


def cluster_diversity(vectors: Vectors, label_codes: Codes) -> float | None:
    """Return the variance of the distances between items of one label, averaged over the labels.

    The metric is from Kirchhof et al. 2022, appendix L. At most the first `MAX_PER_LABEL` items of
    a label are used.

    Parameters
    ----------
    vectors : (N, D).
    label_codes : (N,); labels with a single item are left out.

    Returns
    -------
    The variance in squared embedding units; None if no label has two items.
    """
    variances = []
    for code in np.unique(label_codes):
        members = np.flatnonzero(label_codes == code)[:MAX_PER_LABEL]
        if len(members) > 1:
            variances.append(pdist(vectors[members].astype(np.float64)).var())
    return float(np.mean(variances)) if variances else None


def reliability(
    probabilities: Floats, outcomes: Bools, n_bins: int = 15, weights: Floats | None = None
) -> list[ReliabilityBin]:
    """Return a reliability diagram with equal numbers of predictions in the bins.

    The bins have equal numbers of predictions, not equal widths (Nixon et al. 2019). Predictions
    with a probability of exactly 1 are included. If several predictions have equal probability, the
    outcome of each is replaced by the mean outcome of these predictions, see `evened`. The result
    therefore does not depend on the order of the predictions.

    Parameters
    ----------
    probabilities : (N,) in [0, 1].
    outcomes : (N,) whether the predicted event occurred.
    weights : (N,) weights of the predictions; None for equal weights. With weights, the bins have
        equal total weight instead of equal numbers of predictions.
    """
    _require_finite(probabilities)
    shares = evened(probabilities, outcomes, weights)
    if weights is None:
        groups = np.array_split(np.argsort(probabilities), min(n_bins, len(probabilities)))
        return _bins(probabilities, shares, groups)
    order = np.lexsort((weights, probabilities))
    reached = np.cumsum(weights[order]) / weights.sum()
    ends = reached.searchsorted(np.arange(1, n_bins) / n_bins + 1e-9)  # rounding ends no bin
    groups = [group for group in np.split(order, ends) if len(group)]
    return _bins(probabilities, shares, groups, weights)


def evened(values: Floats, outcomes: Bools, weights: Floats | None = None) -> Floats:
    """Return (N,): for each entry, the mean outcome of all entries that have the same value.

    Parameters
    ----------
    values, outcomes : (N,).
    weights : (N,) above 0; None for equal weights.
    """
    weights = np.ones(len(values)) if weights is None else weights
    _, group = np.unique(values, return_inverse=True)
    means: Floats = np.bincount(group, weights * outcomes) / np.bincount(group, weights)
    return means[group]


def calibration_spread(
    probabilities: Floats,
    outcomes: Bools,
    labels: NDArray[np.integer[Any]],
    weights: Floats,
    n_bins: int = 15,
    n_draws: int = 200,
    seed: int = 0,
) -> float:
    """Return the calibration error that perfectly calibrated probabilities would have by chance.

    The errors of two predictions are correlated if the queries have the same label. The bootstrap
    therefore draws labels (cluster bootstrap). The gap of a bin is the mean of outcome minus
    probability. For each draw and each bin, the function compares the gap in the drawn data with
    the gap in all data. The result is the mean of these absolute differences over all bins and
    draws.

    Parameters
    ----------
    probabilities, outcomes, labels, weights : (N,) see `reliability`.
    """
    _, place = np.unique(probabilities, return_inverse=True)  # equal ones share a bin
    of_value = np.bincount(place, weights) / weights.sum()
    middle = np.cumsum(of_value) - of_value / 2
    bins = np.minimum(middle * n_bins, n_bins - 1).astype(np.int64)[place]
    _, codes = np.unique(labels, return_inverse=True)
    shape = int(codes.max()) + 1, n_bins
    mass, gap = np.zeros(shape), np.zeros(shape)
    np.add.at(mass, (codes, bins), weights)
    np.add.at(gap, (codes, bins), weights * (outcomes - probabilities))
    of_all = gap.sum(axis=0) / np.maximum(mass.sum(axis=0), np.finfo(float).tiny)
    n_labels = shape[0]
    equal = np.full(n_labels, 1 / n_labels)
    drawn = np.random.default_rng(seed).multinomial(n_labels, equal, n_draws)
    of_drawn = drawn @ mass
    away = np.abs(drawn @ gap - of_drawn * of_all).sum(axis=1)
    return float((away / of_drawn.sum(axis=1)).mean())


def reliability_by_width(
    probabilities: Floats, outcomes: Bools, n_bins: int = 10
) -> list[ReliabilityBin]:
    """Return a reliability diagram over bins [0, 1/n), …, [(n − 1)/n, 1], without empty bins.

    The last bin includes probabilities of exactly 1; the code of the Laplace metric-learning paper
    drops them.
    """
    _require_finite(probabilities)
    place = np.minimum((probabilities * n_bins).astype(int), n_bins - 1)
    groups = [np.flatnonzero(place == one) for one in np.unique(place)]
    return _bins(probabilities, outcomes, groups)


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return Σ_b w_b · |share − probability| over the bins of a reliability diagram.

    Over the bins of `reliability`, this is the expected calibration error (Guo et al. 2017).
    """
    return math.fsum(one.weight * abs(one.share - one.probability) for one in bins)


def retrieval_calibration_error(confidences: Floats, correct: Bools, n_bins: int = 10) -> float:
    """Return the calibration error of a consensus: Σ_b |B_b|/N · |accuracy − confidence|.

    This is Eq. 111 of the Laplace metric-learning paper (Warburg et al. 2023). The paper misprints
    the weight |B_b|/N as 1/|B_b|. Bins have equal width.

    Parameters
    ----------
    confidences : (N,) from `consensus`.
    correct : (N,) whether each mode is correct.
    """
    return calibration_error(reliability_by_width(confidences, correct, n_bins))


def consensus(votes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], Floats]:
    """Return each query's most frequent vote, and the vote's share (Warburg et al. 2023, G.3).

    Parameters
    ----------
    votes : (S, B) label codes ≥ 0; each of S samples of a query votes for the label of the sample's
        nearest neighbour.

    Returns
    -------
    modes : (B,) the most frequent code; if several codes are equally frequent, the smallest of
        them.
    confidences : (B,) share of the votes for this code, in (0, 1].
    """
    n_codes = int(votes.max(initial=0)) + 1
    modes = np.empty(votes.shape[1], dtype=np.int64)
    counts = np.empty(votes.shape[1])
    for query, of_query in enumerate(votes.T):
        per_code = np.bincount(of_query, minlength=n_codes)
        modes[query] = per_code.argmax()
        counts[query] = per_code[modes[query]]
    return modes, counts / len(votes)


def brier(probabilities: Floats, outcomes: Bools) -> float:
    """Mean squared difference of probability and outcome, in [0, 1] (Brier 1950).

    Parameters
    ----------
    probabilities, outcomes : (N,).
    """
    return float(np.mean((probabilities - outcomes) ** 2))


def _require_finite(probabilities: Floats) -> None:
    if not len(probabilities) or not np.isfinite(probabilities).all():
        raise ValueError("probabilities must be one or more finite numbers")


def _bins(
    probabilities: Floats,
    outcomes: Bools | Floats,
    groups: Sequence[NDArray[np.int64]],
    weights: Floats | None = None,
) -> list[ReliabilityBin]:
    weights = np.ones(len(probabilities)) if weights is None else weights
    total = sum(float(weights[rows].sum()) for rows in groups)
    return [
        ReliabilityBin(
            n=len(rows),
            probability=float(np.average(probabilities[rows], weights=weights[rows])),
            share=float(np.average(outcomes[rows], weights=weights[rows])),
            weight=float(weights[rows].sum()) / total,
        )
        for rows in groups
    ]


def auroc(values_of_positives: Floats, values_of_negatives: Floats) -> float | None:
    """Return the probability that a positive is larger than a negative; equal values count as ½.

    This is the area under the receiver operating characteristic (Hanley & McNeil 1982). The value
    is None if there are no positives or no negatives.
    """
    if not len(values_of_positives) or not len(values_of_negatives):
        return None
    false_rates, true_rates = roc(values_of_positives, values_of_negatives)
    return float(np.trapezoid(true_rates, false_rates))


def error_auroc(uncertainties: Floats, correct: Bools) -> float | None:
    """Return R-AUROC: P(a wrong first result is more uncertain than a correct first result).

    The metric is from Kirchhof et al. 2023 (URL benchmark). The value is None if all first results
    are correct, or if all are wrong.

    Parameters
    ----------
    uncertainties, correct : (B,).
    """
    return auroc(uncertainties[~correct], uncertainties[correct])


def auprc(values_of_positives: Floats, values_of_negatives: Floats) -> float | None:
    """Return the area under the precision–recall step function, or None.

    This is average precision; the trapezium rule would give too large an area (Davis & Goadrich
    2006). The value is None if there are no positives or no negatives.
    """
    n_positives, n_negatives = len(values_of_positives), len(values_of_negatives)
    if not n_positives or not n_negatives:
        return None
    false_rates, true_rates = roc(values_of_positives, values_of_negatives)
    hits = true_rates[1:] * n_positives
    precision = hits / (hits + false_rates[1:] * n_negatives)
    return float((np.diff(true_rates) * precision).sum())


def fpr_at_tpr(
    values_of_positives: Floats, values_of_negatives: Floats, tpr: float = 0.95
) -> float | None:
    """Return the smallest false-positive rate at a true-positive rate of at least ``tpr``.

    The literature on outliers calls this FPR@95. Equal values are on the same side of a threshold.
    The value is None if there are no positives or no negatives.
    """
    if not len(values_of_positives) or not len(values_of_negatives):
        return None
    false_rates, true_rates = roc(values_of_positives, values_of_negatives)
    return float(false_rates[true_rates >= tpr - 1e-12].min())


def roc(values_of_positives: Floats, values_of_negatives: Floats) -> tuple[Floats, Floats]:
    """Return the false- and the true-positive rate at every threshold, from (0, 0) to (1, 1)."""
    thresholds = np.unique(np.concatenate([values_of_positives, values_of_negatives]))[::-1]
    if np.isnan(thresholds).any():
        raise ValueError("values must not be NaN")
    true_rates, false_rates = (
        np.r_[0.0, 1 - np.sort(values).searchsorted(thresholds) / len(values)]
        for values in (values_of_positives, values_of_negatives)
    )
    return false_rates, true_rates


N_SHARES = 99
"""Number of points of the sparsification curve. The removed shares are 0, 1, …, 98 %, as in the
Laplace metric-learning paper."""


def sparsification(uncertainties: Floats, correct: Bools) -> tuple[Floats, Floats]:
    """Return the accuracy after removing the 0, 1, …, 98 % most uncertain queries.

    Parameters
    ----------
    uncertainties : (B,), B ≥ 1.
    correct : (B,) whether the first result is correct.

    Returns
    -------
    shares : (99,) shares of removed queries, 0 to 0.98.
    accuracies : (99,) accuracies of the remaining queries.
    """
    shares = np.arange(N_SHARES) / 100
    kept = len(correct) - np.floor(shares * len(correct) + 1e-9).astype(int)
    return shares, _accuracies(uncertainties, correct)[kept - 1]


def ausc(uncertainties: Floats, correct: Bools) -> float:
    """Area under the sparsification curve, by the trapezium rule with steps of 1/99.

    This is the definition in the code of the Laplace metric-learning paper; the maximum is 98/99.
    """
    _, accuracies = sparsification(uncertainties, correct)
    return float(np.trapezoid(accuracies, dx=1 / N_SHARES))


def risk_coverage(uncertainties: Floats, correct: Bools) -> tuple[Floats, Floats]:
    """Return the share of wrong answers when the 1, 2, …, B most certain queries are answered.

    Returns
    -------
    coverages : (B,) 1/B to 1.
    risks : (B,).
    """
    accuracies = _accuracies(uncertainties, correct)
    return np.arange(1, len(correct) + 1) / len(correct), 1 - accuracies


def aurc(uncertainties: Floats, correct: Bools) -> float:
    """Return the mean risk over all coverages (Geifman & El-Yaniv 2017); the best value is 0."""
    _, risks = risk_coverage(uncertainties, correct)
    return float(risks.mean())


def augrc(uncertainties: Floats, correct: Bools) -> float:
    """Return the share of wrong answers among all queries, averaged over all coverages.

    This is the area under the generalised risk coverage curve (Traub et al. 2024). The generalised
    risk is risk times coverage. The best value is 0. In `aurc`, an error of a very certain query
    dominates the mean; in `augrc`, such an error does not.
    """
    coverages, risks = risk_coverage(uncertainties, correct)
    return float((coverages * risks).mean())


def _accuracies(uncertainties: Floats, correct: Bools) -> Floats:
    """Return the accuracy (B,) of the n most certain queries, for n from 1 to B."""
    if not len(uncertainties) or np.isnan(uncertainties).any():
        raise ValueError("uncertainties must be one or more numbers without NaN")
    _, group, size = np.unique(uncertainties, return_inverse=True, return_counts=True)
    of_group = np.bincount(group, weights=correct) / size
    surest_first = np.repeat(of_group, size)
    accuracies: Floats = np.cumsum(surest_first) / np.arange(1, len(correct) + 1)
    return accuracies


def detection_and_identification_rate(
    confidences: Floats, correct: Bools, absent_confidences: Floats, false_alarm_rate: float
) -> float | None:
    """Return the share of queries with a match that are accepted and have a correct first result.

    This is the detection and identification rate at a false alarm rate (Phillips et al. 2011). A
    query is accepted if its confidence is above a threshold. The share of accepted absent queries
    must be at most ``false_alarm_rate``; the threshold is the lowest value for which this is true.
    A confidence equal to the threshold is rejected. So the limit also holds if several confidences
    are equal.

    Parameters
    ----------
    confidences : (B,) for each query with a match, the confidence in its first result.
    correct : (B,) whether the first result is correct.
    absent_confidences : (M,) confidences of queries without a match.
    false_alarm_rate : in [0, 1].

    Returns
    -------
    A value in [0, recall at 1]; None if there are no queries with a match or no absent queries.
    """
    if np.isnan(confidences).any() or np.isnan(absent_confidences).any():
        raise ValueError("confidences must not be NaN")
    if not len(confidences) or not len(absent_confidences):
        return None
    allowed = int(np.floor(false_alarm_rate * len(absent_confidences) + 1e-9))
    ranked = np.sort(absent_confidences)[::-1]
    threshold = -np.inf if allowed == len(ranked) else ranked[allowed]
    return float((correct & (confidences > threshold)).mean())


def open_set_classification_rate(
    confidences: Floats, correct: Bools, absent_confidences: Floats
) -> float | None:
    """Return the area under the curve of the correct-answer rate over the false-acceptance rate.

    This is OSCR (Dhamija et al. 2018). Take one query with a match and one query without a match,
    at random. OSCR is the probability that the query with a match is answered correctly and has the
    higher confidence of the two. Equal confidences count as ½.

    Parameters
    ----------
    confidences, correct, absent_confidences : as in `detection_and_identification_rate`.

    Returns
    -------
    A value in [0, recall at 1]; None if there are no queries with a match or no absent queries.
    """
    if np.isnan(confidences).any() or np.isnan(absent_confidences).any():
        raise ValueError("confidences must not be NaN")
    if not len(confidences) or not len(absent_confidences):
        return None
    ranked = np.sort(absent_confidences)
    below = np.searchsorted(ranked, confidences, side="left")
    not_above = np.searchsorted(ranked, confidences, side="right")
    return float((correct * (below + not_above)).mean() / (2 * len(ranked)))
