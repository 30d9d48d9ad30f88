"""The verdict on one query, and the numbers behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from model_store.decision.calibration import Calibration
from model_store.decision.logistic import bounded, choice_probabilities
from model_store.decision.result_sets import ResultSet
from model_store.decision.signals import labels_found, signals
from model_store.predictive import Predictive
from model_store.search import Neighbours
from model_store.verdicts import Level, Verdict

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
        with probability at most α on a query exchangeable with the calibration queries (up to the
        difference between the cross-fits that these were measured with and the served fit).
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
    match_log_odds : uncorrected by feedback, of the first items.
    match_probabilities : P(item is a true match) of the first items; items of one label share
        theirs, so that a closer one never has the lower.
    match_intervals : (limit, 2) what these probabilities lie between.
    no_match_probability : P(no item of the gallery is a true match).
    result_set : as few items as hold a true match with a stated probability.
    """

    verdict: Verdict
    assessment: Assessment
    match_log_odds: NDArray[np.float64] | None = None
    match_probabilities: NDArray[np.float64] | None = None
    match_intervals: NDArray[np.float64] | None = None
    no_match_probability: float | None = None
    result_set: ResultSet | None = None


def assess(calibration: Calibration | None, predictive: Predictive) -> Assessment:
    """Place a query among the calibration queries: how uncertain, and how alien.

    The second is unknown where the outlier score is.
    """
    if calibration is None:
        return Assessment()
    percentile = calibration.uncertainty_percentile(predictive.spherical_variance)
    if math.isnan(predictive.outlier_score):
        return Assessment(percentile, _level(percentile))
    p_value = calibration.outlier_p_value(predictive.outlier_score)
    return Assessment(percentile, _level(percentile), p_value)


def decide(
    calibration: Calibration | None,
    predictive: Predictive,
    neighbours: Neighbours,
    label_codes: NDArray[np.int32],
    limit: int,
    alpha: float,
    coverage: float | None,
    *,
    whole_gallery: bool = True,
) -> Decision:
    """Decide on one query.

    In this order: an alien query is ``out_of_distribution``; a first item above the operating
    threshold is a ``match``; a query more likely than not to have no match is ``no_match``; the
    rest is ``ambiguous``. A query whose outlier score is unknown, such as an item of the
    gallery, is not of the kind that the calibration was fitted on: it is ``not_calibrated``. So is
    a search of a part of the gallery only: whether a match is there, and how near the others
    lie, is another matter in each part. What holds of the query alone is said all the same.

    Parameters
    ----------
    label_codes : (n,) of the neighbours.
    limit : how many items get a probability.
    alpha : rate of false alarms to accept.
    coverage : of the result set; None for what the gallery was calibrated with.
    whole_gallery : whether every item could have been found.
    """
    if calibration is not None and not whole_gallery:
        assessment = assess(calibration, predictive)
        alien = assessment.is_alien(alpha)
        return Decision("out_of_distribution" if alien else "not_calibrated", assessment)
    if calibration is None or math.isnan(predictive.outlier_score):
        return Decision("not_calibrated", assess(calibration, predictive))
    places, belong = labels_found(label_codes)
    values = signals(
        neighbours.similarities,
        places,
        belong,
        calibration.means.similarities(
            predictive.direction, label_codes[places], neighbours.similarities[places]
        ),
        predictive.spherical_variance,
        predictive.outlier_score,
    )
    of_labels = choice_probabilities(calibration.match.log_odds(values))
    uncorrected = bounded(of_labels[belong[:, :limit].argmax(axis=0)])
    log_odds = logit(uncorrected)
    probabilities = calibration.feedback.of(uncorrected)
    intervals = calibration.feedback.of(calibration.intervals(log_odds))
    no_match_probability = float(calibration.no_match(values[0]))
    assessment = assess(calibration, predictive)
    verdict: Verdict = "ambiguous"
    if assessment.is_alien(alpha):
        verdict = "out_of_distribution"
    elif probabilities[0] >= calibration.match_threshold:
        verdict = "match"
    elif no_match_probability > 0.5:
        verdict = "no_match"
    return Decision(
        verdict,
        assessment,
        log_odds,
        probabilities,
        _around(probabilities, intervals),
        no_match_probability,
        calibration.sets.choose(
            places,
            of_labels,
            calibration.coverage if coverage is None else coverage,
        ),
    )


def _around(
    probabilities: NDArray[np.float64], intervals: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Widen intervals (n, 2), in place, to hold the probability (n,) that each is shown with."""
    lower, upper = intervals.T
    np.minimum(lower, probabilities, out=lower)
    np.maximum(upper, probabilities, out=upper)
    return intervals


def _level(percentile: float) -> Level:
    return next((level for limit, level in _LEVELS if percentile <= limit), "high")
