"""Naming queries with a match, and refusing those without, by one threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def detection_and_identification_rate(
    confidences: Floats, correct: Bools, absent_confidences: Floats, false_alarm_rate: float
) -> float | None:
    """Share of known queries that are accepted and whose first result is true.

    Detection and identification rate at a false alarm rate (Phillips et al. 2011).
    Accepted is what is surer than a threshold, the lowest at which at most ``false_alarm_rate`` of
    those without a match are accepted. One as sure as the threshold is refused, so the rate is kept
    even where many are equally sure.

    Parameters
    ----------
    confidences : (B,) in the first result of queries whose match is in the gallery.
    correct : (B,) whether it is true.
    absent_confidences : (M,) confidences of queries without a match.
    false_alarm_rate : in [0, 1].

    Returns
    -------
    In [0, recall at 1]; None where there are no queries or none without a match.
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
    """Area under the curve of correct answers against false acceptances.

    OSCR (Dhamija et al. 2018): the probability that a query whose match is in the gallery is
    answered correctly and with more confidence than one without a match; equal ones count half.

    Parameters
    ----------
    confidences, correct, absent_confidences : as in `detection_and_identification_rate`.

    Returns
    -------
    In [0, recall at 1]; None where there are no queries or none without a match.
    """
    if np.isnan(confidences).any() or np.isnan(absent_confidences).any():
        raise ValueError("confidences must not be NaN")
    if not len(confidences) or not len(absent_confidences):
        return None
    ranked = np.sort(absent_confidences)
    below = np.searchsorted(ranked, confidences, side="left")
    not_above = np.searchsorted(ranked, confidences, side="right")
    return float((correct * (below + not_above)).mean() / (2 * len(ranked)))
