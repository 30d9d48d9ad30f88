"""Separation metrics: a value should be larger for positives than for negatives."""

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
