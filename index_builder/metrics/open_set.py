"""Open-set metrics: one threshold accepts queries with a match and rejects absent queries.

An absent query is a query without a match in the gallery.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def detection_and_identification_rate(
    confidences: Floats, correct: Bools, absent_confidences: Floats, false_alarm_rate: float
) -> float | None:
    """Return the share of queries with a match that are accepted and have a correct first result.

    This is the detection and identification rate at a false alarm rate (Phillips et al. 2011). A
    query is accepted if its confidence is above a threshold. The share of accepted absent queries
    must be at most ``false_alarm_rate``; the threshold is the lowest value for which this is true.
    A confidence equal to the threshold is rejected. So the limit also holds if several confidences
    are equal.

    Parameters
    ----------
    confidences : (B,) for each query with a match, the confidence in its first result.
    correct : (B,) whether the first result is correct.
    absent_confidences : (M,) confidences of queries without a match.
    false_alarm_rate : in [0, 1].

    Returns
    -------
    A value in [0, recall at 1]; None if there are no queries with a match or no absent queries.
    """
    if np.isnan(confidences).any() or np.isnan(absent_confidences).any():
        raise ValueError("confidences must not be NaN")
    if not len(confidences) or not len(absent_confidences):
        return None
    allowed = int(np.floor(false_alarm_rate * len(absent_confidences) + 1e-9))
    ranked = np.sort(absent_confidences)[::-1]
    threshold = -np.inf if allowed == len(ranked) else ranked[allowed]
    return float((correct & (confidences > threshold)).mean())


def open_set_classification_rate(
    confidences: Floats, correct: Bools, absent_confidences: Floats
) -> float | None:
    """Return the area under the curve of the correct-answer rate over the false-acceptance rate.

    This is OSCR (Dhamija et al. 2018). Take one query with a match and one query without a match,
    at random. OSCR is the probability that the query with a match is answered correctly and has the
    higher confidence of the two. Equal confidences count as ½.

    Parameters
    ----------
    confidences, correct, absent_confidences : as in `detection_and_identification_rate`.

    Returns
    -------
    A value in [0, recall at 1]; None if there are no queries with a match or no absent queries.
    """
    if np.isnan(confidences).any() or np.isnan(absent_confidences).any():
        raise ValueError("confidences must not be NaN")
    if not len(confidences) or not len(absent_confidences):
        return None
    ranked = np.sort(absent_confidences)
    below = np.searchsorted(ranked, confidences, side="left")
    not_above = np.searchsorted(ranked, confidences, side="right")
    return float((correct * (below + not_above)).mean() / (2 * len(ranked)))
