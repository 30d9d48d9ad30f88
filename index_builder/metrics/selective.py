"""Metrics of selective answering: the errors if the most uncertain queries get no answer.

If several queries are equally uncertain, each of these queries counts with the mean correctness of
the group. This equals the expected value over all orders of the group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
