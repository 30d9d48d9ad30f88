"""The labels found for one query, their match probabilities, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from model_store.decision.calibration import UNKNOWN_CLASS, Calibration
from model_store.decision.evidence import likeliest_parents
from model_store.decision.operating import LEAST_THRESHOLD
from model_store.decision.probabilities import (
    bounded_logit,
    choice_probabilities,
    labels_found,
    signals,
)
from model_store.decision.promises import Promises, ResultSetChoice
from model_store.messages import FilterMeans, Level, Message, Order, Verdict, message
from model_store.predictive import Predictive
from model_store.records import RollUp
from model_store.truth import apart_from_places, decreased

_LEVELS: tuple[tuple[float, Level], ...] = ((50.0, "low"), (90.0, "medium"))
"""Levels of uncertainty, each with its highest percentile. Of ordinary queries, half have low
uncertainty, and a tenth have high uncertainty."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The items that a search found for one query.

    Attributes
    ----------
    similarities : (n,) similarities of the found items. The first ``n_listed`` values belong to the
        nearest items in the whole gallery, in descending order. The other values belong to items
        that are not in the result list. The search may also return these items, for example under a
        filter.
    label_codes : (n,) label codes of the found items; −1 for an item without a label. If matches
        are defined by distance, see `model_store.truth.place_codes`.
    n_listed : number of leading items in the result list. The signals are computed from this list.
    listed : (m,) indexes of the items that may be returned, nearest first.
    allowed : (n,) whether each item passes the filter; None without a filter.
    limit : maximum number of returned items; None for all of ``listed``.
    parents : (n, L) parents of the labels, see `Hierarchy.of_labels`; None if labels have no
        parents.
    uncertainty : see `Assessment`; None if not known.
    positions : (n, 3) positions of the items in metres, NaN if not known; None if matches are not
        defined by distance.
    """

    similarities: Floats
    label_codes: NDArray[np.int32]
    n_listed: int
    listed: Integers
    allowed: NDArray[np.bool_] | None = None
    limit: int | None = None
    parents: NDArray[np.int32] | None = None
    uncertainty: float | None = None
    positions: Floats | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """The options of a decision.

    Attributes
    ----------
    alpha : false-alarm rate of the outlier flag.
    coverage : coverage of the result set; None for the calibration's default.
    expected_absent : share of absent queries; None for the default.
    source : source of the query; None if not known.
    filter_means : meaning of a filter: ``show`` restricts the returned items; ``known`` also states
        that every true match passes the filter.
    stale : reason why the calibration is not valid; None if it is valid. If there is a reason, no
        query gets the verdict `match`.
    drift : reason why the guarantees do not hold; None if they hold. This reason does not change
        the verdict.
    order : order of the result list.
    """

    alpha: float
    coverage: float | None = None
    expected_absent: float | None = None
    source: str | None = None
    filter_means: FilterMeans = "show"
    stale: str | None = None
    order: Order = "similarity"
    drift: str | None = None


@dataclass(frozen=True, slots=True)
class FoundLabels:
    """The labels of the found items.

    Attributes
    ----------
    places : (g,), see `labels_found`.
    belong : (g, n), see `labels_found`.
    values : (g, S) signals.
    classes : (g,) size classes.
    n_in_list : number of leading labels that occur in the result list.
    possible : (g,) whether items of the label can be true matches: an item without a position
        cannot, if matches are defined by distance. None if all items can.
    too : (g, n) probability that an item is a true match if the label or place is the match, see
        `Calibration.decrease`; None if all items of a label are matches if one is.
    """

    places: Integers
    belong: NDArray[np.bool_]
    values: Floats
    classes: NDArray[np.int8]
    n_in_list: int
    possible: NDArray[np.bool_] | None = None
    too: Floats | None = None

    @classmethod
    def of(
        cls, calibration: Calibration, predictive: Predictive, retrieved: Retrieved
    ) -> FoundLabels:
        """Find the labels and compute their signals."""
        places, belong = labels_found(retrieved.label_codes)
        codes = retrieved.label_codes[places]
        similarities = retrieved.similarities
        values = signals(
            similarities,
            places,
            calibration.means.similarities(predictive.direction, codes, similarities[places]),
            predictive.outlier_score,
            retrieved.n_listed,
        )
        n_in_list = int(places.searchsorted(retrieved.n_listed))
        possible, too, metres = None, None, calibration.within
        if metres is not None:
            possible = codes != -1
            if calibration.decrease is not None and retrieved.positions is not None:
                apart = apart_from_places(retrieved.positions, places, metres)
                too = decreased(apart, calibration.decrease)
        return cls(places, belong, values, calibration.classes_of(codes), n_in_list, possible, too)

    def of_items(self, of_labels: Floats, items: Integers) -> Floats:
        """Return the probabilities (m,) of items from the probabilities (g,) of their labels."""
        if self.too is None:
            found: Floats = of_labels[self.belong[:, items].argmax(axis=0)]
            return found
        return np.minimum(of_labels @ self.too[:, items], 1.0)

    def passing(self, allowed: NDArray[np.bool_]) -> Floats:
        """Return how probably an allowed item is a match, if the label of a row is one: (g,).

        Parameters
        ----------
        allowed : (n,) mask of the items that pass the filter.
        """
        too = self.belong if self.too is None else self.too
        most: Floats = np.where(allowed, too, 0.0).max(axis=1)
        return most

    def probabilities(self, calibration: Calibration, shift: float) -> Floats:
        """Return the match probabilities (g,) with ``shift`` added to all log-odds.

        The model was fitted to result lists. So items outside the list must not change the
        probabilities of the listed labels. The no-match probability of the list is then divided
        between the other labels and "no match".
        """
        log_odds = calibration.match.of_list(self.values, self.n_in_list) + shift
        listed = choice_probabilities(log_odds[: self.n_in_list])
        if self.n_in_list == len(log_odds):
            return listed
        left = max(1 - float(np.add.reduce(listed)), 0.0)  # against rounding errors
        beyond = left * choice_probabilities(log_odds[self.n_in_list :])
        return np.concatenate([listed, beyond])


@dataclass(frozen=True, slots=True)
class MatchProbabilities:
    """Match probabilities (g,) of the labels of the found items.

    Attributes
    ----------
    fitted : (g,) probabilities for the share of absent queries that was used in the fit.
    expected : (g,) probabilities for the expected share of absent queries.
    final : (g,) ``expected``, corrected by feedback. If the client knows that every true match
        passes the filter, the probabilities are conditioned on this fact.
    nothing : probability that no item that passes the filter is a true match.
    known : factor by which all probabilities are multiplied to condition them on what is known: the
        fact that the client states, and that items without a position are no matches. 1 if nothing
        is known.
    """

    fitted: Floats
    expected: Floats
    final: Floats
    nothing: float
    known: float = 1.0

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        promises: Promises,
        found: FoundLabels,
        allowed: NDArray[np.bool_] | None,
        terms: Terms,
    ) -> MatchProbabilities:
        """Compute the probabilities; ``allowed`` (n,) masks the items that pass the filter."""
        fitted = found.probabilities(calibration, 0.0)
        moved = promises.shift != 0
        expected = found.probabilities(calibration, promises.shift) if moved else fitted
        final = calibration.feedback.of(expected)
        total = float(np.add.reduce(final))
        if total > 1:  # each label is corrected separately, so the sum can exceed 1
            final, total = final / total, 1.0
        nothing, known = 1 - total, 1.0
        if found.possible is not None and not found.possible.all():
            final = np.where(found.possible, final, 0.0)
            known = 1 / max(nothing + float(np.add.reduce(final)), np.finfo(float).tiny)
            final = final * known
            nothing = max(1 - float(np.add.reduce(final)), 0.0)  # against rounding errors
        if allowed is not None:
            passing = min(float(final @ found.passing(allowed)), 1.0)
            if terms.filter_means == "known":
                whole = max(nothing + passing, np.finfo(float).tiny)
                final, nothing, known = final / whole, nothing / whole, known / whole
            else:
                nothing = 1 - passing
        return cls(fitted, expected, final, nothing, known)

    def of_parents(
        self,
        calibration: Calibration,
        parents: NDArray[np.int32],
        allowed: NDArray[np.bool_] | None,
    ) -> tuple[NDArray[np.int32], Floats]:
        """Return the likeliest parent (L,) at each level, and its probability (L,).

        The probabilities are corrected by feedback, and multiplied by `known`.

        Parameters
        ----------
        parents : (g, L) parents of the labels in the result list. Labels outside the list are left
            out, as in the calibration.
        allowed : (g, n) mask of each label's items within the filter; None without a filter.
        """
        n = len(parents)
        expected = self.expected[:n]
        if allowed is not None:
            expected = np.where(allowed[:n].any(axis=1), expected, 0.0)
        places, sums = likeliest_parents(parents, expected)
        return places, np.minimum(calibration.feedback.of(sums) * self.known, 1.0)


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
        have the same probability. If matches are defined by distance, see `Calibration.decrease`.
    no_match_probability : P(none of the items that may be found is a true match): 1 − Σ of the
        match probabilities of their labels or places.
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

    If no item passes a filter, this is the reason of the answer, whatever its verdict.

    A filter does not change match probabilities, which are computed for the whole gallery. If the
    client states that every true match passes the filter (``known``), the probabilities are
    conditioned on this statement.

    If matches are defined by distance, an item without a position has the probability 0. The other
    probabilities are conditioned on this. The error bound holds for the most similar item of a
    place, so it does not hold for the first item if a filter excludes that item.

    If the list is in order of probability, the most similar item of the likeliest label or place is
    first. In this case, the guarantees apply to this label or place.

    Raises
    ------
    UnknownSource : no calibration query has the source in ``terms``.
    """
    passes_none = retrieved.allowed is not None and len(retrieved.listed) == 0
    without_items = message("no_item_passes_filter") if passes_none else None
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
            "not_calibrated",
            assess(calibration, predictive, retrieved.uncertainty),
            without_items or reason,
        )
    promises = calibration.promises(terms.expected_absent, terms.source, terms.order, terms.alpha)
    found = FoundLabels.of(calibration, predictive, retrieved)
    allowed = None if retrieved.allowed is None else found.belong & retrieved.allowed
    probabilities = MatchProbabilities.of(calibration, promises, found, retrieved.allowed, terms)
    labels = found.belong[:, retrieved.listed].argmax(axis=0)
    ranking = np.arange(len(labels))
    if terms.order == "probability":
        of_items = found.of_items(probabilities.final, retrieved.listed)
        # The guarantees are those of the first item of the likeliest label or place.
        likeliest = retrieved.listed == found.places[probabilities.final.argmax()]
        ranking = np.argsort(-np.where(likeliest, np.inf, of_items), kind="stable")
    items = retrieved.listed[ranking[: retrieved.limit]]
    labels = labels[ranking[: retrieved.limit]]
    assessment = assess(calibration, predictive, retrieved.uncertainty)
    shown = found.of_items(probabilities.final, items)
    first = (0.0, 0)
    if len(labels):
        # The thresholds were fitted to the probabilities of labels.
        least = min(float(shown[0]), float(probabilities.final[labels[0]]))
        first = (least, int(found.classes[labels[0]]))
    verdict, lacking = _verdict(assessment, terms, promises, *first, probabilities.nothing)
    promise = promises.matches[first[1]]
    if lacking is not None and lacking is promise.shortfall and math.isinf(promise.threshold):
        code = retrieved.label_codes[found.places[labels[:1]]]
        if code[0] >= 0 and calibration.known_classes(code)[0] == UNKNOWN_CLASS:
            lacking = message("label_added")
    divided = (
        calibration.within is not None and len(labels) > 0 and items[0] != found.places[labels[0]]
    )
    if divided and verdict == "match":
        lacking = lacking or message("place_divided_by_filter")
    return Decision(
        verdict,
        assessment,
        without_items or lacking,
        ranking,
        promises.expected,
        bounded_logit(found.of_items(probabilities.expected, items)),
        shown,
        probabilities.nothing,
        float(1 - np.add.reduce(probabilities.fitted)),
        _result_set(calibration, promises, found, probabilities.fitted, allowed, terms),
        _roll_up(calibration, promises, found, probabilities, allowed, retrieved.parents)
        if verdict == "ambiguous" and terms.stale is None
        else None,
        guaranteed=promise.guaranteed
        and not divided
        and (terms.stale or promises.doubt or terms.drift) is None,
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
