"""What an evaluation reports: pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def recall_at_k(matches: Bools, k: int) -> float:
    """Share of queries with a true match among their first k; ``matches`` is (B, ≥ k)."""
    return float(matches[:, :k].any(axis=1).mean())


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Predictions of about the same probability.

    Attributes
    ----------
    n : how many.
    probability : their mean.
    share : of them that came true.
    """

    n: int
    probability: float
    share: float


def reliability(probabilities: Floats, outcomes: Bools, n_bins: int = 15) -> list[ReliabilityBin]:
    """Reliability diagram over bins that hold the same number of predictions.

    Equal mass instead of equal width (Nixon et al. 2019); a probability of exactly 1 is counted
    like any other.

    Parameters
    ----------
    probabilities : (N,) in [0, 1].
    outcomes : (N,) whether the predicted thing was so.
    """
    order = np.argsort(probabilities, kind="stable")
    return [
        ReliabilityBin(len(rows), float(probabilities[rows].mean()), float(outcomes[rows].mean()))
        for rows in np.array_split(order, min(n_bins, len(order)))
    ]


def expected_calibration_error(probabilities: Floats, outcomes: Bools, n_bins: int = 15) -> float:
    """Σ_b |B_b|/N · |mean outcome − mean probability| over the bins of `reliability`.

    Guo et al. 2017.
    """
    bins = reliability(probabilities, outcomes, n_bins)
    total = sum(one.n * abs(one.share - one.probability) for one in bins)
    return total / len(probabilities)


def auroc(values_of_positives: Floats, values_of_negatives: Floats) -> float | None:
    """P(a positive has a larger value than a negative), ties counted half; None if either is empty.

    The area under the receiver operating characteristic (Hanley & McNeil 1982).
    """
    if not len(values_of_positives) or not len(values_of_negatives):
        return None
    values = np.concatenate([values_of_positives, values_of_negatives])
    truth = np.r_[np.ones(len(values_of_positives)), np.zeros(len(values_of_negatives))]
    return float(roc_auc_score(truth, values))
