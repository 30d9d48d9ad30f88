"""Naming those in the gallery, and refusing strangers, with one threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def detection_and_identification_rate(
    confidences: Floats, correct: Bools, of_strangers: Floats, false_alarm_rate: float
) -> float | None:
    """Share of known queries that are accepted and whose first result is true.

    Detection and identification rate at a false alarm rate (Phillips et al. 2011).
    Accepted is what is surer than a threshold, the lowest at which at most ``false_alarm_rate`` of
    the strangers are accepted. A stranger as sure as the threshold is refused, so the rate is kept
    even where many are equally sure.

    Parameters
    ----------
    confidences : (B,) in the first result of queries whose match is in the gallery.
    correct : (B,) whether it is true.
    of_strangers : (M,) confidences of queries without a match.
    false_alarm_rate : in [0, 1].

    Returns
    -------
    In [0, recall at 1]; None where there are no queries or no strangers.
    """
    if np.isnan(confidences).any() or np.isnan(of_strangers).any():
        raise ValueError("confidences must not be NaN")
    if not len(confidences) or not len(of_strangers):
        return None
    allowed = int(np.floor(false_alarm_rate * len(of_strangers) + 1e-9))
    ranked = np.sort(of_strangers)[::-1]
    threshold = -np.inf if allowed == len(ranked) else ranked[allowed]
    return float((correct & (confidences > threshold)).mean())


def open_set_classification_rate(
    confidences: Floats, correct: Bools, of_strangers: Floats
) -> float | None:
    """Area under the curve of correct answers against accepted strangers, over all thresholds.

    OSCR (Dhamija et al. 2018): the probability that a query whose match is in the gallery is
    answered correctly and with more confidence than a stranger; equal confidences count half.

    Parameters
    ----------
    confidences, correct, of_strangers : as in `detection_and_identification_rate`.

    Returns
    -------
    In [0, recall at 1]; None where there are no queries or no strangers.
    """
    if np.isnan(confidences).any() or np.isnan(of_strangers).any():
        raise ValueError("confidences must not be NaN")
    if not len(confidences) or not len(of_strangers):
        return None
    ranked = np.sort(of_strangers)
    below = np.searchsorted(ranked, confidences, side="left")
    not_above = np.searchsorted(ranked, confidences, side="right")
    return float((correct * (below + not_above)).mean() / (2 * len(ranked)))
