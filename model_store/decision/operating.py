"""Operating points: how often to answer, and how often to be wrong when answering.

Labels and objects are what varies. Absent queries of one label are right or wrong together, and so
are photographs of one object: bounds count one query of each object, and the mean of each absent
label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, betaincc, betaincinv, xlogy

from model_store.decision.absent_share import prior_shift, shifted
from model_store.decision.crossing import first_where
from model_store.decision.evidence import Evidence
from model_store.decision.recalibration import Recalibration

LEAST_THRESHOLD = 0.5
"""A match is likelier than not, whatever error its owner accepts."""

LEVELS = np.linspace(0.05, 1.0, 77)
"""Shares of the queries with a match that are accepted, from the first to the last tested."""

N_POINTS = 200
"""Points of the risk-coverage curve."""

OF_ACCEPTED = 0.05
"""Part of δ for the share of queries with a match that is accepted. The test of an error has the
rest."""

_RATES = np.r_[0.0, np.geomspace(1e-4, 1.0, 255)]
"""FPIR at which the test of an error is computed."""

_STRIDE = 10
"""One in so many of these rates is tried before those next to the best."""

_STEPS = 10**5
"""Parts of an error of 1 to which its bound is given."""

MANY_TIMES = 50.0
"""Multiple of the calibration queries beyond which no number of them is planned."""

_STEP = 1.1
"""Factor between two numbers of queries that are planned."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
PValue = Callable[[float], float]
"""The p-value, by error, of "the error is above it"."""

Thresholds = Sequence[tuple[float, Bools]]
"""Falling ones, and which queries each accepts."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The rates that follow from calling first items a match from some probability on.

    Attributes
    ----------
    threshold : on the match probability.
    coverage : share of all queries whose first item is called a match.
    error : share of wrong ones among these matches.
    error_bound : upper confidence bound of ``error``, see `Stream.error_p_value`.
    false_match_rate : FPIR, the share of absent queries whose first item is called a match, as a
        mean over labels.
    false_match_bound : upper confidence bound of it, see `label_bound`. Both are None where nothing
        is known of absent queries.
    """

    threshold: float
    coverage: float
    error: float
    error_bound: float
    false_match_rate: float | None
    false_match_bound: float | None


@dataclass(frozen=True)
class Stream:
    """Calibration queries, weighted to a stream with a stated share of absent queries.

    Attributes
    ----------
    probabilities : (n,) match probability of each first item, at that share.
    no_match : (n,) P(no match), at that share.
    wrong : (n,) probability that the first item is no true match: 0 or 1 as observed; after a
        correction by feedback, which says that the observed outcomes no longer hold, one minus the
        corrected probability.
    counted : (n,) one query, drawn at random, of each object that has a match.
    labels : (n,) number, from 0, of the label of each absent query; −1 of others.
    chosen : (n,) queries that may be accepted: those not flagged out of distribution; rates
        are shares of all queries.
    expected : share of absent queries.
    absence_known : whether the absent queries say anything of others.
    rivals : see `Evidence`: by so much more often than these an absent query is accepted.
    most_effective : the evidence counts as no more queries than this.
    delta : one minus the confidence of all bounds.
    times, absent_times : how many objects and labels each of them counts as, in plans.
    absent_as_likely : whether FPIR is taken to be what it exceeds with probability ½ at most. Then
        nothing is guaranteed of absent queries.
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
        """Weigh ``evidence`` to a share ``expected`` of absent queries, ``assumed`` by its fit.

        Queries that are flagged out of distribution at ``alpha`` are not accepted.
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
        )

    def at_rows(self, rows: Bools) -> Stream:
        """Return the stream of which none but queries in ``rows`` (n,) may be accepted."""
        return replace(self, chosen=self.chosen & rows)

    @property
    def absent(self) -> Bools:
        """(n,) whether the gallery holds no true match."""
        return self.labels >= 0

    @cached_property
    def weights(self) -> Floats:
        """Weight (n,) of each query in the stream: of objects and of labels each the same."""
        weights = np.zeros(len(self.labels))
        weights[self.counted] = (1 - self.expected) / max(self.n_objects, 1)
        weights[self.absent] = self.expected * self._of_labels
        return weights

    @cached_property
    def n_objects(self) -> int:
        """The number of objects that have a match."""
        return int(self.counted.sum())

    @cached_property
    def n_labels(self) -> int:
        """The number of labels of absent queries."""
        return int(self.labels.max(initial=-1)) + 1

    @cached_property
    def _of_labels(self) -> Floats:
        """Weight of each absent query in a mean of label means."""
        codes = self.labels[self.absent]
        weights: Floats = 1 / (np.bincount(codes)[codes] * max(self.n_labels, 1))
        return weights

    def point(self, threshold: float) -> OperatingPoint:
        """Return what a threshold leads to."""
        return self.point_of(self.probabilities >= threshold, threshold)

    def point_of(self, accepted: Bools, threshold: float) -> OperatingPoint:
        """Return what accepting some of the queries (n,) leads to, by whatever ``threshold``."""
        if math.isinf(threshold):  # nothing is accepted, and nothing will be
            return OperatingPoint(threshold, 0.0, 0.0, 1.0, 0.0, 0.0)
        accepted = accepted & self.chosen
        coverage, error = self._coverage_and_error(accepted)
        return OperatingPoint(
            threshold,
            coverage,
            error,
            self.error_bound(accepted),
            self.false_match_rate(accepted),
            self.false_match_bound(accepted),
        )

    def false_match_rate(self, accepted: Bools) -> float:
        """Return the mean, over labels of absent queries, of the share that is ``accepted``."""
        rate = float(self._of_labels @ (accepted & self.chosen)[self.absent])
        return min(self.rivals * rate, 1.0)

    def false_match_bound(self, accepted: Bools) -> float:
        """Return the upper confidence bound of FPIR."""
        if not self.absence_known:
            return 1.0
        rate = float(self._of_labels @ (accepted & self.chosen)[self.absent])
        return self._fpir(label_bound(rate, self.n_labels * self.absent_times, self.delta))

    def _fpir(self, rate: float) -> float:
        return min(self.rivals * rate, 1.0)

    def error_bound(self, accepted: Bools) -> float:
        """Return the upper confidence bound of the error among the ``accepted`` (n,).

        It is the least error that `keeps_error`. After a correction by feedback the evidence is of
        both kinds of queries together.
        """
        accepted = accepted & self.chosen
        if not math.isinf(self.most_effective):
            _, error = self._coverage_and_error(accepted)
            n = min(float((accepted & (self.counted | self.absent)).sum()), self.most_effective)
            return upper_bound(error, n, self.delta)
        return self._least_step(self._p_values_of(accepted), 0, _STEPS) / _STEPS

    def _least_step(self, p_value: PValue, start: int, stop: int) -> int:
        """Return the least step of errors above which errors are rejected; ``stop`` if none is."""
        return first_where(lambda step: self._rejects(p_value, step), start, stop)

    def _rejects(self, p_value: PValue, step: int) -> bool:
        return p_value(step / _STEPS) <= (1 - OF_ACCEPTED) * self.delta

    def _nearest(self, p_values: Sequence[PValue], start: int, likely: int) -> int:
        """Return the place of the evidence that rejects the least error; the first of equals.

        A search is needed only where an error below the least so far is rejected.

        Parameters
        ----------
        start : a step of errors that none rejects.
        likely : a place that comes near, to begin with.
        """
        best, least = likely, self._least_step(p_values[likely], start, _STEPS)
        for place, p_value in enumerate(p_values):
            stop = least if place < best else least - 1
            if place != likely and self._rejects(p_value, stop):
                best, least = place, self._least_step(p_value, start, stop)
        return best

    def keeps_error(self, accepted: Bools, max_error: float) -> bool:
        """Return whether the evidence rejects an error above ``max_error`` at level δ."""
        if not math.isinf(self.most_effective):
            return self.error_bound(accepted) <= max_error
        return self.error_p_value(accepted, max_error) <= (1 - OF_ACCEPTED) * self.delta

    def error_p_value(self, accepted: Bools, max_error: float) -> float:
        r"""Return the p-value of "the error among the ``accepted`` (n,) is above ``max_error``" m.

        With the error e among queries with a match that are accepted, the share A of them, FPIR F
        and the share π of absent queries, the error is above m where

            e > m − (1 − m) π F / ((1 − π) A)

        At each F, a binomial test says how likely so few errors are (p₁), and the bound by Chernoff
        and Hoeffding how likely such label means are (p₂). Both are of different queries, so that
        p₁ p₂ (1 − ln p₁ p₂) is the p-value of both (Fisher 1925). The largest over F counts. Of A,
        the lower bound at its part of δ is taken.
        """
        return self._p_values_of(accepted)(max_error)

    def _p_values_of(self, accepted: Bools) -> PValue:
        accepted = accepted & self.chosen
        present = accepted & self.counted
        n = int(present.sum())
        wrong = float(self.wrong[present].mean()) if n else 1.0
        return self._p_values(n, wrong, float(self._of_labels @ accepted[self.absent]))

    def _p_values(self, n: int, wrong: float, rate: float) -> PValue:
        """Return the p-value, by error, of ``n`` accepted objects, at a ``rate`` of labels seen.

        What does not depend on the error is computed once.
        """
        others = 1 - n / max(self.n_objects, 1)
        missed = upper_bound(others, self.n_objects * self.times, OF_ACCEPTED * self.delta)
        if missed >= 1:
            return lambda _: 1.0
        odds = self.expected / ((1 - self.expected) * (1 - missed))
        n_labels = self.n_labels * self.absent_times
        rates, of_absent = _RATES, np.ones(len(_RATES))
        if self.absent_as_likely:
            rates = np.array([label_bound(rate, n_labels, 0.5)])
        elif self.absence_known:
            of_absent = label_p_values(rate, n_labels, _RATES)
        share = odds * np.minimum(self.rivals * rates, 1.0)

        def of_present(max_error: float, share: Floats) -> Floats:
            left = max_error - (1 - max_error) * share
            return at_most(wrong * n * self.times, n * self.times, np.maximum(left, 0.0))

        if self.absent_as_likely:
            return lambda max_error: float(of_present(max_error, share)[0])
        # Between two rates, the worse of both. The binomial p-value rises with the rate and ends at
        # 1, that of labels falls from 1: the largest product lies from where the latter begins to
        # fall to where the former is 1.
        first = int(np.searchsorted(-of_absent[:-1], -1.0, side="right")) - 1
        share, of_absent = share[1:][first:], of_absent[:-1][first:]

        def p_value(max_error: float) -> float:
            last = int(np.searchsorted((1 - max_error) * share, max_error)) + 1
            # Both are log-concave in the rate: the largest product is near the largest of some.
            # The step from rate 0 is another; products too small for a float are no guide.
            products = of_present(max_error, share[:last:_STRIDE]) * of_absent[:last:_STRIDE]
            best = int(products.argmax())
            near = slice(0, last)
            if products[best] > 0:
                near = slice(max(best - 1, 0) * _STRIDE, min(max(best + 1, 2) * _STRIDE, last))
            both = float((of_present(max_error, share[near]) * of_absent[near]).max())
            return both * (1 - math.log(both)) if both > 0 else 0.0

        return p_value

    def _coverage_and_error(self, accepted: Bools) -> tuple[float, float]:
        """Return the share of the stream that is accepted, and the share of it that is wrong."""
        weight = self.weights[accepted] * np.where(self.absent[accepted], self.rivals, 1.0)
        coverage = float(weight.sum())
        return coverage, float(weight @ self.wrong[accepted]) / coverage if coverage else 0.0

    def curve(self) -> list[OperatingPoint]:
        """Return the risk-coverage curve (El-Yaniv & Wiener 2010), from the strictest on."""
        distinct = np.unique(self.probabilities)[::-1]
        places = np.unique(np.linspace(0, len(distinct) - 1, N_POINTS).round().astype(int))
        return [self.point(float(threshold)) for threshold in distinct[places]]

    def widest(self, max_error: float) -> float | None:
        """Return the lowest threshold that promises an error of at most ``max_error``.

        Thresholds are tested from a strict one on, each by the upper bound of its error at
        confidence 1 − δ, until one is not rejected: a fixed sequence, which needs no correction
        for the number of tests (Angelopoulos et al. 2021, Learn then Test). The sequence depends on
        the probabilities of queries with a match, not on what was right.

        Returns
        -------
        None where not even the first can be promised.
        """
        widest: float | None = None
        for threshold, accepted in self.sequence(max_error):
            if not self.keeps_error(accepted, max_error):
                break
            widest = threshold
        return widest

    def sequence(self, max_error: float) -> Thresholds:
        """Return falling thresholds, from that on whose predicted outcome shows the error best.

        A stricter one has too few queries to show what a less strict one can. Errors are predicted
        by the probability of the first item given that the query has a match, P / (1 − P(no
        match)); FPIR by the odds of no match of queries that have one, since at each point of the
        stream these odds are those of absent queries to others.
        """
        levels = self.thresholds()
        tiny = np.finfo(float).tiny
        any_match = np.maximum(1 - self.no_match, tiny)
        wrong = 1 - np.minimum(self.probabilities / any_match, 1.0)
        odds = (1 - self.expected) / self.expected * self.no_match / any_match
        if not levels:
            return []
        foretold = []
        for _, accepted in levels:
            present = accepted & self.counted
            rate = min(float(odds[present].sum()) / max(self.n_objects, 1), 1.0)
            foretold.append(self._p_values(int(present.sum()), float(wrong[present].mean()), rate))
        values = [p_value(max_error) for p_value in foretold]
        best = int(np.argmin(values))
        if values[best] > (1 - OF_ACCEPTED) * self.delta:  # none shows it: which comes nearest?
            best = self._nearest(foretold, int(max_error * _STEPS), best)
        return levels[best:]

    def thresholds(self) -> Thresholds:
        """Return falling thresholds, by the shares `LEVELS` that are accepted, and who is."""
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
        """Return the lowest threshold that promises a FPIR of at most ``max_false_match_rate``.

        FPIR and its bound fall with the threshold, so that no correction is needed.

        Returns
        -------
        None where there are too few labels of absent queries to promise it.
        """
        falling = np.unique(self.probabilities[self.absent & self.chosen])[::-1]
        candidates = [LEAST_THRESHOLD, *np.nextafter(falling[::-1], 2.0).tolist()]
        low, high = 0, len(candidates) - 1
        if self._rate_bound_at(candidates[high]) > max_false_match_rate:
            return None
        while low < high:
            middle = (low + high) // 2
            if self._rate_bound_at(candidates[middle]) <= max_false_match_rate:
                high = middle
            else:
                low = middle + 1
        return max(float(candidates[low]), LEAST_THRESHOLD)

    def _rate_bound_at(self, threshold: float) -> float:
        return self.false_match_bound(self.probabilities >= threshold)

    def taking_absent_as_likely(self) -> Stream:
        """Return the stream with `absent_as_likely`."""
        return replace(self, absent_as_likely=True)

    def queries_needed(self, max_error: float) -> int | None:
        """Plan how many objects with a match, with these outcomes, would promise ``max_error``.

        Returns
        -------
        None where no number up to `MANY_TIMES` as many would.
        """
        times = self.multiple(max_error, of_labels=False)
        return None if times is None else math.ceil(times * int((self.counted & self.chosen).sum()))

    def multiple(self, max_error: float, *, of_labels: bool) -> float | None:
        """Return how many times the evidence, with these outcomes, promises ``max_error``.

        Parameters
        ----------
        of_labels : whether there are more labels of absent queries beside more objects.

        Returns
        -------
        None where no number up to `MANY_TIMES` would.
        """

        def is_enough(steps: int) -> bool:
            times = _STEP**steps
            stream = self.multiplied(times, times if of_labels else 1)
            levels = stream.sequence(max_error)
            return bool(levels) and stream.keeps_error(levels[0][1], max_error)

        most = math.ceil(math.log(MANY_TIMES) / math.log(_STEP))
        steps = first_where(is_enough, 1, most + 1)
        return _STEP**steps if steps <= most else None

    def multiplied(self, times: float, absent_times: float) -> Stream:
        """Return the stream with each object and each absent label counting as several."""
        return replace(self, times=times, absent_times=absent_times)


def label_bound(rate: float, n_labels: float, delta: float) -> float:
    """Return the upper confidence bound of a rate that is the mean of ``n_labels`` label means.

    It is the largest rate whose `label_p_values` are above ``delta``. Below log δ / log(1 − f)
    labels no bound at f exists.
    """
    if n_labels <= 0 or rate >= 1:
        return 1.0
    most = -math.log(delta) / n_labels  # of the divergence; in scalars, since plans ask thousands
    low, high = rate, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        of_rate = rate * math.log(rate / middle) if rate else 0.0
        kept = of_rate + (1 - rate) * math.log((1 - rate) / (1 - middle)) <= most
        low, high = (middle, high) if kept else (low, middle)
    return high


def label_p_values(rate: float, n_labels: float, rates: Floats) -> Floats:
    """Return the p-values (m,) of "the mean over all labels is at least" each of ``rates`` (m,).

    Chernoff and Hoeffding: exp(−n KL(rate ‖ f)), valid whatever the queries of one label have in
    common.

    Parameters
    ----------
    rate : mean of the means of ``n_labels`` labels.
    """
    if n_labels <= 0:
        return np.ones(len(rates))
    entropy = float(xlogy(rate, rate) + xlogy(1 - rate, 1 - rate))
    divergence = entropy - xlogy(rate, rates) - xlogy(1 - rate, 1 - rates)
    p_values: Floats = np.exp(-n_labels * np.where(rates > rate, divergence, 0.0))
    return p_values


def least_queries(max_error: float, delta: float) -> float:
    """Return how many queries without any error promise ``max_error``: log δ / log(1 − ε)."""
    return math.log(delta) / math.log1p(-max_error)


def upper_bound(share: float, n: float, delta: float) -> float:
    """Return the upper confidence bound of a share that was seen among ``n`` queries.

    Exact for whole numbers (Clopper & Pearson 1934), and its continuation in between.
    """
    if n <= 0 or share >= 1:
        return 1.0
    return float(betaincinv(share * n + 1, (1 - share) * n, 1 - delta))


def exact_interval(share: float, n: float, confidence: float) -> tuple[float, float]:
    """Return what a share that was seen among ``n`` lies between (Clopper & Pearson 1934)."""
    tail = (1 - confidence) / 2
    return 1 - upper_bound(1 - share, n, tail), upper_bound(share, n, tail)


def errors_allowed(n: int, coverage: float, delta: float) -> int:
    """Return the largest number of errors among ``n`` that still promises ``coverage``; −1: none.

    The exact binomial test of "the error is above 1 − coverage" at level δ rejects with so many.
    """
    if n <= 0 or coverage >= 1:
        return -1
    allowed = math.floor(bdtrik(delta, n, 1 - coverage))
    if at_most(allowed, n, np.array([1 - coverage]))[0] > delta:
        allowed -= 1
    return max(allowed, -1)


def at_most(k: float, n: float, rates: Floats) -> Floats:
    """Return the probability (m,) of at most ``k`` errors among ``n``, each of ``rates`` (m,).

    The binomial distribution function, continued between whole numbers; importing scipy.stats for
    it takes a third of a second.
    """
    return np.ones(len(rates)) if k >= n else np.asarray(betaincc(k + 1, n - k, rates))
