"""The evidence that a result list holds for each of its labels being the true match."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

SIGNALS = (
    "log_distance",
    "outlier_score",
    "log_distance_ratio",
    "mean_margin",
    "mean_agreement",
    "log_distance_50",
)
"""The last axis of `signals`, in the order in which fits to fewer of them take them."""

_FLOOR = 1e-4
"""Added to cosine distances before their logarithm: the distance of an image to its exact copy
would drown every other."""

_OF_MEANS = 0.2
"""Bandwidth of the agreement of label means, in spans of the means that were found."""

_SHARE_FLOOR = 1e-3
"""The share of the whole weight that is added to either side of a share: no label is ruled out."""

_TINY = 1e-12
"""Keeps the span of equal means above zero."""


def labels_found(
    label_codes: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The labels of a result list, in the order of their nearest items.

    Parameters
    ----------
    label_codes : (n,), -1 where an item has no label: such an item is a separate label.

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
    mean_similarities: NDArray[np.float64],
    outlier_score: float,
    n_listed: int | None = None,
) -> NDArray[np.float64]:
    """Return signals of the labels in the result list of one query, each by its nearest item.

    All but the margin are logarithms or log-odds: a logistic regression adds evidence.

    Parameters
    ----------
    similarities : (n,), at most 1; descending within the list.
    places : (g,), see `labels_found`.
    mean_similarities : (g,), see `LabelMeans.similarities`.
    outlier_score : of the query.
    n_listed : how many items are the list; those after it are compared with the list and change
        nothing in it. None for all.

    Returns
    -------
    (g, len(SIGNALS)), with the cosine distance d = 1 − similarity:

    - ``log_distance`` of the item to the query;
    - ``outlier_score`` of the query;
    - ``log_distance_ratio``: log of the distance to the nearest item of another label, or to the
      last candidate where all agree, over the item's own: negative below an item of another label;
    - ``mean_margin``: by how much the mean of the label is more similar than that of the most
      similar other label in the list, or than the last candidate where all agree;
    - ``mean_agreement``: log-odds of the label among those in the list, weighted by
      exp((c − c₁) / h) of their means' similarities c, with h 0.2 of the span of these;
    - ``log_distance_50`` of the 50th neighbour, the density of the gallery here.
    """
    n_listed = len(similarities) if n_listed is None else n_listed
    last = float(similarities[n_listed - 1])
    n_labels = len(places)
    n_in_list = n_labels if n_listed == len(similarities) else int(places.searchsorted(n_listed))
    values = np.empty((n_labels, len(SIGNALS)))
    own = np.log(1 + _FLOOR - similarities[places], out=values[:, 0])
    values[:, 1] = outlier_score
    np.subtract(own[0], own, out=values[:, 2])
    values[0, 2] = (own[1] if n_in_list > 1 else math.log(1 + _FLOOR - last)) - own[0]
    listed = mean_similarities[:n_in_list].tolist()
    *_, second, highest = [last, *listed] if n_in_list == 1 else sorted(listed)
    margins = np.subtract(mean_similarities, highest, out=values[:, 3])
    votes = np.exp(np.minimum(margins, 0) / (_OF_MEANS * (highest - min(listed) + _TINY)))
    margins[listed.index(highest)] = highest - second
    total = float(np.add.reduce(votes[:n_in_list]))
    added = _SHARE_FLOOR * total
    np.log((votes + added) / (total - votes + added), out=values[:, 4])
    values[:, 5] = math.log(1 + _FLOOR - similarities[min(50, n_listed) - 1])
    return values
