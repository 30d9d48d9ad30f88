"""Operating points: the coverage and error of thresholds on the match probability.

The answers to all photographs of one object are usually either all right or all wrong. The same is
true for the absent queries of one label. So the independent units are objects and labels, not
queries. For a bound, all queries that show one object count as one query. All absent queries of one
label count as one observation: the mean over these queries.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, betainc, betaincinv, xlogy

from model_store.decision.evidence import Evidence
from model_store.decision.probabilities import Recalibration, prior_shift, shifted
from model_store.records import OperatingPoint

LEAST_THRESHOLD = 0.5
"""Minimum threshold on the match probability, for any accepted error."""

LEVELS = np.linspace(0.05, 1.0, 77)
"""Shares of matched queries, in ascending order. Each share gives one threshold, which accepts this
share of the matched queries. The thresholds are tested in this order."""

N_POINTS = 200
"""Maximum number of points of the risk-coverage curve."""

OF_ACCEPTED = 0.05
"""A guarantee is wrong with a probability of at most δ. This part of δ is used for the bound of the
accepted share of matched queries. The rest of δ is used for the test of the error."""

_RATES = np.r_[0.0, np.geomspace(1e-4, 1.0, 255)]
"""Grid of false-match rates (FPIR). The test of an error computes a p-value for each rate in the
grid, and uses the largest p-value."""

_STRIDE = 10
"""Step of the coarse search over this grid."""

_STEPS = 10**5
"""Number of steps between the errors 0 and 1: the resolution of an error bound."""

MANY_TIMES = 50.0
"""Maximum factor by which a plan multiplies the number of calibration queries. A plan is the search
for the number of queries that a guarantee needs, see `Stream.multiple`."""

SMALLER_SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of absent queries, largest first. If no query gets a match because the share is too large,
the largest of these shares that allows a match is reported, see `Stream.possible_share`."""

_STEP = 1.1
"""A plan raises the number of queries in steps, until the number is enough. Each step multiplies
the number by this factor."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Thresholds = Sequence[tuple[float, Bools]]
"""Decreasing thresholds, each with a mask of the accepted queries."""


def first_where(holds: Callable[[int], bool], start: int, stop: int) -> int:
    """Return the first step from ``start`` for which the monotone condition ``holds`` is true.

    Returns
    -------
    The first such step. The result is ``stop`` if the condition is false for every step below
    ``stop``.
    """
    return start + bisect_left(range(start, stop), True, key=holds)


@dataclass(frozen=True, slots=True)
class _ErrorTest:
    """The test of the error among accepted queries, see `Stream.error_p_value`.

    Between two grid rates, each p-value is replaced by the larger of its values at these rates.
    This is the binomial p-value at the upper rate, and the p-value of labels at the lower rate.

    Attributes
    ----------
    wrong : number of errors among the accepted objects.
    n : number of accepted objects.
    share : (m,) π F / ((1 − π) A) for the upper rate F of each of m steps; infinite if A is 0.
    of_absent : (m,) p-value of labels for the lower rate of each step. None if ``share`` is the
        share of the single likely rate.
    """

    wrong: float
    n: float
    share: Floats
    of_absent: Floats | None

    def p_value(self, max_error: float) -> float:
        """Return the p-value of "the error is above ``max_error``"."""
        return self.at(max_error, self.worst(max_error))

    def at(self, max_error: float, step: int) -> float:
        """Return the p-value for the rates of one step, a lower bound of `p_value`."""
        if math.isinf(self.share[0]):
            return 1.0
        one = slice(step, step + 1)
        if self.of_absent is None:
            return float(self._of_present(max_error, one)[0])
        product = float((self._of_present(max_error, one) * self.of_absent[one])[0])
        # The p-value of a product of two independent p-values (Fisher 1925).
        return product * (1 - math.log(product)) if product > 0 else 0.0

    def worst(self, max_error: float) -> int:
        """Return the step with the largest p-value."""
        if self.of_absent is None or math.isinf(self.share[0]):
            return 0
        # With the rate, the binomial p-value rises to 1, and the p-value of labels falls from 1. So
        # the product is largest between the rate at which the p-value of labels begins to fall, and
        # the rate at which the binomial p-value reaches 1. Both p-values are log-concave in the
        # rate, so this rate is near the best rate of a coarse search. Exceptions are the first
        # step, which starts at rate 0, and products that underflow to 0.
        first = int(np.searchsorted(-self.of_absent, -1.0, side="right")) - 1
        last = int(np.searchsorted((1 - max_error) * self.share[first:], max_error)) + 1
        near = slice(first, first + last)
        coarse = slice(near.start, near.stop, _STRIDE)
        products = self._of_present(max_error, coarse) * self.of_absent[coarse]
        best = int(products.argmax())
        if products[best] > 0:
            near = slice(first + max(best - 1, 0) * _STRIDE, first + max(best + 1, 2) * _STRIDE)
        products = self._of_present(max_error, near) * self.of_absent[near]
        return near.start + int(products.argmax())

    def least(self, level: float, stop: int = _STEPS) -> int:
        """Return the smallest error rejected at ``level``, in steps; ``stop`` if there is none."""
        return first_where(lambda steps: self.p_value(steps / _STEPS) <= level, 0, stop)

    def _of_present(self, max_error: float, steps: slice) -> Floats:
        left = max_error - (1 - max_error) * self.share[steps]
        return at_most(self.wrong, self.n, np.maximum(left, 0.0))


def _strongest(tests: Sequence[_ErrorTest], max_error: float) -> tuple[int, float]:
    """Return the index of the first test with the smallest p-value, and this p-value.

    Tests are skipped if a lower bound of the p-value is too large. Among similar tests, the worst
    steps are similar, so the bound is near the p-value.
    """
    step = tests[len(tests) // 2].worst(max_error)
    bounds = [test.at(max_error, step) for test in tests]
    best, least = 0, math.inf
    for place in sorted(range(len(tests)), key=bounds.__getitem__):
        if bounds[place] > least:
            break
        p_value = tests[place].p_value(max_error)
        if (p_value, place) < (least, best):
            best, least = place, p_value
    return best, least


def _nearest(tests: Sequence[_ErrorTest], level: float, likely: int) -> int:
    """Return the index of the first test that rejects the smallest error at ``level``.

    ``likely`` is the index of the test that is searched first.
    """
    step = 0

    def rejects(test: _ErrorTest, steps: int) -> bool:
        nonlocal step
        error = steps / _STEPS
        if test.at(error, step) > level:
            return False
        step = test.worst(error)
        return test.at(error, step) <= level

    least = tests[likely].least(level)
    for test in tests:
        if rejects(test, least - 1):
            least = test.least(level, least - 1)
    return next((place for place, test in enumerate(tests) if rejects(test, least)), likely)


@dataclass(frozen=True)
class Stream:
    """Calibration queries, weighted to represent a stream with a given share of absent queries.

    Attributes
    ----------
    probabilities : (n,) match probability of each first item, for the share ``expected`` of absent
        queries.
    no_match : (n,) P(no match), for the share ``expected`` of absent queries.
    wrong : (n,) 1 if the first item is not a true match, else 0. If feedback has corrected the
        probabilities, the observed outcomes are no longer representative. In this case, the value
        is one minus the corrected probability.
    counted : (n,) mask of the counted queries: one query of each object with a match, drawn at
        random.
    labels : (n,) for an absent query, the number of its label, from 0; −1 for other queries.
    chosen : (n,) mask of the queries that may be accepted: queries that are not flagged out of
        distribution. Rates are shares of all queries, including flagged queries.
    expected : share of absent queries.
    absence_known : whether the absent queries are representative of served absent queries.
    rivals : see `Evidence`. The observed share of accepted absent queries is multiplied by this
        factor.
    most_effective : maximum effective number of queries.
    delta : one minus the confidence of all bounds.
    times : factor by which a plan multiplies the number of objects.
    absent_times : factor by which a plan multiplies the number of absent labels.
    absent_as_likely : whether FPIR is replaced by its upper bound at confidence ½. If it is
        replaced, nothing is guaranteed for absent queries.
    lone_share : see `Evidence`; 0 if it is None.
    uncorrected : the stream without the correction by feedback; None if nothing is corrected.
    """

    probabilities: Floats
    no_match: Floats
    wrong: Floats
    counted: Bools
    labels: NDArray[np.int64]
    chosen: Bools
    expected: float
    absence_known: bool
    rivals: float
    most_effective: float
    delta: float
    times: float = 1.0
    absent_times: float = 1.0
    absent_as_likely: bool = False
    lone_share: float = 0.0
    uncorrected: Stream | None = None

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        assumed: float,
        expected: float,
        feedback: Recalibration,
        delta: float,
        alpha: float = 0.0,
    ) -> Stream:
        """Weight the queries of ``evidence`` to represent a share ``expected`` of absent queries.

        The probabilities in ``evidence`` were fitted for the share ``assumed`` of absent queries.
        Queries that are flagged out of distribution at the false-alarm rate ``alpha`` are not
        accepted.
        """
        shift, no_match = prior_shift(assumed, expected), evidence.no_match_probabilities
        moved = shifted(evidence.first_probabilities, no_match, shift)
        probabilities = feedback.of(moved)
        labels = np.full(len(evidence), -1, dtype=np.int64)
        of_absent = evidence.clusters[evidence.absent]
        labels[evidence.absent] = np.unique(of_absent, return_inverse=True)[1]
        observed = (~evidence.correct).astype(np.float64)
        return cls(
            probabilities,
            1 - shifted(1 - no_match, no_match, shift),
            observed if feedback.is_identity else 1 - probabilities,
            evidence.counted,
            labels,
            evidence.ordinary(alpha),
            expected,
            evidence.absence != "hidden_trained_labels",
            evidence.rivals,
            math.inf if feedback.is_identity else float(feedback.n_pairs),
            delta,
            lone_share=evidence.lone_share or 0.0,
            uncorrected=None
            if feedback.is_identity
            else cls.of(evidence, assumed, expected, Recalibration(), delta, alpha),
        )

    def at_rows(self, rows: Bools) -> Stream:
        """Return the stream in which only queries in ``rows`` (n,) may be accepted."""
        return replace(self, chosen=self.chosen & rows)

    @property
    def absent(self) -> Bools:
        """(n,) True for a query without a true match in the gallery."""
        return self.labels >= 0

    @property
    def without_query(self) -> float:
        """The share of absent queries in the stream, and of queries that show a lone item.

        A query with a lone item can be called a match of a wrong label, as an absent query can.
        """
        return self.expected + (1 - self.expected) * self.lone_share

    @cached_property
    def weights(self) -> Floats:
        """Weight (n,) of each query.

        All objects have the same weight. All absent labels have the same weight.
        """
        weights = np.zeros(len(self.labels))
        weights[self.counted] = (1 - self.without_query) / max(self.n_objects, 1)
        weights[self.absent] = self.without_query * self._of_labels
        return weights

    @cached_property
    def n_objects(self) -> int:
        """The number of objects that have a match."""
        return int(self.counted.sum())

    @cached_property
    def n_answered(self) -> int:
        """The number of objects that have a match and are not flagged out of distribution."""
        return int((self.counted & self.chosen).sum())

    @cached_property
    def n_labels(self) -> int:
        """The number of labels of absent queries."""
        return int(self.labels.max(initial=-1)) + 1

    @cached_property
    def _of_labels(self) -> Floats:
        """Weight of each absent query in a mean over labels; each label has the same weight."""
        codes = self.labels[self.absent]
        weights: Floats = 1 / (np.bincount(codes)[codes] * self.n_labels)
        return weights

    def point(self, threshold: float) -> OperatingPoint:
        """Return the operating point of a threshold."""
        return self.point_of(self.probabilities >= threshold, threshold)

    def point_of(self, accepted: Bools, threshold: float) -> OperatingPoint:
        """Return the operating point if the ``accepted`` (n,) queries are called matches."""
        if math.isinf(threshold):  # nothing is accepted
            return OperatingPoint(
                threshold=threshold,
                coverage=0.0,
                error=0.0,
                error_bound=1.0,
                false_match_rate=0.0,
                false_match_bound=0.0,
            )
        accepted = accepted & self.chosen
        coverage, error = self._coverage_and_error(accepted)
        return OperatingPoint(
            threshold=threshold,
            coverage=coverage,
            error=error,
            error_bound=self.error_bound(accepted),
            false_match_rate=self.false_match_rate(accepted),
            false_match_bound=self.false_match_bound(accepted),
        )

    def false_match_rate(self, accepted: Bools) -> float:
        """Return the FPIR that results if the ``accepted`` (n,) queries get the verdict `match`.

        The FPIR is a mean over the absent labels.
        """
        return self._fpir(self._accepted_absent(accepted & self.chosen))

    def false_match_bound(self, accepted: Bools) -> float:
        """Return the upper confidence bound of FPIR."""
        if not self.absence_known:
            return 1.0
        rate = self._accepted_absent(accepted & self.chosen)
        return self._fpir(label_bound(rate, self.n_labels * self.absent_times, self.delta))

    def _accepted_absent(self, accepted: Bools) -> float:
        """Return the observed share of ``accepted`` (n,) absent queries, a mean over labels."""
        return float(self._of_labels @ accepted[self.absent])

    def _fpir(self, rate: float) -> float:
        return min(self.rivals * rate, 1.0)

    def error_bound(self, accepted: Bools) -> float:
        """Return the upper confidence bound of the error among the ``accepted`` queries (n,).

        The bound is the smallest error for which `keeps_error` holds. After a correction by
        feedback, matched and absent queries are counted together.
        """
        accepted = accepted & self.chosen
        if not math.isinf(self.most_effective):
            _, error = self._coverage_and_error(accepted)
            n = min(float((accepted & (self.counted | self.absent)).sum()), self.most_effective)
            return upper_bound(error, n, self.delta)
        return self._test_of(accepted).least(self._level) / _STEPS

    @property
    def _level(self) -> float:
        """The part of δ that the test of the error uses."""
        return (1 - OF_ACCEPTED) * self.delta

    def keeps_error(self, accepted: Bools, max_error: float) -> bool:
        """Return whether the evidence rejects an error above ``max_error`` at level δ."""
        if not math.isinf(self.most_effective):
            return self.error_bound(accepted) <= max_error
        return self.error_p_value(accepted, max_error) <= self._level

    def error_p_value(self, accepted: Bools, max_error: float) -> float:
        r"""Return the p-value of "the error of the ``accepted`` (n,) is above m = ``max_error``".

        Let e be the error among accepted matched queries, A the accepted share of matched queries,
        F the FPIR, and π the share of absent queries. The error is above m if

            e > m − (1 − m) π F / ((1 − π) A)

        For each F, p₁ is the binomial p-value of the observed number of errors. p₂ is the
        Chernoff–Hoeffding p-value of the observed label means. p₁ and p₂ use different queries, so
        their combined p-value is p₁ p₂ (1 − ln p₁ p₂) (Fisher 1925). The result is the largest
        combined p-value over all F. Instead of A, the function uses a lower confidence bound of A.
        The error probability of this bound is δ times `OF_ACCEPTED`.
        """
        return self._test_of(accepted).p_value(max_error)

    def _test_of(self, accepted: Bools) -> _ErrorTest:
        accepted = accepted & self.chosen
        present = accepted & self.counted
        n = int(present.sum())
        wrong = float(self.wrong[present].mean()) if n else 1.0
        return self._test(n, wrong, self._accepted_absent(accepted))

    def _test(self, n: int, wrong: float, rate: float) -> _ErrorTest:
        """Return the test of the error among ``n`` accepted objects.

        ``wrong`` is the observed error among the objects. ``rate`` is the observed share of
        accepted absent queries, as a mean over labels.
        """
        others = 1 - n / max(self.n_objects, 1)
        missed = upper_bound(others, self.n_objects * self.times, OF_ACCEPTED * self.delta)
        share = self.without_query
        odds = share / ((1 - share) * (1 - missed)) if missed < 1 else math.inf
        n_labels = self.n_labels * self.absent_times
        wrong, tested = wrong * n * self.times, n * self.times
        if self.absent_as_likely:
            likely = self._fpir(label_bound(rate, n_labels, 0.5))
            return _ErrorTest(wrong, tested, odds * np.array([likely]), None)
        shares = odds * np.minimum(self.rivals * _RATES[1:], 1.0)
        of_absent = np.ones(len(shares))
        if self.absence_known:
            of_absent = label_p_values(rate, n_labels, _RATES[:-1])
        return _ErrorTest(wrong, tested, shares, of_absent)

    def _coverage_and_error(self, accepted: Bools) -> tuple[float, float]:
        """Return the share of queries that are accepted, and the error among these queries."""
        weight = self.weights[accepted] * np.where(self.absent[accepted], self.rivals, 1.0)
        coverage = float(weight.sum())
        return coverage, float(weight @ self.wrong[accepted]) / coverage if coverage else 0.0

    def curve(self) -> list[OperatingPoint]:
        """Return the risk-coverage curve (El-Yaniv & Wiener 2010), strictest threshold first."""
        distinct = np.unique(self.probabilities)[::-1]
        places = np.unique(np.linspace(0, len(distinct) - 1, N_POINTS).round().astype(int))
        return [self.point(float(threshold)) for threshold in distinct[places]]

    def widest(self, max_error: float) -> float | None:
        """Return the lowest threshold that guarantees an error of at most ``max_error``.

        Thresholds are tested in decreasing order, each at confidence 1 − δ, until a test fails.
        Such a fixed sequence needs no correction for the number of tests (Angelopoulos et al. 2021,
        Learn then Test). The sequence depends on the probabilities of matched queries, but not on
        the outcomes of these queries.

        Returns
        -------
        None if the first threshold does not give the guarantee.
        """
        widest: float | None = None
        for threshold, accepted in self.sequence(max_error):
            if not self.keeps_error(accepted, max_error):
                break
            widest = threshold
        return widest

    def can_keep_error(self, max_error: float) -> bool:
        """Return whether `widest` finds a threshold for ``max_error``."""
        levels = self.sequence(max_error)
        return bool(levels) and self.keeps_error(levels[0][1], max_error)

    def sequence(self, max_error: float) -> Thresholds:
        """Return decreasing thresholds, beginning with the best threshold for the error test.

        The best threshold has the smallest predicted p-value. A higher threshold may accept too few
        queries for the test. If all predicted p-values are too large, the best threshold has the
        smallest predicted upper bound of the error. The predicted error uses the probability of the
        first item, given a match: P / (1 − P(no match)). The predicted FPIR uses the no-match odds
        of matched queries. Among queries with similar signals, these odds are the ratio of absent
        to matched queries in the stream.
        """
        levels = self.thresholds()
        tiny = np.finfo(float).tiny
        any_match = np.maximum(1 - self.no_match, tiny)
        wrong = 1 - np.minimum(self.probabilities / any_match, 1.0)
        odds = (1 - self.expected) / self.expected * self.no_match / any_match
        if not levels:
            return []
        present = np.array([accepted & self.counted for _, accepted in levels], dtype=np.float64)
        sums = present @ np.stack([np.ones(len(wrong)), wrong, odds], axis=1)
        predicted = [
            self._test(int(n), n_wrong / n, min(n_absent / self.n_objects, 1.0))
            for n, n_wrong, n_absent in sums.tolist()
        ]
        best, least = _strongest(predicted, max_error)
        if least > self._level:  # none succeeds
            best = _nearest(predicted, self._level, best)
        return levels[best:]

    def thresholds(self) -> Thresholds:
        """Return the threshold and the accepted queries for each share in `LEVELS`."""
        present = np.sort(self.probabilities[self.counted & self.chosen])[::-1]
        if len(present) == 0:
            return []
        places = np.unique(np.ceil(LEVELS * len(present)).astype(int) - 1)
        levels = []
        for place in places:
            threshold = max(float(present[place]), LEAST_THRESHOLD)
            accepted = self.chosen & (self.probabilities >= threshold)
            if (accepted & self.counted).any():
                levels.append((threshold, accepted))
            if present[place] <= LEAST_THRESHOLD:
                break
        return levels

    def strictest(self, max_false_match_rate: float) -> float | None:
        """Return the lowest threshold that guarantees an FPIR of at most ``max_false_match_rate``.

        FPIR and its bound decrease with the threshold, so no correction for the number of
        thresholds is needed.

        Returns
        -------
        None if there are too few labels of absent queries for the guarantee.
        """
        falling = np.unique(self.probabilities[self.absent & self.chosen])[::-1]
        candidates = [LEAST_THRESHOLD, *np.nextafter(falling[::-1], 2.0).tolist()]
        last = len(candidates) - 1

        def is_kept(place: int) -> bool:
            accepted = self.probabilities >= candidates[place]
            return self.false_match_bound(accepted) <= max_false_match_rate

        if not is_kept(last):
            return None
        return max(float(candidates[first_where(is_kept, 0, last)]), LEAST_THRESHOLD)

    def is_lowered_by_feedback(self, max_error: float) -> bool:
        """Return whether only the correction by feedback prevents an error of ``max_error``."""
        if self.uncorrected is None or self.can_keep_error(max_error):
            return False
        before = self.uncorrected.at_rows(self.chosen)
        streams = before, before.taking_absent_as_likely()
        return any(one.can_keep_error(max_error) for one in streams)

    def taking_absent_as_likely(self) -> Stream:
        """Return the stream with `absent_as_likely`."""
        return replace(self, absent_as_likely=True)

    def queries_needed(self, max_error: float) -> int | None:
        """Return the number of objects that a guarantee of ``max_error`` needs.

        The function assumes that the additional objects have the same shares of right and wrong
        answers as the present objects.

        Returns
        -------
        None if the number is more than `MANY_TIMES` times the present number of objects.
        """
        times = self.multiple(max_error, of_labels=False)
        return None if times is None else math.ceil(times * self.n_answered)

    def multiple(self, max_error: float, *, of_labels: bool) -> float | None:
        """Return the factor by which the queries must be multiplied to guarantee ``max_error``.

        Parameters
        ----------
        of_labels : whether the factor also multiplies the number of labels of absent queries. The
            factor always multiplies the number of objects.

        Returns
        -------
        None if the factor is above `MANY_TIMES`.
        """

        def is_enough(steps: int) -> bool:
            times = _STEP**steps
            return self.multiplied(times, times if of_labels else 1).can_keep_error(max_error)

        most = math.ceil(math.log(MANY_TIMES) / math.log(_STEP))
        steps = first_where(is_enough, 1, most + 1)
        return _STEP**steps if steps <= most else None

    def possible_share(self, max_error: float) -> float | None:
        """Return a smaller share of absent queries that allows a guarantee of ``max_error``.

        Returns
        -------
        The largest such share of `SMALLER_SHARES`; None if too many first items are wrong.
        """
        smaller = (share for share in SMALLER_SHARES if share < self.expected)
        return next((one for one in smaller if self.at_share(one).can_keep_error(max_error)), None)

    def at_share(self, share: float) -> Stream:
        """Return the stream with another ``share`` of absent queries.

        Probabilities that feedback has corrected are shifted after the correction, not before.
        """
        shift = prior_shift(self.expected, share)
        probabilities = shifted(self.probabilities, self.no_match, shift)
        return replace(
            self,
            probabilities=probabilities,
            no_match=1 - shifted(1 - self.no_match, self.no_match, shift),
            wrong=self.wrong if math.isinf(self.most_effective) else 1 - probabilities,
            expected=share,
        )

    def multiplied(self, times: float, absent_times: float) -> Stream:
        """Return the stream as if more queries had been observed.

        The number of objects is multiplied by ``times``, and the number of absent labels is
        multiplied by ``absent_times``.
        """
        return replace(self, times=times, absent_times=absent_times)


def label_bound(rate: float, n_labels: float, delta: float) -> float:
    """Return the upper confidence bound of a rate, observed as a mean of ``n_labels`` labels.

    The bound is the largest rate whose p-value (`label_p_values`) is above ``delta``. A bound of at
    most f needs at least log δ / log(1 − f) labels.
    """
    if n_labels <= 0:
        return 1.0
    most = -math.log(delta) / n_labels  # the maximum divergence
    low, high = rate, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        of_rate = rate * math.log(rate / middle) if rate else 0.0
        kept = of_rate + (1 - rate) * math.log((1 - rate) / (1 - middle)) <= most
        low, high = (middle, high) if kept else (low, middle)
    return high


def label_p_values(rate: float, n_labels: float, rates: Floats) -> Floats:
    """Return p-values (m,) of "the mean over all labels is at least f", for f in ``rates`` (m,).

    The bound by Chernoff and Hoeffding is exp(−n KL(rate ‖ f)). The bound allows any dependence
    between queries of one label.

    Parameters
    ----------
    rate : observed mean over ``n_labels`` labels. The value of a label is the mean over its
        queries.
    """
    if n_labels <= 0:
        return np.ones(len(rates))
    entropy = float(xlogy(rate, rate) + xlogy(1 - rate, 1 - rate))
    divergence = entropy - xlogy(rate, rates) - xlogy(1 - rate, 1 - rates)
    p_values: Floats = np.exp(-n_labels * np.where(rates > rate, divergence, 0.0))
    return p_values


MOST_ADVISED = 10**9
"""Largest number of queries that advice asks for. The number for a tiny error may be infinite."""


def least_queries(max_error: float, delta: float) -> int:
    """Return the number of queries that guarantee ``max_error`` if all answers are right.

    For an error ε, the number is log δ / log(1 − ε), rounded up.
    """
    return math.ceil(min(math.log(delta) / math.log1p(-max_error), MOST_ADVISED))


def upper_bound(share: float, n: float, delta: float) -> float:
    """Return the upper confidence bound of a share that was observed among ``n`` queries.

    The bound is exact for integer counts (Clopper & Pearson 1934), and interpolated between
    integers.
    """
    if n <= 0 or share >= 1:
        return 1.0
    return float(betaincinv(share * n + 1, (1 - share) * n, 1 - delta))


def exact_interval(share: float, n: float, confidence: float) -> tuple[float, float]:
    """Return the confidence interval of a share observed among ``n`` (Clopper & Pearson 1934)."""
    tail = (1 - confidence) / 2
    return 1 - upper_bound(1 - share, n, tail), upper_bound(share, n, tail)


def errors_allowed(n: int, coverage: float, delta: float) -> int:
    """Return the maximum number of errors among ``n`` queries at which ``coverage`` is guaranteed.

    The result is −1 if no number guarantees the coverage. With the returned number of errors, the
    exact binomial test at level δ rejects "the error is above 1 − coverage".
    """
    if n <= 0 or coverage >= 1:
        return -1
    # `bdtrik` can be just below an integer, so the search begins one above.
    allowed = math.floor(bdtrik(delta, n, 1 - coverage)) + 1
    while allowed >= 0 and at_most(allowed, n, np.array([1 - coverage]))[0] > delta:
        allowed -= 1
    return allowed


def at_most(k: float, n: float, rates: Floats) -> Floats:
    """Return the probability (m,) of at most ``k`` errors among ``n``, for each error rate.

    The result is the binomial distribution function, interpolated between integers. The function
    does not use scipy.stats, because that import takes a third of a second.
    `betaincc(k + 1, n - k, rates)` is the same number, but takes ten times as long.
    """
    return np.ones(len(rates)) if k >= n else np.asarray(betainc(n - k, k + 1, 1 - rates))
