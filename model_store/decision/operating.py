"""Operating points: how often to answer, and how often to be wrong when answering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrik, betaincc, betaincinv

from model_store.decision.absent_share import prior_shift, shifted
from model_store.decision.evidence import Evidence, design_effect
from model_store.decision.recalibration import Recalibration

LEAST_THRESHOLD = 0.5
"""A match is likelier than not, whatever error its owner accepts."""

LEVELS = np.linspace(0.3, 1.0, 15)
"""Shares of the queries with a match that are accepted, from the first to the last tested: fewer
than the first carry too little evidence to begin with."""

N_POINTS = 200
"""Points of the risk-coverage curve."""

LIKELY = 0.8
"""Probability with which a planned number of queries is enough."""

BELIEVED = 4
"""Errors that probabilities are believed for when they expect others than are seen: of fewer the
plan would follow chance. Chosen in view of Omniglot and of evidence that is well calibrated."""

_MOST_PLANNED = 100_000
"""Queries beyond which no plan is made."""

Floats = NDArray[np.float64]
Thresholds = Sequence[tuple[float, NDArray[np.bool_]]]
"""Falling ones, and which queries each accepts."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The rates that follow from calling first items a match from some probability on.

    Attributes
    ----------
    threshold : on the match probability.
    coverage : share of all queries whose first item is called a match.
    error : share of wrong ones among these matches.
    error_bound : upper confidence bound of ``error`` (Clopper & Pearson 1934).
    false_match_rate : FPIR, P(the first item of the next absent query is called a match).
    false_match_bound : upper confidence bound of it. Both are None where nothing is known of absent
        queries.
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
    wrong : (n,) probability that this item is no true match: 0 or 1 as observed; after a correction
        by feedback, which says that the observed outcomes no longer hold, one minus the corrected
        probability.
    absent : (n,) whether the gallery holds no true match.
    weights : (n,) summing to 1 over the whole stream.
    design_effects : (n,) how many times too many each counts as evidence.
    rivals : see `Evidence`: by so much more often than these an absent query is accepted.
    most_effective : the evidence counts as no more queries than this.
    delta : one minus the confidence of all bounds.
    """

    probabilities: Floats
    wrong: Floats
    absent: NDArray[np.bool_]
    weights: Floats
    design_effects: Floats
    rivals: float
    most_effective: float
    delta: float

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        assumed: float,
        expected: float,
        feedback: Recalibration,
        delta: float,
    ) -> Stream:
        """Weigh ``evidence`` to a share ``expected`` of absent queries, ``assumed`` by its fit."""
        moved = shifted(
            evidence.first_probabilities,
            evidence.no_match_probabilities,
            prior_shift(assumed, expected),
        )
        probabilities = feedback.of(moved)
        weights, effects = np.empty(len(evidence)), np.empty(len(evidence))
        for rows, share in ((~evidence.absent, 1 - expected), (evidence.absent, expected)):
            weights[rows] = share / max(int(rows.sum()), 1)
            effects[rows] = design_effect(
                evidence.first_probabilities[rows], evidence.clusters[rows]
            )
        observed = (~evidence.correct).astype(np.float64)
        return cls(
            probabilities,
            observed if feedback.is_identity else 1 - probabilities,
            evidence.absent,
            weights,
            effects,
            evidence.rivals,
            math.inf if feedback.is_identity else float(feedback.n_pairs),
            delta,
        )

    def at_rows(self, rows: NDArray[np.bool_]) -> Stream:
        """Return the part of the stream in ``rows`` (n,), with its weights as they are."""
        return Stream(
            self.probabilities[rows],
            self.wrong[rows],
            self.absent[rows],
            self.weights[rows],
            self.design_effects[rows],
            self.rivals,
            self.most_effective,
            self.delta,
        )

    def point(self, threshold: float) -> OperatingPoint:
        """Return what a threshold leads to."""
        return self.point_of(self.probabilities >= threshold, threshold)

    def point_of(self, accepted: NDArray[np.bool_], threshold: float) -> OperatingPoint:
        """Return what accepting some of the queries (n,) leads to, by whatever ``threshold``."""
        if math.isinf(threshold):  # nothing is accepted, and nothing will be
            return OperatingPoint(threshold, 0.0, 0.0, 1.0, 0.0, 0.0)
        coverage, error = self._coverage_and_error(accepted)
        n_absent, n_false = int(self.absent.sum()), int((accepted & self.absent).sum())
        rate = n_false / max(n_absent, 1)
        n = self.n_absent_effective
        bound = upper_bound(rate, n, self.delta)
        return OperatingPoint(
            threshold,
            coverage,
            error,
            self.error_bound(accepted),
            min(self.rivals * next_share(rate, n), 1.0),
            min(self.rivals * bound, 1.0),
        )

    def error_bound(self, accepted: NDArray[np.bool_]) -> float:
        """Return the upper confidence bound of the error among the ``accepted`` (n,).

        The share of wrong ones e among the accepted with a match, of weight A, and the weight F of
        absent queries that are accepted are bounded by themselves (Clopper & Pearson 1934) and put
        together by the method of variance estimates recovery (Zou & Donner 2008): ε is excluded
        where A (e − ε) + F (1 − ε) is positive by more than what their bounds leave open. After a
        correction by feedback the evidence is of both together.
        """
        if not math.isinf(self.most_effective):
            _, error = self._coverage_and_error(accepted)
            return upper_bound(error, self.n_effective(accepted), self.delta)
        right = accepted & ~self.absent
        weight = float(self.weights[right].sum())
        effective = float((1 / self.design_effects[right]).sum())
        wrong = float(self.wrong[right].mean()) if right.any() else 0.0
        by_wrong = upper_bound(wrong, effective, self.delta) - wrong
        n_absent = int(self.absent.sum())
        rate = int((accepted & self.absent).sum()) / max(n_absent, 1)
        of_absent = self.rivals * float(self.weights[self.absent].sum())
        by_rate = upper_bound(rate, self.n_absent_effective, self.delta) - rate
        # The largest u = 1 − ε with (A + F) u + hypot(p, q u) = A (1 − e), a quadratic equation.
        known, total = weight * (1 - wrong), weight + of_absent * rate
        p, q = weight * by_wrong, of_absent * by_rate  # q is 0 where no query is absent
        if known <= p:
            return 1.0
        rest = (known - p) * (known + p)
        return 1 - rest / (known * total + math.sqrt((total * p) ** 2 + q**2 * rest))

    def _coverage_and_error(self, accepted: NDArray[np.bool_]) -> tuple[float, float]:
        """Return the share of the stream that is accepted, and the share of it that is wrong."""
        weight = self.weights[accepted] * np.where(self.absent[accepted], self.rivals, 1.0)
        coverage = float(weight.sum())
        return coverage, float(weight @ self.wrong[accepted]) / coverage if coverage else 0.0

    def n_effective(self, accepted: NDArray[np.bool_]) -> float:
        """Return how many independent, equally weighted queries the accepted are worth.

        (Σ w)² / Σ w² d, with d the design effects (Kish 1965).
        """
        weight = self.weights[accepted]
        squares = float(weight**2 @ self.design_effects[accepted])
        return min(float(weight.sum()) ** 2 / squares, self.most_effective) if squares else 0.0

    @property
    def n_absent_effective(self) -> float:
        """The number of independent queries that the absent ones are worth."""
        return float((1 / self.design_effects[self.absent]).sum())

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
        the probabilities alone, not on what was right.

        Returns
        -------
        None where not even the first can be promised.
        """
        return self.last_promised(self._sequence(max_error), max_error)

    def last_promised(self, sequence: Thresholds, max_error: float) -> float | None:
        """Return the last threshold of ``sequence`` before the first that is not promised."""
        widest: float | None = None
        for threshold, accepted in sequence:
            if self.error_bound(accepted) > max_error:
                break
            widest = threshold
        return widest

    def _sequence(self, max_error: float) -> Thresholds:
        """Return falling thresholds and who is accepted, from the likeliest to be promised on.

        A stricter one has too few queries to show what a less strict one can, and what comes first
        decides.
        """
        levels = self.thresholds()
        foretold = [self._foretold(accepted) for _, accepted in levels]
        chances = [chance(n, error, max_error, self.delta) for n, error in foretold]
        return levels[int(np.argmax(chances)) :] if any(chances) else []

    def thresholds(self, shares: Floats = LEVELS) -> Thresholds:
        """Return falling thresholds, by ``shares`` that are accepted, and who is accepted."""
        present = np.sort(self.probabilities[~self.absent])[::-1]
        if len(present) == 0:
            return []
        places = np.unique(np.ceil(shares * len(present)).astype(int) - 1)
        levels = []
        for place in places:
            threshold = max(float(present[place]), LEAST_THRESHOLD)
            accepted = self.probabilities >= threshold
            if accepted.any():
                levels.append((threshold, accepted))
            if present[place] <= LEAST_THRESHOLD:
                break
        return levels

    def _foretold(self, accepted: NDArray[np.bool_]) -> tuple[float, float]:
        """Return what accepting these is worth in queries, and the error to be expected of it.

        By their calibrated probabilities, whatever was right.
        """
        weight = self.weights[accepted]
        error = float(weight @ (1 - self.probabilities[accepted]) / weight.sum())
        return self.n_effective(accepted), error

    def strictest(self, max_false_match_rate: float) -> float | None:
        """Return the lowest threshold that promises a FPIR of at most ``max_false_match_rate``.

        An order statistic of the absent queries' probabilities: FPIR falls with the threshold, so
        that no correction is needed.

        Returns
        -------
        None where there are too few absent queries to promise it.
        """
        falling = np.sort(self.probabilities[self.absent])[::-1]
        allowed = errors_allowed(
            len(falling),
            self.n_absent_effective,
            1 - max_false_match_rate / self.rivals,
            self.delta,
        )
        if allowed < 0:
            return None
        return max(float(np.nextafter(falling[allowed], 2.0)), LEAST_THRESHOLD)

    def queries_needed(self, max_error: float) -> int | None:
        """Plan how many calibration queries with a match are likely to promise ``max_error``.

        A number is enough where the first threshold of the sequence passes with probability
        `LIKELY`. Its error is what its probabilities expect times how many more of the accepted
        are wrong than they expect, with `BELIEVED` more on either side.

        Returns
        -------
        None where no number up to a hundred thousand would do.
        """
        n_present = int((~self.absent).sum())
        levels = [accepted for _, accepted in self.thresholds()]
        foretold = [self._foretold(accepted) for accepted in levels]
        likely = []
        for accepted, (n, error) in zip(levels, foretold, strict=True):
            _, observed = self._coverage_and_error(accepted)
            likely.append(error * (observed * n + BELIEVED) / (error * n + BELIEVED))
        planned = float(min(least_queries(max_error, self.delta), 10))
        while levels and planned < _MOST_PLANNED:
            counts = [n * planned / n_present for n, _ in foretold]
            chances = [
                chance(n, error, max_error, self.delta)
                for n, (_, error) in zip(counts, foretold, strict=True)
            ]
            first = int(np.argmax(chances))
            if chance(counts[first], likely[first], max_error, self.delta) >= LIKELY:
                return math.ceil(planned)
            planned *= 1.05
        return None


def chance(n: float, error: float, max_error: float, delta: float) -> float:
    """Return how likely ``n`` queries, wrong with probability ``error``, promise ``max_error``."""
    effective = math.floor(n)
    allowed = errors_allowed(effective, effective, 1 - max_error, delta)
    return _at_most(allowed, effective, error) if allowed >= 0 else 0.0


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


def next_share(share: float, n: float) -> float:
    """Return the probability that the next query is of a share that was seen among ``n``.

    (k + 1) / (n + 1) with k = ``share`` n: of n + 1 exchangeable queries each is as likely as any
    to be the last, and a threshold that was chosen just above the others lets one more through.
    """
    return (share * n + 1) / (n + 1) if n > 0 else share


def errors_allowed(n_queries: int, n_effective: float, coverage: float, delta: float) -> int:
    """Return the largest number of errors that still promises ``coverage``; −1 for none.

    The exact binomial test of "the error is above 1 − coverage" at level δ rejects with so many of
    ``n_queries``, which are worth ``n_effective`` independent ones.
    """
    n = math.floor(round(n_effective, 6))  # a sum of 66 thirds is just below 22
    if n_queries == 0 or n <= 0 or coverage >= 1:
        return -1
    effect = n_queries / n_effective
    allowed = math.floor(bdtrik(delta, n, 1 - coverage))
    if _at_most(allowed, n, 1 - coverage) > delta:
        allowed -= 1
    return -1 if allowed < 0 else math.floor(allowed * effect)


def _at_most(k: int, n: int, probability: float) -> float:
    """Return the probability of at most ``k`` errors among ``n``, each of ``probability``.

    The binomial distribution function; importing scipy.stats for it takes a third of a second.
    """
    return float(betaincc(k + 1, n - k, probability)) if k < n else 1.0
