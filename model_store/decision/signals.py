"""What a result list knows about each of its items being a true match."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIGNALS = (
    "log_distance",
    "log_distance_ratio",
    "agreement_10",
    "agreement_50",
    "weighted_agreement",
    "log_distance_50",
    "log_uncertainty",
    "outlier_score",
)
"""The last axis of `signals`, in order."""

_FLOOR = 1e-4
"""Added to cosine distances before their logarithm: the distance of an image to its exact copy
would drown every other."""

_BANDWIDTH = 0.02
"""In cosine similarity: by how much an item may lie behind the first and still count fully in the
weighted agreement; the scale on which trained galleries separate neighbours."""

_TINY = 1e-12
"""Keeps the logarithm of a variance that is exactly zero finite."""


def signals(
    similarities: NDArray[np.float64],
    label_codes: NDArray[np.int32],
    spherical_variances: NDArray[np.float64],
    outlier_scores: NDArray[np.float64],
    ranks: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Signals of the items at some places of B result lists.

    All are logarithms or log-odds: a logistic regression weighs evidence by adding it.

    Parameters
    ----------
    similarities : (B, n), descending.
    label_codes : (B, n), -1 where an item has no label; such an item agrees with itself alone.
    spherical_variances, outlier_scores : (B,) of the queries.
    ranks : (B, m) places in the lists, from 0.

    Returns
    -------
    (B, m, len(SIGNALS)), with the cosine distance d = 1 − similarity:

    - ``log_distance`` of the item to the query;
    - ``log_distance_ratio``: log of the distance to the nearest item of another label, or to the
      last candidate where all agree, over the item's own: negative below an item of another label;
    - ``agreement_10``, ``agreement_50``: log-odds of the item's label among the nearest 10 and 50;
    - ``weighted_agreement``: the same over all candidates, weighted by exp((s − s₁) / 0.02);
    - ``log_distance_50`` of the 50th neighbour, the density of the gallery here;
    - ``log_uncertainty``: of the query, log of its spherical variance;
    - ``outlier_score``: of the query.
    """
    n_queries, n_candidates = similarities.shape
    log_distances = np.log(np.maximum(1 - similarities, 0) + _FLOOR)
    labels = _own_labels(label_codes)
    same = np.take_along_axis(labels, ranks, axis=1)[..., None] == labels[:, None, :]
    own = np.take_along_axis(log_distances, ranks, axis=1)
    nearest_other = np.where(same, log_distances[:, None, -1:], log_distances[:, None, :])
    weights = np.exp((similarities - similarities[:, :1]) / _BANDWIDTH)[:, None, :]
    values = np.empty((n_queries, ranks.shape[1], len(SIGNALS)))
    values[..., 0] = own
    values[..., 1] = nearest_other.min(axis=-1) - own
    values[..., 2] = _log_odds(same[..., :10].sum(axis=-1), min(10, n_candidates))
    values[..., 3] = _log_odds(same[..., :50].sum(axis=-1), min(50, n_candidates))
    values[..., 4] = _log_odds((same * weights).sum(axis=-1), weights.sum(axis=-1))
    values[..., 5] = log_distances[:, min(50, n_candidates) - 1, None]
    values[..., 6] = np.log(spherical_variances + _TINY)[:, None]
    values[..., 7] = outlier_scores[:, None]
    return values


def first_of_each_label(label_codes: NDArray[np.int32], most: int) -> NDArray[np.int64]:
    """Places of the nearest item of each label in a result list, at most so many, ascending.

    Parameters
    ----------
    label_codes : (n,), -1 where an item has no label: such an item is one of its own.
    most : labels to consider, the nearest first.
    """
    return np.sort(np.unique(_own_labels(label_codes), return_index=True)[1])[:most]


def _own_labels(label_codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Labels (..., n), a different one for each item that has none."""
    unlabelled = -1 - np.arange(label_codes.shape[-1])
    return np.where(label_codes < 0, unlabelled, label_codes.astype(np.int64))


def _log_odds(agreeing: NDArray[np.float64], of: NDArray[np.float64] | int) -> NDArray[np.float64]:
    """Log-odds of a share, with half a neighbour added to either side (Haldane & Anscombe)."""
    log_odds: NDArray[np.float64] = np.log((agreeing + 0.5) / (of - agreeing + 0.5))
    return log_odds
