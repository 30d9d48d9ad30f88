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
    "narrow_agreement",
    "wide_agreement",
    "mean_margin",
    "mean_agreement",
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

_NARROW, _WIDE = 0.1, 0.4
"""Bandwidths in spans of the list, s₁ − s_n: similarities of galleries that the encoder was not
trained on lie closer together or further apart than any one number could say."""

_OF_MEANS = 0.2
"""Bandwidth of the agreement of label means, in spans of the means that were found."""

_SHARE_FLOOR = 1e-3
"""Of the whole weight, added to either side of a share: no label is ruled out."""

_TINY = 1e-12
"""Keeps the logarithm of a variance that is exactly zero finite, and the span of equal items."""


def signals(
    similarities: NDArray[np.float64],
    label_codes: NDArray[np.int32],
    mean_similarities: NDArray[np.float64],
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
    mean_similarities : (B, n), see `LabelMeans.similarities`.
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
    - ``narrow_agreement``, ``wide_agreement``: the same, weighted by exp((s − s₁) / h), with h 0.1
      and 0.4 of the list's span s₁ − s_n;
    - ``mean_margin``: by how much the mean of the item's label is more similar than that of the
      most similar other label in the list, or than the last candidate where all agree;
    - ``mean_agreement``: log-odds of that label among those in the list, weighted by
      exp((c − c₁) / h) of their means' similarities c, with h 0.2 of the span of these;
    - ``log_distance_50`` of the 50th neighbour, the density of the gallery here;
    - ``log_uncertainty``: of the query, log of its spherical variance;
    - ``outlier_score``: of the query.
    """
    n_queries, n_candidates = similarities.shape
    rows = np.arange(n_queries)
    at = rows[:, None], ranks
    log_distances = np.log(np.maximum(1 - similarities, 0) + _FLOOR)
    groups, nearest_of_label = _groups(label_codes)
    n_groups = int(nearest_of_label.sum())
    asked = groups[at]

    def agreeing(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weight (B, m) of the candidates that share the label of an item asked for."""
        sums = np.bincount(groups.ravel(), weights.ravel(), n_groups).astype(np.float64)
        return sums[asked]

    def nearest(k: int) -> NDArray[np.float64]:
        within = np.broadcast_to(np.arange(n_candidates) < k, groups.shape)
        return _log_odds(agreeing(within.astype(np.float64)), min(k, n_candidates))

    behind = similarities - similarities[:, :1]
    weights = np.exp(behind / _BANDWIDTH)
    span = -behind[:, -1:] + _TINY
    # The nearest item of another label is the first of the list, or the first unlike that one.
    unlike_first = groups != groups[:, :1]
    place = np.where(unlike_first.any(axis=1), unlike_first.argmax(axis=1), n_candidates - 1)
    nearest_other = np.where(
        asked == groups[:, :1], log_distances[rows, place][:, None], log_distances[:, :1]
    )
    own = log_distances[at]
    values = np.empty((*ranks.shape, len(SIGNALS)))
    values[..., 0] = own
    values[..., 1] = nearest_other - own
    values[..., 2] = nearest(10)
    values[..., 3] = nearest(50)
    values[..., 4] = _log_odds(agreeing(weights), weights.sum(axis=1, keepdims=True))
    for column, bandwidth in ((5, _NARROW), (6, _WIDE)):
        weights = np.exp(behind / (bandwidth * span))
        total = weights.sum(axis=1, keepdims=True)
        values[..., column] = _log_odds(agreeing(weights), total, _SHARE_FLOOR * total)
    values[..., 7:9] = _of_means(similarities, mean_similarities, groups, nearest_of_label, at)
    values[..., 9] = log_distances[:, min(50, n_candidates) - 1, None]
    values[..., 10] = np.log(spherical_variances + _TINY)[:, None]
    values[..., 11] = outlier_scores[:, None]
    return values


def _of_means(
    similarities: NDArray[np.float64],
    mean_similarities: NDArray[np.float64],
    groups: NDArray[np.int64],
    nearest_of_label: NDArray[np.bool_],
    at: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.float64]:
    """``mean_margin`` and ``mean_agreement`` (B, m, 2) ``at`` some places; see `_groups`."""
    rows = np.arange(len(groups))
    best = mean_similarities.argmax(axis=1)
    highest = mean_similarities[rows, best]
    is_best = groups == groups[rows, best][:, None]
    others = np.where(is_best, -np.inf, mean_similarities).max(axis=1)
    second = np.where(is_best.all(axis=1), similarities[:, -1], others)
    own = mean_similarities[at]
    rival = np.where(is_best[at], second[:, None], highest[:, None])
    span = highest - mean_similarities.min(axis=1) + _TINY
    bandwidth = (_OF_MEANS * span)[:, None]
    weights = np.exp((mean_similarities - highest[:, None]) / bandwidth)
    total = (weights * nearest_of_label).sum(axis=1, keepdims=True)
    share = np.exp((own - highest[:, None]) / bandwidth)
    agreement = _log_odds(share, total, _SHARE_FLOOR * total)
    return np.stack([own - rival, agreement], axis=-1)


def labels_found(
    label_codes: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The labels of a result list, in the order of their nearest items.

    Parameters
    ----------
    label_codes : (n,), -1 where an item has no label: such an item is one of its own.

    Returns
    -------
    places : (g,) of the nearest item of each label, ascending.
    members : (n,) which of them each item belongs to.
    """
    _, places, members = np.unique(_own_labels(label_codes), return_index=True, return_inverse=True)
    order = np.argsort(places)
    return places[order], np.argsort(order)[members]


def _groups(label_codes: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A number (B, n) for each label of each list, from 0; and the nearest items of labels."""
    labels = _own_labels(label_codes)
    labels -= labels.min()
    keys = labels + (labels.max() + 1) * np.arange(len(labels))[:, None]
    _, places, groups = np.unique(keys, return_index=True, return_inverse=True)
    nearest_of_label = np.zeros(labels.size, dtype=bool)
    nearest_of_label[places] = True
    shape = labels.shape
    return groups.reshape(shape).astype(np.int64), nearest_of_label.reshape(shape)


def _own_labels(label_codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Labels (..., n), a different one for each item that has none."""
    unlabelled = -1 - np.arange(label_codes.shape[-1])
    return np.where(label_codes < 0, unlabelled, label_codes.astype(np.int64))


def _log_odds(
    agreeing: NDArray[np.float64],
    of: NDArray[np.float64] | int,
    added: NDArray[np.float64] | float = 0.5,
) -> NDArray[np.float64]:
    """Log-odds of a share, with half a neighbour added to either side (Haldane & Anscombe)."""
    against = np.maximum(of - agreeing, 0)  # sums may differ in their last digit
    log_odds: NDArray[np.float64] = np.log((agreeing + added) / (against + added))
    return log_odds
