"""What a result list knows of each label in it being the true match."""

from __future__ import annotations

import math

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

_NEAREST = (10, 50)
"""Neighbours whose labels are counted."""

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

_N_VOTES = 5
"""Ways to vote: of `_NEAREST`, and at `_BANDWIDTH`, `_NARROW` and `_WIDE`."""

_COUNTED = np.array([[True], [True], [True], [False], [False], [False]])
"""Of these, and of the label means: what half a vote is added to. The first bandwidth is so small
that its votes count too."""

_TINY = 1e-12
"""Keeps the logarithm of a variance that is exactly zero finite, and the span of equal items."""


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
    label_of: dict[int, int] = {}
    places: list[int] = []
    members: list[int] = []
    # A list this short is passed through faster than it is sorted.
    for place, code in enumerate(label_codes.tolist()):
        own = code if code >= 0 else -1 - place
        label = label_of.get(own)
        if label is None:
            label = label_of[own] = len(places)
            places.append(place)
        members.append(label)
    return np.array(places), np.array(members)


def signals(
    similarities: NDArray[np.float64],
    places: NDArray[np.int64],
    members: NDArray[np.int64],
    mean_similarities: NDArray[np.float64],
    spherical_variance: float,
    outlier_score: float,
) -> NDArray[np.float64]:
    """Signals of the labels in the result list of one query, each by its nearest item.

    All are logarithms or log-odds: a logistic regression weighs evidence by adding it.

    Parameters
    ----------
    similarities : (n,), descending.
    places, members : (g,) and (n,), see `labels_found`.
    mean_similarities : (g,), see `LabelMeans.similarities`.
    spherical_variance, outlier_score : of the query.

    Returns
    -------
    (g, len(SIGNALS)), with the cosine distance d = 1 − similarity:

    - ``log_distance`` of the item to the query;
    - ``log_distance_ratio``: log of the distance to the nearest item of another label, or to the
      last candidate where all agree, over the item's own: negative below an item of another label;
    - ``agreement_10``, ``agreement_50``: log-odds of the label among the nearest 10 and 50;
    - ``weighted_agreement``: the same over all candidates, weighted by exp((s − s₁) / 0.02);
    - ``narrow_agreement``, ``wide_agreement``: the same, weighted by exp((s − s₁) / h), with h 0.1
      and 0.4 of the list's span s₁ − s_n;
    - ``mean_margin``: by how much the mean of the label is more similar than that of the most
      similar other label in the list, or than the last candidate where all agree;
    - ``mean_agreement``: log-odds of the label among those in the list, weighted by
      exp((c − c₁) / h) of their means' similarities c, with h 0.2 of the span of these;
    - ``log_distance_50`` of the 50th neighbour, the density of the gallery here;
    - ``log_uncertainty``: of the query, log of its spherical variance;
    - ``outlier_score``: of the query.
    """
    n_candidates, n_labels = len(similarities), len(places)
    log_distances = np.log(np.maximum(1 - similarities, 0) + _FLOOR)
    own = log_distances[places]
    values = np.empty((n_labels, len(SIGNALS)))
    values[:, 0] = own
    np.subtract(log_distances[0], own, out=values[:, 1])
    values[0, 1] = log_distances[places[1] if n_labels > 1 else -1] - own[0]
    agreeing = np.empty((_N_VOTES + 1, n_labels))
    _count_votes(similarities, members, out=agreeing[:_N_VOTES])
    values[:, 7] = _compare_means(mean_similarities, float(similarities[-1]), out=agreeing[-1])
    log_odds = _log_odds(agreeing).T
    values[:, 2:7], values[:, 8] = log_odds[:, :_N_VOTES], log_odds[:, _N_VOTES]
    values[:, 9] = log_distances[min(50, n_candidates) - 1]
    values[:, 10] = math.log(spherical_variance + _TINY)
    values[:, 11] = outlier_score
    return values


def _count_votes(
    similarities: NDArray[np.float64], members: NDArray[np.int64], out: NDArray[np.float64]
) -> None:
    """Votes (5, g) for each label: of the nearest 10 and 50, and at three bandwidths."""
    behind = similarities - similarities[0]
    span = float(_TINY - behind[-1])
    votes = np.zeros((_N_VOTES, len(similarities)))
    for weights, k in zip(votes, _NEAREST, strict=False):
        weights[:k] = 1
    rates = np.array([1 / _BANDWIDTH, 1 / (_NARROW * span), 1 / (_WIDE * span)])
    weighted = np.multiply.outer(rates, behind, out=votes[len(_NEAREST) :])
    np.exp(weighted, out=weighted)
    cells = members + out.shape[1] * np.arange(_N_VOTES)[:, None]
    out[:] = np.bincount(cells.ravel(), votes.ravel(), out.size).reshape(out.shape)


def _compare_means(
    similarities: NDArray[np.float64], last: float, out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``mean_margin`` (g,), and into ``out`` votes (g,), by the ``similarities`` of label means.

    ``last`` is the similarity of the last candidate, to compare with where there is one label.
    """
    ascending = sorted(similarities.tolist())
    highest = ascending[-1]
    second = ascending[-2] if len(ascending) > 1 else last
    np.exp((similarities - highest) / (_OF_MEANS * (highest - ascending[0] + _TINY)), out=out)
    return similarities - np.where(similarities < highest, highest, second)


def _log_odds(agreeing: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-odds (v, g) of each label's share of the votes, with something added to either side.

    A half to what is counted (Haldane & Anscombe), `_SHARE_FLOOR` of the whole to what is weighed.
    """
    total = agreeing.sum(axis=1, keepdims=True)
    added = np.where(_COUNTED, 0.5, _SHARE_FLOOR * total)
    against = np.maximum(total - agreeing, 0)  # sums may differ in their last digit
    against += added
    log_odds: NDArray[np.float64] = np.log((agreeing + added) / against)
    return log_odds
