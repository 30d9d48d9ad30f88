"""Signals of each label in a result list: the evidence that the label is the true match."""

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
"""Names of the signals, in the order of the last axis of `signals`. A fit to k signals uses the
first k signals."""

_FLOOR = 1e-4
"""Constant added to cosine distances, because the logarithm would be extreme for an exact copy."""

_OF_MEANS = 0.2
"""The bandwidth h of `mean_agreement` is this fraction of the range of c, see `signals`."""

_SHARE_FLOOR = 1e-3
"""This part of the total weight is added to both sides of the odds, so that the odds are never
0."""

_TINY = 1e-12
"""Constant that keeps the range of similarities above zero if all means are equally similar."""


def labels_found(
    label_codes: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the labels of a result list, in the order of their nearest items.

    Parameters
    ----------
    label_codes : (n,) label codes; −1 for an item without a label, which counts as a separate
        label.

    Returns
    -------
    places : (g,) ascending index of the nearest item of each label.
    belong : (g, n) whether each item has each label.
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
    """Return the signals of each label that occurs in one query's result list.

    The signals of a label are computed from the label's nearest item.

    All signals except the margin are logarithms or log-odds, so that a logistic regression adds up
    evidence.

    Parameters
    ----------
    similarities : (n,) similarities, at most 1; descending within the list.
    places : (g,), see `labels_found`.
    mean_similarities : (g,), see `LabelMeans.similarities`.
    outlier_score : outlier score of the query.
    n_listed : number of leading items that form the list; None for all. If all items of a label are
        after the list, the label's signals compare these items with the list. The items after the
        list do not change the signals of the labels in the list.

    Returns
    -------
    (g, len(SIGNALS)), with the cosine distance d = 1 − similarity:

    - ``log_distance``: log d between the item and the query;
    - ``outlier_score``: outlier score of the query;
    - ``log_distance_ratio``: log (d' / d), with d' the cosine distance of the nearest item of
      another label. If the list has only one label, d' is the distance of the last item in the
      list. The signal is negative if d' is smaller than d;
    - ``mean_margin``: similarity of the label's mean minus the highest similarity of another
      label's mean in the list. If the list has only one label, the similarity of the last item is
      subtracted;
    - ``mean_agreement``: log-odds of the label's share of the total weight of the labels in the
      list. The weight is exp((c − c₁) / h), with c the similarity of the label's mean, c₁ the
      largest c, and h 0.2 times the range of c;
    - ``log_distance_50``: log d of the 50th neighbour, which measures the local density of the
      gallery.
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
