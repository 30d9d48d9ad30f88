"""The verdict on one query, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model_store.decision.calibration import Calibration
from model_store.decision.signals import signals
from model_store.predictive import Predictive
from model_store.search import Neighbours

Verdict = Literal["match", "ambiguous", "no_match", "out_of_distribution", "not_calibrated"]
Level = Literal["low", "medium", "high"]

_LEVELS: tuple[tuple[float, Level], ...] = ((50.0, "low"), (90.0, "medium"))
"""Up to which percentile of the calibration queries an uncertainty is called what: half of the
ordinary queries are low, the last tenth is high."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What may be said of a query before any neighbour is looked at; None without calibration.

    Attributes
    ----------
    percentile : share of calibration queries that are less uncertain, in percent.
    level : that percentile in a word.
    outlier_p_value : share of ordinary queries at least as alien; "p ≤ α" raises a false alarm
        with probability at most α on a query exchangeable with the calibration queries.
    """

    percentile: float | None = None
    level: Level | None = None
    outlier_p_value: float | None = None

    def is_alien(self, alpha: float) -> bool | None:
        """Whether the query is flagged at a rate ``alpha`` of false alarms."""
        return None if self.outlier_p_value is None else self.outlier_p_value <= alpha


@dataclass(frozen=True, slots=True)
class Decision:
    """What may be said of one query. Without calibration every number is None.

    Attributes
    ----------
    verdict : what a front end switches on.
    assessment : of the query alone.
    match_probabilities : P(item is a true match) of the first items; among items of one label a
        closer one never has the lower.
    no_match_probability : P(no item of the gallery is a true match).
    """

    verdict: Verdict
    assessment: Assessment
    match_probabilities: NDArray[np.float64] | None = None
    no_match_probability: float | None = None


def assess(calibration: Calibration | None, predictive: Predictive) -> Assessment:
    """Place a query among the calibration queries: how uncertain, and how alien."""
    if calibration is None:
        return Assessment()
    percentile = calibration.uncertainty_percentile(predictive.spherical_variance)
    p_value = calibration.outlier_p_value(predictive.outlier_distance)
    return Assessment(percentile, _level(percentile), p_value)


def decide(
    calibration: Calibration | None,
    predictive: Predictive,
    neighbours: Neighbours,
    label_codes: NDArray[np.int32],
    limit: int,
    alpha: float,
) -> Decision:
    """Decide on one query.

    In this order: an alien query is ``out_of_distribution``; a first item above the operating
    threshold is a ``match``; a query more likely than not to have no match is ``no_match``; the
    rest is ``ambiguous``.

    Parameters
    ----------
    label_codes : (n,) of the neighbours.
    limit : how many items get a probability.
    alpha : rate of false alarms to accept.
    """
    if calibration is None:
        return Decision("not_calibrated", assess(None, predictive))
    ranks = np.arange(min(limit, len(neighbours.rows)))
    values = signals(
        neighbours.similarities[None],
        label_codes[None],
        np.array([predictive.spherical_variance]),
        np.array([predictive.outlier_distance]),
        ranks,
    )[0]
    probabilities = _falling_within_labels(calibration.match(values), label_codes[ranks])
    no_match_probability = float(calibration.no_match(values[0]))
    assessment = assess(calibration, predictive)
    verdict: Verdict = "ambiguous"
    if assessment.is_alien(alpha):
        verdict = "out_of_distribution"
    elif probabilities[0] >= calibration.match_threshold:
        verdict = "match"
    elif no_match_probability > 0.5:
        verdict = "no_match"
    return Decision(verdict, assessment, probabilities, no_match_probability)


def _falling_within_labels(
    probabilities: NDArray[np.float64], label_codes: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Give no item a higher probability than a closer one of its own label.

    Between labels the order is left as it is: an item of the label that most neighbours share is
    the likelier match than a closer item of a rare one, and forcing the whole list to fall would
    cost the lower ranks their calibration.
    """
    falling = probabilities.copy()
    for code in np.unique(label_codes):
        of_label = label_codes == code
        falling[of_label] = np.minimum.accumulate(probabilities[of_label])
    return falling


def _level(percentile: float) -> Level:
    return next((level for limit, level in _LEVELS if percentile <= limit), "high")
