"""Metrics of ranked lists.

``matches`` (B, n) is true for the true matches in each query's list; the nearest item is first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Counts = NDArray[np.integer[Any]]


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
