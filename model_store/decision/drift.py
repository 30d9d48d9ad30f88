"""A sequential test for drift: served queries that differ from the calibration queries."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr

from model_store.decision.calibration import Calibration
from model_store.decision.error_watch import Jumper
from model_store.messages import message

ALARM = math.log(300)
"""Log capital at which the test fires. Ville's bound (1939) on false alarms, 1/300, holds only
approximately, because the densities are estimated. In simulations, at most about 1 % of streams of
1,000 queries without drift raised an alarm."""

ENOUGH = 100
"""Minimum number of matched calibration queries for a good estimate of the densities. If there are
only n < 100 of these queries, the test fires at the log capital `ALARM` + 100 / n − 1."""

PERIOD = 10_000
"""Number of queries after which the test restarts, to detect later changes quickly again."""

CALM = 300
"""Minimum length of an alarm, in queries. An alarm lasts for twice the number of queries that the
test needed to fire, but not less than this minimum. The test restarts at each alarm, so a lasting
drift raises the alarm again."""

NOT_TESTED = message("drift_not_tested")

_PRESENT = 0.6
"""Share of the capital that is bet on the hypothesis that the stream changed before the last
restart of the test. The rest of the capital is bet on later changes."""

_JUMP = 0.003
"""Part of the capital that moves, at each query, between the bets on later changes and a reserve.
The reserve keeps capital for changes after many queries."""

_CHANGES = ((0.7, 1.0), (-0.7, 1.0), (1.4, 1.0), (0.0, 1.5), (0.0, 1.9), (0.0, 0.65))
"""Alternative hypotheses, as pairs (move, scale). A hypothesis first multiplies the distance of
each score from the median matched score by ``scale``. The hypothesis then adds ``move`` standard
deviations of the matched scores to each score."""

_CHANGED_SHARES = (0.05, 0.4)
"""Shares of absent queries. Each alternative hypothesis is combined with each share."""

_SHARES = np.r_[0, 0.02, np.arange(0.05, 0.96, 0.05), 0.98, 1]
"""Grid of shares of absent queries. Each share gives one null hypothesis. For each alternative
hypothesis, the test uses the nearest of these null hypotheses."""

_OF_MATCHED = (0.03, 0.08, 0.16, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
_OF_ABSENT = (0.2, 0.4, 0.6, 0.8, 0.93)
"""The bin edges are quantiles of the calibration scores. `_OF_MATCHED` is for the scores of matched
queries, and `_OF_ABSENT` is for the scores of absent queries."""

_BANDWIDTH = 0.6
_SMOOTHING = 1.0
_ABSENT_LEARNS = 0.3
"""Weight of a served absent query in updates of the reference; a calibration query has weight 1.
The weight is below 1, because the service cannot be certain that a served query is absent."""

_LEARNED_EVERY, _N_STEPS = 25, 20
"""Number of served queries between updates of the reference, and number of EM steps in an
update."""

_TAILS = (0.01, 0.03, 0.1, 0.25, 0.5)
"""Upper tails of the distribution of absent calibration scores. Each number is the share of the
scores that are in one tail. The test compares served scores with these tails."""

_ETA = 0.01
"""Each tail has an upper bound. The probability that at least one of these bounds is too low is at
most this value. This holds if the queries are exchangeable."""

_EM_START = 0.3

Floats = NDArray[np.float64]


class DriftReference(Protocol):
    """The calibration scores of a drift test; many tests can share one reference."""

    n: int
    """Number n of calibration queries. After n served queries, the bets have half of their initial
    size, see `DriftTest`. If n is 0, the bets do not fade."""

    edges: list[float]
    """Bin edges for the histogram of served scores."""

    def factors(self, counts: list[float]) -> list[list[float]]:
        """Return factors (k, K): a score in bin j multiplies the capital of bet i by factor (i, j).

        The expectation of each factor is at most 1 for any share of absent queries.

        Parameters
        ----------
        counts : (K,) number of served queries of this period in each bin.
        """


class MixtureReference:
    r"""Factors of bets against "served queries are a mixture of matched and absent queries".

    The hypothesis allows any share of absent queries.

    F_m and F_a are the distributions of matched and absent scores, and q is the distribution of a
    changed stream. The factor of a bet is the ratio of q to the nearest mixture (Grünwald et al.
    2024, Safe testing):

        f(s) = q(s) / ((1 − π*) F_m(s) + π* F_a(s)),    π* = argmax_π E_q log((1 − π) F_m + π F_a)

    The expectation of f is at most 1 under F_m and under F_a. So the expectation is at most 1 under
    every mixture of F_m and F_a, even if the share of absent queries changes over time. If only
    this share changes, the change is no evidence of drift. The distributions are kernel
    estimates in bins. Expectation maximisation updates the distributions from served queries.
    Without these updates, a long stream would show a difference that comes only from the finite
    calibration sample.

    Parameters
    ----------
    matched : (n,) outlier scores of the matched calibration queries.
    absent : (m,) outlier scores of the absent calibration queries.
    """

    def __init__(self, matched: Floats, absent: Floats) -> None:
        self.n = len(matched)
        self._n_absent = len(absent)
        edges = np.unique(np.r_[np.quantile(matched, _OF_MATCHED), np.quantile(absent, _OF_ABSENT)])
        self.edges: list[float] = edges.tolist()
        middle, widths = float(np.median(matched)), (_spread(matched), _spread(absent))

        def changed(scores: Floats, width: float, move: float, scale: float) -> Floats:
            moved = middle + scale * (scores - middle) + move * widths[0]
            bandwidth = _BANDWIDTH * scale * width * len(scores) ** -0.2
            below = ndtr((edges[:, None] - moved) / bandwidth).mean(axis=1)
            binned: Floats = np.diff(np.r_[0, below, 1])
            return binned

        kinds = (matched, widths[0]), (absent, widths[1])
        plain = [changed(*kind, 0, 1) for kind in kinds]
        smooth = _SMOOTHING * np.add(*plain) / 2
        self._matched, self._absent = (
            (len(kind[0]) * one + smooth) / (len(kind[0]) + _SMOOTHING)
            for kind, one in zip(kinds, plain, strict=True)
        )
        alternatives = [
            (1 - share) * changed(*kinds[0], *change) + share * changed(*kinds[1], *change)
            for change in _CHANGES
            for share in _CHANGED_SHARES
        ]
        self._alternatives = (self.n * np.array(alternatives) + smooth) / (self.n + _SMOOTHING)

    def factors(self, counts: list[float]) -> list[list[float]]:
        """Update the distributions with ``counts``, and return the factors (k, K) of the bets."""
        matched, absent = self._learned(np.array(counts))
        mixtures = np.outer(1 - _SHARES, matched) + np.outer(_SHARES, absent)
        nearest = (self._alternatives @ np.log(mixtures).T).argmax(axis=1)
        factors = self._alternatives / mixtures[nearest]
        # The mixture of both expectations is 1, so the larger one is 1 at a share of the grid, and
        # above 1 between the shares.
        expected = np.maximum(factors @ matched, factors @ absent)
        fair: list[list[float]] = (factors / expected[:, None]).tolist()
        return fair

    def _learned(self, counts: Floats) -> tuple[Floats, Floats]:
        """Return F_m and F_a (K,), estimated from calibration and served queries together."""
        n_served, share = counts.sum(), _EM_START
        matched, absent = self._matched, self._absent
        for _ in range(_N_STEPS if n_served else 0):
            is_absent = share * absent / ((1 - share) * matched + share * absent)
            of_absent, of_matched = is_absent * counts, (1 - is_absent) * counts
            share = float(of_absent.sum() + 0.5) / (n_served + 1.5)
            matched = self.n * self._matched + of_matched
            absent = self._n_absent * self._absent + _ABSENT_LEARNS * of_absent
            matched, absent = matched / matched.sum(), absent / absent.sum()
        return matched, absent


class ExceedanceReference:
    r"""Factors of bets that too many served scores are high.

    A score is high if it exceeds the k-th highest score of the absent calibration queries.

    Let F̄ be the probability that a score is above the k-th highest of n calibration scores: F̄ ~
    Beta(k, n + 1 − k). An upper bound b of F̄ is computed for each tail. The probability that all
    bounds are correct is at least 1 − η (Bonferroni). Each b is the larger of the bounds for
    matched and for absent queries. A served score above the k-th highest calibration score
    multiplies the capital by √b / b. Any other score multiplies the capital by (1 − √b) / (1 − b).

    Served queries do not update this reference, because the quality of their images varies: after
    many good photographs, ordinary photographs would look like drift.

    Parameters
    ----------
    matched : (n,) outlier scores of the matched calibration queries.
    absent : (m,) outlier scores of the absent calibration queries.
    """

    n = 0

    def __init__(self, matched: Floats, absent: Floats) -> None:
        ordered = np.sort(absent)
        n = len(ordered)
        places = sorted({math.ceil(tail * n) for tail in _TAILS})
        edges = [float(ordered[n - k]) for k in places]
        bounds = [
            max(_bound(scores, edge, _ETA / (2 * len(places))) for scores in (matched, absent))
            for edge in edges
        ]
        # A bin includes its upper edge: bin b lies above all earlier edges.
        self.edges: list[float] = sorted(set(edges))
        self._factors = [
            [1 / math.sqrt(b) if above > edge else 1 / (1 + math.sqrt(b)) for above in self._bins()]
            for edge, b in zip(edges, bounds, strict=True)
        ]

    def factors(self, counts: list[float]) -> list[list[float]]:  # noqa: ARG002
        """Return the factors (k, K) of the bets; they do not depend on served queries."""
        return self._factors

    def _bins(self) -> list[float]:
        """Return a score (K,) inside each bin, just above its lower edge."""
        return [-math.inf, *(math.nextafter(edge, math.inf) for edge in self.edges)]


def _bound(scores: Floats, edge: float, eta: float) -> float:
    """Return an upper bound, at confidence 1 − ``eta``, of the share of scores above ``edge``."""
    n = len(scores)
    k = min(int((scores > edge).sum()) + 1, n)
    return float(betaincinv(k, n + 1 - k, 1 - eta))


def reference_of(calibration: Calibration) -> DriftReference | None:
    """Return the drift reference of a calibration; None if no test is possible.

    Augmented views of items have a lower quality than most photographs. If the calibration used
    augmented views, only a shift to higher scores counts as drift. Bundles of earlier releases have
    no scores of absent queries; see `NOT_TESTED`.
    """
    matched, absent = calibration.outlier_scores, calibration.absent_outlier_scores
    if absent is None or len(absent) == 0 or _spread(matched) <= 0 or _spread(absent) <= 0:
        return None
    if calibration.evidence.absence == "near_misses_of_views":
        return ExceedanceReference(matched, absent)
    return MixtureReference(matched, absent)


@dataclass(frozen=True, slots=True)
class DriftState:
    """The state of a drift test, as values for JSON.

    Attributes
    ----------
    counts : (K,) number of served queries in each bin since the last restart of the test.
    learned : (K,) value of ``counts`` at the last update of the reference.
    numbers : the other values of the state, by name. ``edges`` contains the bin edges. For each
        part, ``capital`` contains the log capital and the shares of the bets. ``alarmed_for`` is
        the number of queries until the alarm ends.
    """

    counts: list[float]
    learned: list[float]
    numbers: dict[str, Any]


class DriftTest:
    r"""A test, by betting, of "served queries are distributed as the calibration queries".

    Each bet has a factor f, see `MixtureReference`. The capital has two parts. The first part bets
    that the stream changed before the last restart of the test. Each query multiplies this part by
    1 − c + c f, with c = n / (n + t) after t served queries. The second part bets that the stream
    changes later. Each query multiplies these bets by f, and capital moves between these bets and a
    reserve.

    Parameters
    ----------
    reference : reference of the calibration; several tests can share one reference.

    Attributes
    ----------
    log_capital : evidence of drift in nats, initially 0.
    n_served : number of served queries since the last restart of the test.
    """

    log_capital: float
    n_served: int

    def __init__(self, reference: DriftReference) -> None:
        self._reference = reference
        self._alarm = ALARM + (max(ENOUGH / reference.n - 1, 0) if reference.n else 0)
        self._alarmed_for = 0
        self._begin()

    @classmethod
    def of(cls, calibration: Calibration) -> Self | None:
        """Return the drift test of a calibration; None if no test is possible."""
        reference = reference_of(calibration)
        return None if reference is None else cls(reference)

    @property
    def drifted(self) -> bool:
        """True during an alarm, see `CALM`."""
        return self._alarmed_for > 0

    def observe(self, outlier_score: float) -> None:
        """Count a served query."""
        if self.n_served >= PERIOD or self.log_capital >= self._alarm:
            self._begin()
        place, n = bisect_left(self._reference.edges, outlier_score), self._reference.n
        factors = [of_bet[place] for of_bet in self._factors]
        fading = n / (n + self.n_served) if n else 1.0
        self._present.grow([1 - fading + fading * factor for factor in factors])
        self._later.grow([1.0, *factors])
        self._counts[place] += 1
        self.n_served += 1
        if self.n_served % _LEARNED_EVERY == 0:
            self._learn(self._counts)
        self.log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for = max(self._alarmed_for - 1, 0)
        if self.log_capital >= self._alarm:
            self._alarmed_for = max(CALM, 2 * self.n_served)

    def acknowledge(self) -> None:
        """End an alarm and restart the test."""
        self._alarmed_for = 0
        self._begin()

    def state(self) -> DriftState:
        """Return the state that `restore` continues from."""
        parts = (self._present, self._later)
        numbers = {
            "edges": self._reference.edges,
            "capital": [[part.log_capital, part.shares] for part in parts],
            "alarmed_for": self._alarmed_for,
        }
        return DriftState(list(self._counts), self._learned, numbers)

    def restore(self, state: DriftState) -> None:
        """Continue from ``state``; a state with other bin edges is ignored."""
        if state.numbers["edges"] != self._reference.edges:
            return
        self._begin()
        self._counts, self.n_served = list(state.counts), int(sum(state.counts))
        self._learn(state.learned)
        parts = (self._present, self._later)
        for part, (log_capital, shares) in zip(parts, state.numbers["capital"], strict=True):
            part.log_capital, part.shares = log_capital, shares
        self.log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for = state.numbers["alarmed_for"]

    def _begin(self) -> None:
        self._counts, self.n_served = [0.0] * (len(self._reference.edges) + 1), 0
        self._learn(self._counts)
        n = len(self._factors)
        self._present = Jumper([1 / n] * n, rate=0)
        self._later = Jumper([1 / (1 + n)] * (1 + n), rate=_JUMP)
        self.log_capital = 0.0

    def _learn(self, counts: list[float]) -> None:
        self._learned = list(counts)
        self._factors = self._reference.factors(self._learned)


def _spread(scores: Floats) -> float:
    """Return a robust standard deviation: half the distance between the 16 % and 84 % quantiles."""
    low, high = np.quantile(scores, (0.16, 0.84))
    return float(high - low) / 2


def _log_mixture(present: float, later: float) -> float:
    """Return the log of the total capital, given the log capital of both parts."""
    largest = max(present, later)
    mixed = _PRESENT * math.exp(present - largest) + (1 - _PRESENT) * math.exp(later - largest)
    return largest + math.log(mixed)
