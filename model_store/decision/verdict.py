"""The verdict on one query, and the numbers that lead to this verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from model_store.decision.calibration import Calibration
from model_store.decision.found_labels import FoundLabels, MatchProbabilities, Retrieved, Terms
from model_store.decision.logistic import bounded_logit
from model_store.decision.operating import LEAST_THRESHOLD
from model_store.decision.promises import Promises
from model_store.decision.result_sets import ResultSetChoice
from model_store.messages import Level, Message, Verdict, message
from model_store.predictive import Predictive
from model_store.records import RollUp

_LEVELS: tuple[tuple[float, Level], ...] = ((50.0, "low"), (90.0, "medium"))
"""Levels of uncertainty, each with its highest percentile. Of ordinary queries, half have low
uncertainty, and a tenth have high uncertainty."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Assessment:
    """The statistics of a query; all except ``uncertainty`` need a calibration.

    Attributes
    ----------
    uncertainty : standard deviation of the similarity to the gallery's nearest item, see
        `model_store.predictive`. None if the encoder gives no variance, or the gallery is empty.
    percentile : percentage of calibration queries that are less uncertain.
    level : level of the percentile: low, medium or high.
    displacement : predicted displacement of the embedding because the picture is degraded, see
        `DisplacementModel`.
    displacement_percentile : percentage of ordinary pictures with a smaller predicted displacement.
    outlier_p_value : share of ordinary queries with at least this outlier score. For a query
        exchangeable with the calibration queries, the probability of "p ≤ α" is at most α, on
        average over calibrations. This bound ignores the difference between the cross-fits of the
        calibration and the served fit.
    least_alpha : smallest possible p-value; no query can be flagged at a smaller α.
    """

    uncertainty: float | None = None
    percentile: float | None = None
    level: Level | None = None
    displacement: float | None = None
    displacement_percentile: float | None = None
    outlier_p_value: float | None = None
    least_alpha: float | None = None

    def is_outlier(self, alpha: float) -> bool | None:
        """Return whether the query is flagged at a false-alarm rate ``alpha``.

        The result is None without calibration, or if there are too few calibration queries for this
        rate.
        """
        if self.outlier_p_value is None or self.least_alpha is None or alpha < self.least_alpha:
            return None
        return self.outlier_p_value <= alpha


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on one query and its numbers; without calibration, the numbers are None.

    Attributes
    ----------
    verdict : the verdict, one of a fixed set of words.
    assessment : statistics of the query itself.
    reason : why the answer has fewer guarantees than requested; None if nothing is missing.
    guaranteed : whether the guarantees of the calibration hold for this answer.
    ranking : (m,) order of the list, as indexes into `Retrieved.listed`; the first k items are
        returned.
    absent_share : share of absent queries that the probabilities assume.
    match_log_odds : (k,) log-odds of the returned items at that share, before the correction by
        feedback.
    match_probabilities : (k,) P(item is a true match) of the returned items. All items of a label
        have the same probability.
    no_match_probability : P(none of the items that may be found is a true match): 1 − Σ of the
        match probabilities of their labels.
    assumed_no_match : P(no match) for the whole gallery, without correction, at the share of absent
        queries in the fit. The estimate of a stream's share of absent queries uses this value.
    result_set : the fewest items that contain a true match with a stated probability.
    roll_up : for an ambiguous query, the finest parent that meets the error bound of its level;
        None if there is none.
    """

    verdict: Verdict
    assessment: Assessment
    reason: str | None = None
    ranking: Integers | None = None
    absent_share: float | None = None
    match_log_odds: Floats | None = None
    match_probabilities: Floats | None = None
    no_match_probability: float | None = None
    assumed_no_match: float | None = None
    result_set: ResultSetChoice | None = None
    roll_up: RollUp | None = None
    guaranteed: bool = False


def assess(
    calibration: Calibration | None, predictive: Predictive, uncertainty: float | None
) -> Assessment:
    """Compare a query's uncertainty and outlier score with the calibration queries.

    If a value of the query is unknown, the result of its comparison is None.

    Parameters
    ----------
    uncertainty : see `Assessment`.
    """
    if calibration is None or calibration.outdated is not None:
        return Assessment(uncertainty)
    percentile = None if uncertainty is None else calibration.uncertainty_percentile(uncertainty)
    level = None if percentile is None else _level(percentile)
    if math.isnan(predictive.outlier_score):
        return Assessment(uncertainty, percentile, level)
    displacement, of_pictures = None, None
    if calibration.picture is not None and not math.isnan(predictive.displacement):
        displacement = predictive.displacement
        of_pictures = calibration.picture.percentile(displacement)
    p_value = calibration.outlier_p_value(predictive.outlier_score)
    least = 1 / (len(calibration.outlier_scores) + 1)
    return Assessment(uncertainty, percentile, level, displacement, of_pictures, p_value, least)


def decide(
    calibration: Calibration | None, predictive: Predictive, retrieved: Retrieved, terms: Terms
) -> Decision:
    """Decide on one query.

    The first rule that applies gives the verdict. An outlier is ``out_of_distribution``. A first
    item at or above its threshold is a ``match``, unless the calibration is stale. A query that
    probably has no match is ``no_match``. Any other query is ``ambiguous``. A query without an
    outlier score is ``not_calibrated``, because every calibration query had an outlier score. For
    example, an item of the gallery that is used as a query has no outlier score. For a gallery
    without items, see `decide_without_items`.

    A filter does not change match probabilities, which are computed for the whole gallery. If the
    client states that every true match passes the filter (``known``), the probabilities are
    conditioned on this statement.

    If the list is in order of probability, the items of the likeliest label are first, in order of
    similarity. In this case, the guarantees apply to the likeliest label.

    Raises
    ------
    UnknownSource : no calibration query has the source in ``terms``.
    """
    if (
        calibration is None
        or calibration.outdated is not None
        or math.isnan(predictive.outlier_score)
        or len(retrieved.similarities) == 0
    ):
        reason: str | None = _options_without_effect(terms)
        if calibration is None and predictive.kind == "text":
            reason = message("texts_not_calibrated")
        elif calibration is not None:
            reason = calibration.outdated
        return Decision(
            "not_calibrated", assess(calibration, predictive, retrieved.uncertainty), reason
        )
    promises = calibration.promises(terms.expected_absent, terms.source, terms.order, terms.alpha)
    found = FoundLabels.of(calibration, predictive, retrieved)
    allowed = None if retrieved.allowed is None else found.belong & retrieved.allowed
    probabilities = MatchProbabilities.of(calibration, promises, found, allowed, terms)
    labels = found.belong[:, retrieved.listed].argmax(axis=0)
    ranking = np.arange(len(labels))
    if terms.order == "probability":
        ranking = np.argsort(-probabilities.final[labels], kind="stable")
    labels = labels[ranking[: retrieved.limit]]
    assessment = assess(calibration, predictive, retrieved.uncertainty)
    shown = probabilities.final[labels]
    first = (float(shown[0]), int(found.classes[labels[0]])) if len(labels) else (0.0, 0)
    verdict, lacking = _verdict(assessment, terms, promises, *first, probabilities.nothing)
    guaranteed = promises.matches[first[1]].guaranteed
    return Decision(
        verdict,
        assessment,
        lacking,
        ranking,
        promises.expected,
        bounded_logit(probabilities.expected[labels]),
        shown,
        probabilities.nothing,
        float(1 - np.add.reduce(probabilities.fitted)),
        _result_set(calibration, promises, found, probabilities.fitted, allowed, terms),
        _roll_up(calibration, promises, found, probabilities, allowed, retrieved.parents)
        if verdict == "ambiguous" and terms.stale is None
        else None,
        guaranteed=guaranteed and (terms.stale or promises.doubt or terms.drift) is None,
    )


def decide_without_items(
    calibration: Calibration | None, predictive: Predictive, terms: Terms
) -> Decision:
    """Decide on one query of an empty gallery; no query has a match there.

    Only the detection of outliers needs a calibration.

    Raises
    ------
    UnknownSource : see `decide`.
    """
    assessment = assess(calibration, predictive, None)  # the uncertainty needs an item
    share = None
    if calibration is not None:
        share = calibration.promises(terms.expected_absent, terms.source, terms.order).expected
    return Decision(
        "out_of_distribution" if assessment.is_outlier(terms.alpha) else "no_match",
        assessment,
        message("gallery_empty"),
        absent_share=share,
        no_match_probability=1.0,
    )


def _options_without_effect(terms: Terms) -> Message | None:
    """Return a note on options that need a calibration; None if there are no such options."""
    options = {"expected_absent": terms.expected_absent, "source": terms.source}
    names = [f"`{name}`" for name, value in options.items() if value is not None]
    if not names:
        return None
    return message("options_without_effect", options=" and ".join(names))


def _verdict(
    assessment: Assessment,
    terms: Terms,
    promises: Promises,
    probability: float,
    size_class: int,
    nothing: float,
) -> tuple[Verdict, str | None]:
    """Return the verdict for a first item with ``probability``, and the reason for a shortfall."""
    doubt = terms.stale or promises.doubt or terms.drift
    shortfall = promises.matches[size_class].shortfall
    reason = terms.stale or shortfall or doubt
    if assessment.is_outlier(terms.alpha):
        return "out_of_distribution", terms.stale or terms.drift
    if terms.stale is None and probability >= promises.threshold(size_class):
        return "match", doubt or shortfall
    if nothing > LEAST_THRESHOLD:
        return "no_match", doubt
    return "ambiguous", reason if probability >= LEAST_THRESHOLD else doubt


def _roll_up(
    calibration: Calibration,
    promises: Promises,
    found: FoundLabels,
    probabilities: MatchProbabilities,
    allowed: NDArray[np.bool_] | None,
    parents: NDArray[np.int32] | None,
) -> RollUp | None:
    """Return the finest parent that meets the error bound of its level.

    Parameters
    ----------
    allowed : (g, n) mask of each label's items that pass the filter; None without a filter.
    parents : (n, L) parents of the items' labels; None if labels have no parents.
    """
    hierarchy = calibration.hierarchy
    if hierarchy is None or parents is None:
        return None
    of_labels = parents[found.places[: found.n_in_list]]
    places, of_parents = probabilities.of_parents(calibration, of_labels, allowed)
    size_class = int(found.classes[probabilities.expected[: found.n_in_list].argmax()])
    for level, (place, probability) in enumerate(zip(places, of_parents, strict=True)):
        if place >= 0 and probability >= promises.level_threshold(level, size_class):
            label = hierarchy.parents[level][place]
            return RollUp(
                level=hierarchy.levels[level], label=label, probability=float(probability)
            )
    return None


def _result_set(
    calibration: Calibration,
    promises: Promises,
    found: FoundLabels,
    fitted: Floats,
    allowed: NDArray[np.bool_] | None,
    terms: Terms,
) -> ResultSetChoice:
    """Choose the result set; ``fitted`` are probabilities for the fit's share of absent queries.

    The coverage counts only matched queries. So these probabilities depend neither on the expected
    share of absent queries, nor on a filter.

    Parameters
    ----------
    allowed : (g, n) mask of each label's items that pass the filter; None without a filter.
    """
    coverage = calibration.coverage if terms.coverage is None else terms.coverage
    labels = np.arange(found.n_in_list)
    places, missing = found.places, terms.stale or terms.drift
    if allowed is not None:
        labels = np.flatnonzero(allowed.any(axis=1))
        places = allowed.argmax(axis=1)
        missing = missing or message("coverage_not_under_filter")
    if len(labels) == 0:
        return ResultSetChoice(places[labels], coverage, (), missing)
    chosen = promises.sets.choose(places[labels], fitted[labels], found.classes[labels], coverage)
    if missing is None:
        return chosen
    return replace(chosen, promised_for=(), shortfall=missing)


def _level(percentile: float) -> Level:
    return next((level for limit, level in _LEVELS if percentile <= limit), "high")
