"""The evidence that a result list holds for each of its labels being the true match."""

from __future__ import annotations

import math
from functools import cache

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
"""The share of the whole weight that is added to either side of a share: no label is ruled out."""

_N_VOTES = 5
"""Ways to vote: of `_NEAREST`, and at `_BANDWIDTH`, `_NARROW` and `_WIDE`."""

_HALF_VOTE = np.array([[0.5], [0.5], [0.5], [0.0], [0.0], [0.0]])
_SHARE = np.array([[0.0], [0.0], [0.0], [_SHARE_FLOOR], [_SHARE_FLOOR], [_SHARE_FLOOR]])
"""Added to either side of these votes, and of those of the label means: half a vote where votes are
counted (`_HALF_VOTE`), a share of the whole weight where they are weighed. The first bandwidth is
so small that its votes count too."""

_TINY = 1e-12
"""Keeps the logarithm of a variance that is exactly zero finite, and the span of equal items."""


def labels_found(
    label_codes: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The labels of a result list, in the order of their nearest items.

    Parameters
    ----------
    label_codes : (n,), -1 where an item has no label: such an item is one of its own.

    Returns
    -------
    places : (g,) of the nearest item of each label, ascending.
    belong : (g, n) whether each item is of that label.
    """
    codes = list(dict.fromkeys(label_codes.tolist()))
    if -1 in codes:
        own = np.arange(-1, -1 - len(label_codes), -1)
        label_codes = np.where(label_codes < 0, own, label_codes)
        codes = list(dict.fromkeys(label_codes.tolist()))
    belong = np.array(codes)[:, None] == label_codes
    return belong.argmax(axis=1), belong


def signals(
    similarities: NDArray[np.float64],
    places: NDArray[np.int64],
    belong: NDArray[np.bool_],
    mean_similarities: NDArray[np.float64],
    spherical_variance: float,
    outlier_score: float,
    n_listed: int | None = None,
) -> NDArray[np.float64]:
    """Return signals of the labels in the result list of one query, each by its nearest item.

    All are logarithms or log-odds: a logistic regression weighs evidence by adding it.

    Parameters
    ----------
    similarities : (n,), at most 1; descending within the list.
    places, belong : (g,) and (g, n), see `labels_found`.
    mean_similarities : (g,), see `LabelMeans.similarities`.
    spherical_variance, outlier_score : of the query.
    n_listed : how many items are the list; those after it are compared with the list and change
        nothing in it. None for all.

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
    n_listed = len(similarities) if n_listed is None else n_listed
    listed = similarities[:n_listed]
    n_labels = len(places)
    n_in_list = n_labels if n_listed == len(similarities) else int(places.searchsorted(n_listed))
    values = np.empty((n_labels, len(SIGNALS)))
    own = np.log(1 + _FLOOR - similarities[places], out=values[:, 0])
    np.subtract(own[0], own, out=values[:, 1])
    other = own[1] if n_in_list > 1 else _log_distance(listed[-1])
    values[0, 1] = other - own[0]
    agreeing = np.empty((_N_VOTES + 1, n_labels))
    votes = belong[:, :n_listed].astype(float)
    np.vecdot(_weights(listed)[:, None], votes, out=agreeing[:_N_VOTES])
    values[:, 7] = _compare_means(mean_similarities, n_in_list, float(listed[-1]), agreeing[-1])
    log_odds = _log_odds(agreeing, n_in_list).T
    values[:, 2:7], values[:, 8] = log_odds[:, :_N_VOTES], log_odds[:, _N_VOTES]
    values[:, 9] = _log_distance(listed[min(50, n_listed) - 1])
    values[:, 10] = math.log(spherical_variance + _TINY)
    values[:, 11] = outlier_score
    return values


def _log_distance(similarity: float) -> float:
    return math.log(1 + _FLOOR - similarity)


def _weights(similarities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of each item's vote (5, n): nearest 10 and 50, three bandwidths."""
    behind = similarities - similarities[0]
    span = float(_TINY - behind[-1])
    rates = np.array([1 / _BANDWIDTH, 1 / (_NARROW * span), 1 / (_WIDE * span)])
    weights = _counts(len(similarities)).copy()
    weighed = weights[len(_NEAREST) :]
    np.exp(np.multiply.outer(rates, behind, out=weighed), out=weighed)
    return weights


@cache
def _counts(n: int) -> NDArray[np.float64]:
    """Return (5, n): ones for the 10 and the 50 nearest items, then three rows to be filled."""
    counts = np.zeros((_N_VOTES, n))
    for row, k in zip(counts, _NEAREST, strict=False):
        row[:k] = 1
    counts.setflags(write=False)
    return counts


def _compare_means(
    similarities: NDArray[np.float64], n_in_list: int, last: float, out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``mean_margin`` (g,), and write votes (g,) by ``similarities`` of means to ``out``.

    The first ``n_in_list`` labels vote; ``last`` is the similarity of the last candidate, to
    compare with where there is one label.
    """
    ascending = sorted(similarities[:n_in_list].tolist())
    highest = ascending[-1]
    second = ascending[-2] if n_in_list > 1 else last
    margins: NDArray[np.float64] = similarities - highest
    span = highest - ascending[0] + _TINY
    np.exp(np.minimum(margins, 0) / (_OF_MEANS * span), out=out)
    margins[similarities[:n_in_list].argmax()] = highest - second
    return margins


def _log_odds(agreeing: NDArray[np.float64], n_in_list: int) -> NDArray[np.float64]:
    """Return log-odds (v, g) of each label's share of the votes of the first ``n_in_list`` labels.

    A half is added to either side of what is counted (Haldane & Anscombe), `_SHARE_FLOOR` of the
    whole to what is weighed.
    """
    total = np.add.reduce(agreeing[:, :n_in_list], axis=1, keepdims=True)  # .sum() takes longer
    added = _HALF_VOTE + _SHARE * total
    against = total - agreeing + added
    log_odds: NDArray[np.float64] = np.log((agreeing + added) / against)
    return log_odds
