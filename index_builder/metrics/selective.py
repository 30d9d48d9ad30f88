"""Metrics of selective answering: the gain of not answering the most uncertain queries.

Queries that are equally uncertain count as if in random order: each has the mean of the values of
them all, which is the expectation over orders.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

N_SHARES = 99
"""Points of the Laplace metric-learning paper's sparsification curve: 0, 1, …, 98 % removed."""


def sparsification(uncertainties: Floats, correct: Bools) -> tuple[Floats, Floats]:
    """Accuracy of the rest when 0, 1, …, 98 % of the queries, the most uncertain, are removed.

    Parameters
    ----------
    uncertainties : (B,), of one query or more.
    correct : (B,) whether the first result is true.

    Returns
    -------
    shares : (99,) removed, 0 to 0.98.
    accuracies : (99,) of the rest, which is never empty.
    """
    shares = np.arange(N_SHARES) / 100
    kept = len(correct) - np.floor(shares * len(correct) + 1e-9).astype(int)
    return shares, _accuracies(uncertainties, correct)[kept - 1]


def ausc(uncertainties: Floats, correct: Bools) -> float:
    """Area under the sparsification curve, by the trapezium rule with steps of 1/99.

    As the code of the Laplace metric-learning paper has it: 98/99 at best.
    """
    _, accuracies = sparsification(uncertainties, correct)
    return float(np.trapezoid(accuracies, dx=1 / N_SHARES))


def risk_coverage(uncertainties: Floats, correct: Bools) -> tuple[Floats, Floats]:
    """Share of wrong ones among the answered, when 1, 2, …, B queries are, the surest first.

    Returns
    -------
    coverages : (B,) 1/B to 1.
    risks : (B,).
    """
    accuracies = _accuracies(uncertainties, correct)
    return np.arange(1, len(correct) + 1) / len(correct), 1 - accuracies


def aurc(uncertainties: Floats, correct: Bools) -> float:
    """Mean over all coverages of the risk (Geifman & El-Yaniv 2017), 0 at best."""
    _, risks = risk_coverage(uncertainties, correct)
    return float(risks.mean())


def augrc(uncertainties: Floats, correct: Bools) -> float:
    """Mean over all coverages of the share of all queries that are answered wrongly.

    Area under the generalised risk coverage curve (Traub et al. 2024), risk times coverage: unlike
    `aurc` it does not weigh the errors among the surest queries many times. 0 at best.
    """
    coverages, risks = risk_coverage(uncertainties, correct)
    return float((coverages * risks).mean())


def _accuracies(uncertainties: Floats, correct: Bools) -> Floats:
    """Accuracy (B,) of the n surest queries, for n from 1."""
    if not len(uncertainties) or np.isnan(uncertainties).any():
        raise ValueError("uncertainties must be one number or more, and none NaN")
    _, group, size = np.unique(uncertainties, return_inverse=True, return_counts=True)
    of_group = np.bincount(group, weights=correct) / size
    surest_first = np.repeat(of_group, size)
    accuracies: Floats = np.cumsum(surest_first) / np.arange(1, len(correct) + 1)
    return accuracies
