"""Metrics of an uncertainty: separation of two groups, selective answering, open sets.

Separation: a value should be larger for positives than for negatives.

Selective answering: the errors if the most uncertain queries get no answer. If several queries are
equally uncertain, each of these queries counts with the mean correctness of the group. This equals
the expected value over all orders of the group.

Open sets: one threshold accepts queries with a match and rejects absent queries. An absent query is
a query without a match in the gallery.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
