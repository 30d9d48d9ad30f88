"""Guarantees for a stream of queries: thresholds of `match`, and result sets.

Without a guarantee, the reason is given. A result set has the fewest items that contain a true
match with a stated probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from model_store.decision.evidence import SIZE_CLASSES, Evidence
from model_store.decision.operating import MANY_TIMES, Stream, errors_allowed, least_queries
from model_store.decision.probabilities import Recalibration, prior_shift
from model_store.messages import Message, joined, message
from model_store.records import OperatingPoint

_MOST_COVERAGES = 1000
"""Maximum number of cached coverages; a client may request any coverage."""

MOST_UNPROMISED = 32
"""Maximum number of labels in a set without a guarantee; a longer list would be useless."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ResultSetChoice:
    """Items that contain a true match with a stated probability.

    If one item of a label is a true match, all items of this label are true matches. So the set
    contains only the nearest item of each likely label.

    Attributes
    ----------
    places : (m,) ascending indexes in the result list; empty only if no item may be listed.
    coverage : the requested coverage.
    promised_for : size classes of labels for which the coverage is guaranteed.
    shortfall : None if the coverage is guaranteed for every class of the gallery; else the reasons,
        in sentences.
    """

    places: NDArray[np.int64]
    coverage: float
    promised_for: tuple[str, ...]
    shortfall: str | None


@dataclass(frozen=True)
class _Thresholds:
    """The thresholds for one coverage; None if no size class has a guarantee."""

    thresholds: Floats | None
    promised_for: tuple[str, ...]
    shortfall: Message | None


class ResultSetRule:
    """The rule for result sets of any coverage (Angelopoulos et al. 2021, Learn then Test).

    A set contains the likeliest label, and every label whose match probability reaches the
    threshold of its size class. Among all rules with the same coverage of each class, this rule
    gives the smallest sets on average (Sadinle et al. 2019; Vovk 2012, Conditional validity). A
    larger threshold gives smaller sets and more errors. So thresholds are tested in ascending
    order, each with the exact binomial test at level δ, until a test fails. No correction for the
    number of tests is needed.

    The guarantee holds for one coverage and one size class, both chosen in advance. The guarantee
    is for new queries that are exchangeable with the calibration queries and have a true label of
    this size class. With probability 1 − δ over calibrations, at least the share ``coverage`` of
    the new queries get a set that contains a true match. The test is exact for the probabilities of
    five cross-fits, but served probabilities come from a fit to all queries. The difference between
    these probabilities shrinks with the number of queries.

    Parameters
    ----------
    evidence : evidence of the calibration queries.
    n_labels : (3,) number of the gallery's labels in each of `SIZE_CLASSES`.
    delta : δ.
    """

    def __init__(self, evidence: Evidence, n_labels: NDArray[np.int64], delta: float) -> None:
        # For each size class, `Evidence.critical` of one query of each object, in ascending order.
        self._critical = [
            np.sort(evidence.critical[evidence.counted & (evidence.true_classes == size_class)])
            for size_class in range(len(SIZE_CLASSES))
        ]
        self._n_labels = n_labels
        self._delta = delta

    def promised_for(self, coverage: float) -> tuple[str, ...]:
        """Return the size classes for which ``coverage`` is guaranteed."""
        return self._at(coverage).promised_for

    def shortfall(self, coverage: float) -> Message | None:
        """Return why ``coverage`` is not guaranteed for every label; None if it is guaranteed."""
        return self._at(coverage).shortfall

    def choose(
        self,
        places: NDArray[np.int64],
        probabilities: Floats,
        classes: NDArray[np.int8],
        coverage: float,
    ) -> ResultSetChoice:
        """Choose the result set of one query.

        Parameters
        ----------
        places : (g,) ascending index of the nearest item of each label.
        probabilities : (g,) match probabilities of the labels.
        classes : (g,) size classes of the labels.
        coverage : in (0, 1).
        """
        found = self._at(coverage)
        if found.thresholds is None:
            likeliest = np.sort(np.argsort(-probabilities, kind="stable")[:MOST_UNPROMISED])
            return ResultSetChoice(places[likeliest], coverage, (), found.shortfall)
        chosen = probabilities >= found.thresholds[classes]
        chosen[probabilities.argmax()] = True
        return ResultSetChoice(places[chosen], coverage, found.promised_for, found.shortfall)

    @cached_property
    def _at(self) -> Callable[[float], _Thresholds]:
        # A bound method would make a cycle of references, see `Calibration`.
        return lru_cache(_MOST_COVERAGES)(partial(ResultSetRule._compute, proxy(self)))

    def _compute(self, coverage: float) -> _Thresholds:
        """Compute the threshold of each class.

        A class without a guarantee gets the lowest threshold of the other classes.
        """
        found = [self._threshold(critical, coverage) for critical in self._critical]
        promised = [value for value in found if value is not None]
        missing = [
            self._why_not(place, coverage)
            for place, value in enumerate(found)
            if value is None and self._n_labels[place]
        ]
        return _Thresholds(
            np.array([min(promised) if value is None else value for value in found])
            if promised
            else None,
            tuple(
                name
                for name, value, n in zip(SIZE_CLASSES, found, self._n_labels, strict=True)
                if value is not None and n
            ),
            joined(missing),
        )

    def _threshold(self, critical: Floats, coverage: float) -> float | None:
        """Return the largest threshold that guarantees ``coverage``; None if there is none."""
        allowed = errors_allowed(len(critical), coverage, self._delta)
        return None if allowed < 0 or critical[allowed] < 0 else float(critical[allowed])

    def _why_not(self, size_class: int, coverage: float) -> Message:
        critical, n_labels = self._critical[size_class], int(self._n_labels[size_class])
        queries: str = ""
        n_all = int(self._n_labels.sum())
        if n_labels < n_all:
            size = message(f"size_{SIZE_CLASSES[size_class]}")
            queries = message("labels_of_size", size=size, n_labels=n_labels, n_all=n_all)
        needed = math.ceil(math.log(self._delta) / math.log(coverage))
        if len(critical) < needed:
            return message(
                "coverage_needs_queries",
                coverage=coverage,
                n_needed=needed,
                queries=queries,
                n_effective=len(critical),
            )
        reached = round(float((critical >= 0).mean()), 3)
        return message("coverage_out_of_reach", queries=queries, reached=reached, coverage=coverage)


WORST_RATE = 0.1
"""Largest useful upper bound of the false-match rate (FPIR). If absent queries have fewer than log
δ / log(1 − 0.1) labels (22 at δ = 0.1), every upper bound is larger than this value. Then nothing
is guaranteed about absent queries."""

MOST_UNKNOWN = 0.1
"""Guarantees need evidence about absent queries if the share of absent queries is above this value.
Above this share, errors on absent queries dominate. So two rules apply above this share. If absent
queries have too few labels, the probabilities have no guarantee. If nothing is known about absent
queries, no query gets the verdict `match`."""

UNKNOWN_TO_ABSENT = message("absent_unknown_trained_labels")
"""Reason why absent queries are no evidence if the encoder was trained on their labels."""


def least_labels(delta: float) -> int:
    """Return the minimum number of absent labels for an FPIR bound of `WORST_RATE`."""
    return least_queries(WORST_RATE, delta)


@dataclass(frozen=True, slots=True)
class MatchThreshold:
    """The threshold of verdict `match` for one size class, and the guarantee of the threshold.

    Attributes
    ----------
    size_class : size class of the first item's label, one of `SIZE_CLASSES`.
    threshold : threshold on the match probability; ∞ if no query gets the verdict `match`.
    point : operating point of the threshold; None without a threshold. A query counts as accepted
        only if its first item has this size class.
    shortfall : the reason, with advice, if there is no threshold or if the threshold has no
        guarantee; else None.
    guaranteed : whether the error is bounded. If there is a threshold but the error is not bounded,
        the absent queries have too few labels. Then only the error among matched queries is
        bounded.
    """

    size_class: str
    threshold: float
    point: OperatingPoint | None
    shortfall: Message | None
    guaranteed: bool = True


class Promises:
    """All guarantees of a calibration for one source of queries and one share of absent queries.

    Parameters
    ----------
    evidence : evidence of the calibration queries from the source.
    n_labels : (3,) number of the gallery's labels in each of `SIZE_CLASSES`.
    assumed : share of absent queries that the probabilities were fitted with.
    expected : expected share of absent queries in the stream.
    feedback : correction of match probabilities.
    max_error : maximum error: share of wrong results among the first items called a match.
    max_false_match_rate : maximum FPIR, the share of absent queries that get a match; None for no
        limit.
    delta : δ; each guarantee separately holds with probability 1 − δ over calibrations.
    levels : names of the levels of parents, the finest first.
    alpha : false-alarm rate of the outlier flag; flagged queries get no match.

    Attributes
    ----------
    shift : value added to all log-odds, see `prior_shift`.
    unknown_absence : reason why nothing is known about absent queries; None if something is known.
    unknown_rate : reason why no FPIR can be guaranteed; None if an FPIR can be guaranteed.
    doubt : reason why probabilities are not guaranteed at this share; None if they are guaranteed.
        If both ``doubt`` and ``unknown_absence`` are given, no bound of the error is guaranteed.
    sets : rule for result sets.
    """

    def __init__(
        self,
        evidence: Evidence,
        n_labels: NDArray[np.int64],
        assumed: float,
        expected: float,
        feedback: Recalibration,
        max_error: float,
        max_false_match_rate: float | None,
        delta: float,
        levels: Sequence[str] = (),
        alpha: float = 0.0,
    ) -> None:
        self.expected = expected
        self.shift = prior_shift(assumed, expected)
        self.max_error, self.max_false_match_rate = max_error, max_false_match_rate
        given = assumed, expected, feedback, delta, alpha
        self.stream = Stream.of(evidence, *given)
        self._first_classes = evidence.first_classes
        self.unknown_absence = (
            UNKNOWN_TO_ABSENT if evidence.absence == "hidden_trained_labels" else None
        )
        self.unknown_rate = self.unknown_absence or self._too_few_labels()
        self.doubt = self._doubt() if expected > MOST_UNKNOWN else None
        self._n_labels = n_labels
        self._levels, self._likeliest_classes = levels, evidence.likeliest_classes
        of_levels = [evidence.of_level(level) for level in range(len(levels))]
        self._streams = [Stream.of(one, *given) for one in of_levels]
        self.sets = ResultSetRule(evidence, n_labels, delta)

    @cached_property
    def _found(self) -> tuple[tuple[float, bool] | None, ...]:
        return tuple(self._threshold_of(place) for place in range(len(self._n_labels)))

    @cached_property
    def _thresholds(self) -> NDArray[np.float64]:
        return np.array([math.inf if one is None else one[0] for one in self._found])

    @cached_property
    def roll_ups(self) -> tuple[tuple[MatchThreshold, ...], ...]:
        """The promises for answers at each level, by the size class of the likeliest label."""
        return self._rolled_up(self._levels, self._streams, self._likeliest_classes)

    def threshold(self, size_class: int) -> float:
        """Return the threshold of verdict `match` for first items of ``size_class``."""
        return float(self._thresholds[size_class])

    def level_threshold(self, level: int, size_class: int) -> float:
        """Return the threshold for answering with a parent of ``level``."""
        return self.roll_ups[level][size_class].threshold

    @property
    def point(self) -> OperatingPoint:
        """The rates of verdict `match`, for all size classes together."""
        return self.point_of(self.accepted)

    def point_of(self, accepted: NDArray[np.bool_]) -> OperatingPoint:
        """Return the rates that result if the ``accepted`` (N,) queries get the verdict `match`."""
        return self._told(self.stream.point_of(accepted, float(self._thresholds.min())))

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """(N,) mask of the calibration queries whose first item is called a match."""
        thresholds = self._thresholds[self._first_classes]
        return self.stream.chosen & (self.stream.probabilities >= thresholds)

    @property
    def gives_matches(self) -> bool:
        """True if first items of at least one size class can be called a match."""
        return bool(np.isfinite(self._thresholds).any())

    @property
    def gives_guarantee(self) -> bool:
        """True if the error has a guaranteed bound for at least one size class.

        Thresholds are not computed.
        """
        rate = self.max_false_match_rate
        if self.gives_nothing or (rate is not None and self.stream.strictest(rate) is None):
            return False
        # The largest size class usually has the most queries, and decides soonest.
        places = reversed(range(len(self._n_labels)))
        return any(self._of_class(place).can_keep_error(self.max_error) for place in places)

    def curve(self) -> list[OperatingPoint]:
        """Return the risk-coverage curve of all size classes, strictest threshold first."""
        return [self._told(point) for point in self.stream.curve()]

    def at(self, max_error: float) -> tuple[OperatingPoint | None, Message | None]:
        """Return the operating point with the largest coverage that guarantees ``max_error``.

        One threshold applies to all size classes.

        Returns
        -------
        The operating point; None if no threshold guarantees ``max_error``. The second value is the
        reason, with advice, if there is no operating point.
        """
        threshold = None if self.gives_nothing else self.stream.widest(max_error)
        if threshold is None:
            return None, self._error_shortfall(self.stream, max_error, "")
        return self._told(self.stream.point(threshold)), None

    @cached_property
    def matches(self) -> tuple[MatchThreshold, ...]:
        """The promise of each size class. The slow computation runs on first use."""
        return tuple(self._promise(place) for place in range(len(self._found)))

    @property
    def gives_nothing(self) -> bool:
        """True if no query gets the verdict `match`: the absent queries are many and unknown."""
        return self.doubt is not None and self.unknown_absence is not None

    def _of_class(self, size_class: int) -> Stream:
        return self.stream.at_rows(self._first_classes == size_class)

    def _threshold_of(self, size_class: int) -> tuple[float, bool] | None:
        """Return a size class's threshold, and whether the threshold has a guarantee.

        The threshold is ∞ if no threshold meets the maximum FPIR.

        Returns
        -------
        None if no threshold meets the maximum error.
        """
        found = self._widest(self._of_class(size_class))
        if found is None or self.max_false_match_rate is None:
            return found
        threshold, guaranteed = found
        by_rate = self.stream.strictest(self.max_false_match_rate)
        if by_rate is None:
            return math.inf, False
        return max(threshold, by_rate), guaranteed

    def _promise(self, size_class: int) -> MatchThreshold:
        name, found = SIZE_CLASSES[size_class], self._found[size_class]
        of_class = self._of_class(size_class)
        if found is None:
            queries = message(f"first_item_{name}")
            shortfall = self._error_shortfall(of_class, self.max_error, queries)
            return MatchThreshold(name, math.inf, None, shortfall)
        if math.isinf(found[0]):
            return MatchThreshold(name, math.inf, None, self._rate_shortfall())
        return self._kept(name, of_class, *found)

    def _kept(
        self, size_class: str, stream: Stream, threshold: float, guaranteed: bool
    ) -> MatchThreshold:
        """Return the promise of a threshold, with the reason if the error has no guarantee."""
        lacking = None if guaranteed else self._lacking(stream)
        point = self._told(stream.point(threshold))
        return MatchThreshold(size_class, threshold, point, lacking, guaranteed)

    def _widest(self, stream: Stream) -> tuple[float, bool] | None:
        """Return the threshold for the maximum error, and whether this error is guaranteed.

        If absent queries have too few labels, the threshold uses the bound of FPIR at confidence ½.
        Then only the error among matched queries has a guaranteed bound.
        """
        if self.gives_nothing:
            return None
        threshold = stream.widest(self.max_error)
        if threshold is not None:
            return threshold, True
        likely = stream.taking_absent_as_likely().widest(self.max_error)
        return None if likely is None else (likely, False)

    def _lacking(self, stream: Stream) -> Message:
        """Return the reason why the error among all matches has no guaranteed bound."""
        cause = self.unknown_rate or self._too_few_labels_for(stream)
        return message("error_bounded_for_matched_queries", cause=cause)

    def _too_few_labels_for(self, stream: Stream) -> Message:
        """Return a message with the number of additional labels that a bound of the error needs."""
        times = stream.multiple(self.max_error, of_labels=True) or MANY_TIMES
        return message(
            "absent_labels_too_few_for_share",
            n_labels=stream.n_labels,
            share=self.expected,
            n_more=math.ceil((times - 1) * stream.n_labels),
        )

    def _rolled_up(
        self, levels: Sequence[str], streams: Sequence[Stream], classes: NDArray[np.int8]
    ) -> tuple[tuple[MatchThreshold, ...], ...]:
        """Find thresholds for answers at each level, with the same maximum error.

        The finest level is first. A level answers only queries that no finer level answers. The
        outcomes of queries affect this selection only through the threshold of the finer level. The
        tests of the finer level stopped at this threshold, because queries below the threshold had
        too many errors. So the error of the remaining queries is at least the error of a random
        sample of queries.

        Parameters
        ----------
        streams : one stream for each level: every query is answered with its likeliest parent at
            this level.
        classes : (N,) size class of each query's most probable label.
        """
        left = self.stream.probabilities < self._thresholds[self._first_classes]
        promised = []
        for name, stream in zip(levels, streams, strict=True):
            rows = [left & (classes == place) for place in range(len(SIZE_CLASSES))]
            of_classes = tuple(
                self._promise_of_level(name, place, stream.at_rows(chosen))
                for place, chosen in enumerate(rows)
            )
            thresholds = np.array([promise.threshold for promise in of_classes])
            left &= stream.probabilities < thresholds[classes]
            promised.append(of_classes)
        return tuple(promised)

    def _promise_of_level(self, level: str, size_class: int, stream: Stream) -> MatchThreshold:
        found = self._widest(stream)
        name = SIZE_CLASSES[size_class]
        if found is None:
            shortfall = self.doubt or message(
                "error_not_bounded_at_level",
                max_error=self.max_error,
                level=level,
                n_queries=stream.n_answered,
                needed=self._needed(stream, self.max_error),
            )
            return MatchThreshold(name, math.inf, None, shortfall)
        return self._kept(name, stream, *found)

    def _told(self, point: OperatingPoint) -> OperatingPoint:
        """Return the point, without its FPIR if nothing is known about absent queries."""
        if self.unknown_absence is None:
            return point
        return point.model_copy(update={"false_match_rate": None, "false_match_bound": None})

    def _too_few_labels(self) -> Message | None:
        """Return a message if the absent queries have too few labels for a bound, else None."""
        n_labels, least = self.stream.n_labels, least_labels(self.stream.delta)
        if n_labels >= least:
            return None
        return message("absent_labels_too_few", n_labels=n_labels, n_more=least - n_labels)

    def _doubt(self) -> Message | None:
        if self.unknown_absence is not None:
            code, cause = "error_and_probabilities_uncertain", self.unknown_absence
        elif self.unknown_rate is not None:
            code, cause = "probabilities_uncertain", self.unknown_rate
        else:
            return None
        return message(code, share=self.expected, cause=cause)

    def _error_shortfall(self, stream: Stream, max_error: float, queries: str) -> Message | None:
        if self.gives_nothing:
            return self.doubt
        return message(
            "error_not_bounded",
            max_error=max_error,
            n_queries=stream.n_answered,
            queries=queries,
            needed=self._needed(stream, max_error),
        )

    def _needed(self, stream: Stream, max_error: float) -> Message:
        """Return a message with the queries or labels that a bound of the error needs.

        If there would be a bound without the correction by feedback, the message names this cause.
        If no number of queries and labels is enough, the message is about the share of absent
        queries or about wrong first items.
        """
        if stream.is_lowered_by_feedback(max_error):
            n_pairs = int(stream.most_effective)
            return message("feedback_lowers_probabilities", n_pairs=n_pairs, share=self.expected)
        n = stream.n_answered
        needed = stream.queries_needed(max_error) if n else None
        if needed is not None:
            return message("queries_needed", n_needed=needed)
        least = least_queries(max_error, stream.delta)
        if n < least:
            return message("answered_queries_needed", n_needed=least)
        times = stream.multiple(max_error, of_labels=True)
        if times is None:
            possible = stream.possible_share(max_error)
            if possible is None:
                return message("too_many_first_results_wrong")
            return message("absent_share_too_large", share=self.expected, possible=possible)
        n_more = math.ceil((times - 1) * stream.n_labels)
        return message("absent_labels_needed", n_labels=stream.n_labels, n_more=n_more)

    def _rate_shortfall(self) -> Message:
        assert self.max_false_match_rate is not None  # noqa: S101 - the caller has looked
        least = least_queries(self.max_false_match_rate, self.stream.delta)
        cause = self.unknown_absence or message(
            "absent_queries_too_few", n_labels=self.stream.n_labels, n_needed=least
        )
        return message(
            "false_matches_not_bounded",
            max_false_match_rate=self.max_false_match_rate,
            cause=cause,
        )
