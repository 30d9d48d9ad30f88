"""Compute all metrics and curves of one method from arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder import metrics
from index_builder.reproduction.retrieval import (
    RetrievalResults,
    euclidean_matches,
    full_matches,
    label_codes,
)
from model_store.sphere import unit_direction

N_FULL = 1_000
"""Number of random queries for which the whole gallery is ranked; a ranking can have 60,000
items."""

N_STRUCTURE = 10_000
"""Maximum number of queries for metrics of the structure of the embedding."""

MAX_CLUSTERS = 1_000
"""Maximum number of labels for NMI. With more labels, k-means would take most of the time."""

N_POINTS = 120
"""Number of points of a curve on the page."""

N_BINS = 40
"""Number of bins of a histogram."""

FALSE_ALARMS = (0.01, 0.1)

RECALLS = (1, 2, 5, 10)
"""Ranks k of R@k."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Result = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Signals:
    """The uncertainties and scores of a method for B queries and for outliers.

    Attributes
    ----------
    uncertainties : (B,) uncertainty of the first result; None if the method has no uncertainty.
    outlier_scores : (B,) outlier scores of the queries; None if the method has no outlier score.
    scores_of_outliers : outlier scores of each kind of outlier; the key is the kind's name.
    confidences : (B,) predicted probability of an event; None if the method has no probabilities.
    outcomes : (B,) whether the predicted event occurred; None if ``confidences`` is None.
    acceptance : (B,) score for the open-set metrics: queries with a large score are accepted.
    acceptance_outliers : the same score for the outliers of the first kind.
    """

    uncertainties: Floats | None
    outlier_scores: Floats | None
    scores_of_outliers: Mapping[str, Floats]
    confidences: Floats | None
    outcomes: Bools | None
    acceptance: Floats
    acceptance_outliers: Floats


def of_ranking(results: RetrievalResults, seed: int) -> Result:
    """Return the metrics of the ranked lists and of the structure of the embedding."""
    some = np.random.default_rng(seed).permutation(len(results.found))
    full_rows = np.sort(some[:N_FULL])
    whole = full_matches(results, full_rows)
    relevant = results.n_relevant[full_rows]
    chosen = np.sort(some[:N_STRUCTURE])
    vectors = unit_direction(results.queries.mean[chosen])
    codes = label_codes(results.task)[0][chosen]
    clusters = None
    if len(np.unique(codes)) <= MAX_CLUSTERS:
        clusters = metrics.normalised_mutual_information(vectors, codes, seed)
    by_length = euclidean_matches(results, max(RECALLS))
    return {
        **{f"recall_at_{k}": metrics.recall_at_k(results.matches, k) for k in RECALLS},
        **{f"euclidean_recall_at_{k}": metrics.recall_at_k(by_length, k) for k in RECALLS},
        **{
            f"map_at_{k}": metrics.map_at_k(results.matches, results.n_relevant, k) for k in (5, 10)
        },
        "map_at_1000": metrics.map_at_k(whole, relevant, 1000),
        "map_at_r": metrics.map_at_r(whole, relevant),
        "average_precision": metrics.average_precision(whole),
        "nmi": clusters,
        "entropy": metrics.mean_nn_entropy(vectors),
        "feature_diversity": metrics.feature_diversity(vectors),
        "cluster_diversity": metrics.cluster_diversity(vectors, codes),
    }


def of_signals(signals: Signals, correct: Bools) -> Result:
    """Return the metrics for error detection, outlier detection, calibration and the open set."""
    result: Result = {}
    if signals.uncertainties is not None:
        result["error_auroc"] = metrics.error_auroc(signals.uncertainties, correct)
        result["ausc"] = metrics.ausc(signals.uncertainties, correct)
        result["aurc"] = metrics.aurc(signals.uncertainties, correct)
        result["augrc"] = metrics.augrc(signals.uncertainties, correct)
    if signals.confidences is not None and signals.outcomes is not None:
        result["ece"] = metrics.retrieval_calibration_error(signals.confidences, signals.outcomes)
        result["brier"] = metrics.brier(signals.confidences, signals.outcomes)
    if signals.outlier_scores is not None:
        for place, (name, scores) in enumerate(signals.scores_of_outliers.items()):
            end = "" if place == 0 else f": {name}"
            result[f"ood_auroc{end}"] = metrics.auroc(scores, signals.outlier_scores)
            result[f"ood_auprc{end}"] = metrics.auprc(scores, signals.outlier_scores)
            result[f"ood_fpr95{end}"] = metrics.fpr_at_tpr(scores, signals.outlier_scores)
    open_set = signals.acceptance, correct, signals.acceptance_outliers
    result["oscr"] = metrics.open_set_classification_rate(*open_set)
    for rate in FALSE_ALARMS:
        result[f"dir_at_far_{rate}"] = metrics.detection_and_identification_rate(*open_set, rate)
    return result


def curves(signals: Signals, correct: Bools) -> dict[str, Any]:
    """Return the curves of a report; each has at most `N_POINTS` points."""
    drawn: dict[str, Any] = {}
    if signals.confidences is not None and signals.outcomes is not None:
        bins = metrics.reliability_by_width(signals.confidences, signals.outcomes)
        drawn["reliability"] = [one.model_dump() for one in bins]
    if signals.uncertainties is not None:
        drawn["sparsification"] = _thinned(*metrics.sparsification(signals.uncertainties, correct))
        drawn["risk_coverage"] = _thinned(*metrics.risk_coverage(signals.uncertainties, correct))
    if signals.outlier_scores is not None:
        drawn["outliers"] = {
            name: {
                "roc": _thinned(*metrics.roc(scores, signals.outlier_scores)),
                "histogram": _histogram(signals.outlier_scores, scores),
            }
            for name, scores in signals.scores_of_outliers.items()
        }
    return drawn


def _thinned(x: Floats, y: Floats) -> list[list[float]]:
    """Return at most `N_POINTS` points of a curve, sorted by x, with its first and last point."""
    wanted = np.linspace(x[0], x[-1], N_POINTS)
    places = np.unique(np.r_[0, np.searchsorted(x, wanted).clip(max=len(x) - 1), len(x) - 1])
    return [
        [round(float(a), 5), round(float(b), 5)] for a, b in zip(x[places], y[places], strict=True)
    ]


def _histogram(ordinary: Floats, scores: Floats) -> dict[str, list[float]]:
    """Return histograms of the ranks of ordinary queries and of outliers, in equal bins.

    Ordinary queries and outliers are ranked together. Ranks are used because the uncertainties of
    different methods have different scales and long tails.
    """
    values = np.concatenate([ordinary, scores])
    ranks = np.searchsorted(np.sort(values), values, side="left") / max(len(values) - 1, 1)
    edges = np.linspace(0, 1, N_BINS + 1)
    return {
        name: (np.histogram(of_kind, edges)[0] / len(of_kind)).round(5).tolist()
        for name, of_kind in (
            ("ordinary", ranks[: len(ordinary)]),
            ("outliers", ranks[len(ordinary) :]),
        )
    }
