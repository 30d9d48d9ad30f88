"""A running test of whether served queries still resemble the calibration queries."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr

from model_store.decision.betting import Jumper
from model_store.decision.calibration import Calibration
from model_store.messages import message

ALARM = math.log(300)
"""Log capital at which the test fires. The bound of Ville (1939) holds only approximately, because
densities are estimated. In simulated streams of 1,000 queries without drift, at most about 1 %
fire."""

ENOUGH = 100
"""With n matched calibration queries below this number, the densities are less certain. The test
then needs 100 / n − 1 nats more to fire."""

PERIOD = 10_000
"""Number of queries after which the test restarts, to detect later changes quickly again."""

CALM = 300
"""An alarm ends after this many queries without another alarm, or after twice as many queries as
the test took to fire, whichever is more. The test restarts at each alarm, so a lasting drift fires
again."""

NOT_TESTED = message("drift_not_tested")

_PRESENT = 0.6
"""Share of the capital on bets that the change happened before the first query of the period."""

_JUMP = 0.003
"""Rate at which the other capital moves between bets and a reserve, to find later changes."""

_CHANGES = ((0.7, 1.0), (-0.7, 1.0), (1.4, 1.0), (0.0, 1.5), (0.0, 1.9), (0.0, 0.65))
"""Alternative hypotheses, each a pair (move, scale). All scores move by ``move`` standard
deviations of the matched scores. Their distance from the median of the matched scores is multiplied
by ``scale``."""

_CHANGED_SHARES = (0.05, 0.4)
"""Shares of absent queries that each alternative is combined with."""

_SHARES = np.r_[0, 0.02, np.arange(0.05, 0.96, 0.05), 0.98, 1]
"""Grid of shares of absent queries to search the nearest null hypothesis."""

_OF_MATCHED = (0.03, 0.08, 0.16, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
_OF_ABSENT = (0.2, 0.4, 0.6, 0.8, 0.93)
"""Quantiles of the matched and absent calibration scores that are the bin edges."""

_BANDWIDTH = 0.6
_SMOOTHING = 1.0
_ABSENT_LEARNS = 0.3
"""Weight of a served absent query relative to a calibration query when the reference is learned. It
is below 1, because it is uncertain which served queries are absent."""

_LEARNED_EVERY, _N_STEPS = 25, 20
"""Number of served queries between updates of the reference, and EM steps of an update."""

_TAILS = (0.01, 0.03, 0.1, 0.25, 0.5)
"""Upper tails of the absent calibration scores that served scores are compared with."""

_ETA = 0.01
"""Probability that any tail's share exceeds its bound for exchangeable queries."""

_EM_START = 0.3

Floats = NDArray[np.float64]


class DriftReference(Protocol):
    """The calibration scores of a drift test; many tests can share one reference."""

    n: int
    """Number n of calibration queries for the fading of bets; 0 for no fading."""

    edges: list[float]
    """Bin edges to count the scores of served queries."""

    def factors(self, counts: list[float]) -> list[list[float]]:
        """Return the factors (k, K) of k bets for a score in each of the K bins.

        The expectation of each factor is at most 1 for any share of absent queries.

        Parameters
        ----------
        counts : (K,) number of served queries of this period in each bin.
        """


class MixtureReference:
    r"""Bets against "served queries are a mixture of matched and absent queries", at any share.

    With F_m and F_a the distributions of matched and absent scores and q that of a changed stream,
    the bet is the ratio to the nearest mixture (Grünwald et al. 2024, Safe testing):

        f(s) = q(s) / ((1 − π*) F_m(s) + π* F_a(s)),    π* = argmax_π E_q log((1 − π) F_m + π F_a)

    The expectation of f is at most 1 under F_m and under F_a, so also under each mixture of them,
    even if the share varies between queries. A change of the share alone is therefore no evidence.
    The distributions are kernel estimates in bins. Expectation maximisation updates them from
    served queries, because the calibration queries are only a sample, from which any long stream
    would differ.

    Parameters
    ----------
    matched, absent : (n,) and (m,) outlier scores of the calibration queries.
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
        """Return the factors (k, K) of the bets, with the reference learned from ``counts``."""
        matched, absent = self._learned(np.array(counts))
        mixtures = np.outer(1 - _SHARES, matched) + np.outer(_SHARES, absent)
        nearest = (self._alternatives @ np.log(mixtures).T).argmax(axis=1)
        factors = self._alternatives / mixtures[nearest]
        expected = np.maximum(factors @ matched, factors @ absent)  # above 1 between the shares
        fair: list[list[float]] = (factors / np.maximum(expected, 1)[:, None]).tolist()
        return fair

    def _learned(self, counts: Floats) -> tuple[Floats, Floats]:
        """Return F_m and F_a (K,), estimated from calibration and served queries together."""
        n_served, share = counts.sum(), _EM_START
        matched, absent = self._matched, self._absent
        for _ in range(_N_STEPS if n_served else 0):
            is_absent = share * absent / ((1 - share) * matched + share * absent)
            of_absent, of_matched = is_absent * counts, (1 - is_absent) * counts
            share = min(max(float(of_absent.sum() + 0.5) / (n_served + 1.5), 0.001), 0.999)
            matched = self.n * self._matched + of_matched
            absent = self._n_absent * self._absent + _ABSENT_LEARNS * of_absent
            matched, absent = matched / matched.sum(), absent / absent.sum()
        return matched, absent


class ExceedanceReference:
    r"""Bets that served queries exceed the highest scores of absent calibration queries too often.

    If scores are distributed like calibration scores, or lower, at most a share b of them exceeds
    the k-th highest of n calibration scores. b is the upper bound of F̄ ~ Beta(k, n + 1 − k), for
    all tails together with probability 1 − η (Bonferroni). It is the larger of the bounds of
    matched and absent queries. A score above the k-th highest multiplies the capital by √b / b, any
    other score by (1 − √b) / (1 − b).

    Served queries do not update this reference, because their quality varies: after many good
    photographs, ordinary ones would look like drift.

    Parameters
    ----------
    matched, absent : (n,) and (m,) outlier scores of the calibration queries.
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
    """Return the upper bound at confidence 1 − ``eta`` of the share of scores above ``edge``."""
    n = len(scores)
    k = min(int((scores > edge).sum()) + 1, n)
    return float(betaincinv(k, n + 1 - k, 1 - eta))


def reference_of(calibration: Calibration) -> DriftReference | None:
    """Return the drift reference of a calibration; None if no test is possible.

    Augmented views of items are worse than most photographs, so with them only higher scores count
    as drift. Bundles of earlier releases have no scores of absent queries, see `NOT_TESTED`.
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
    counts : (K,) number of served queries of this period in each bin.
    learned : (K,) the counts at the last update of the reference.
    numbers : bin edges, capital and its shares, and remaining queries of the alarm.
    """

    counts: list[float]
    learned: list[float]
    numbers: dict[str, Any]


class DriftTest:
    r"""A test martingale with several bets against "served queries are as calibrated".

    Each bet multiplies its capital by a factor f, see `MixtureReference`. The capital has two
    parts. The first has the factor 1 − c + c f, with c = n / (n + t) after t served queries; it
    detects a change before the first query. The second has the factor f and moves between its bets
    and a reserve; it detects later changes.

    Parameters
    ----------
    reference : reference of the calibration; several tests can share it.
    """

    def __init__(self, reference: DriftReference) -> None:
        self._reference = reference
        self._alarm = ALARM + (max(ENOUGH / reference.n - 1, 0) if reference.n else 0)
        self._alarmed_for = 0
        self._log_capital: float
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

    @property
    def log_capital(self) -> float:
        """Evidence of drift in nats, initially 0."""
        return self._log_capital

    @property
    def n_served(self) -> int:
        """Number of served queries of this period."""
        return int(sum(self._counts))

    def observe(self, outlier_score: float) -> None:
        """Count a served query."""
        if self.n_served >= PERIOD or self._log_capital >= self._alarm:
            self._begin()
        place, n, t = bisect_left(self._reference.edges, outlier_score), self._reference.n, self._t
        factors = [of_bet[place] for of_bet in self._factors]
        fading = n / (n + t) if n else 1.0
        self._present.grow([1 - fading + fading * factor for factor in factors])
        self._later.grow([1.0, *factors])
        self._counts[place] += 1
        self._t += 1
        if self._t % _LEARNED_EVERY == 0:
            self._learn(self._counts)
        self._log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for = max(self._alarmed_for - 1, 0)
        if self._log_capital >= self._alarm:
            self._alarmed_for = max(CALM, 2 * self._t)

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
        self._counts, self._t = list(state.counts), int(sum(state.counts))
        self._learn(state.learned)
        parts = (self._present, self._later)
        for part, (log_capital, shares) in zip(parts, state.numbers["capital"], strict=True):
            part.log_capital, part.shares = log_capital, shares
        self._log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for = state.numbers["alarmed_for"]

    def _begin(self) -> None:
        self._counts, self._t = [0.0] * (len(self._reference.edges) + 1), 0
        self._learn(self._counts)
        n = len(self._factors)
        self._present = Jumper([1 / n] * n, rate=0)
        self._later = Jumper([1 / (1 + n)] * (1 + n), rate=_JUMP)
        self._log_capital = 0.0

    def _learn(self, counts: list[float]) -> None:
        self._learned = list(counts)
        self._factors = self._reference.factors(self._learned)


def _spread(scores: Floats) -> float:
    """Return a robust std: half the distance between the 16 % and 84 % quantiles."""
    low, high = np.quantile(scores, (0.16, 0.84))
    return float(high - low) / 2


def _log_mixture(present: float, later: float) -> float:
    """Return the log capital of both parts together."""
    largest = max(present, later)
    mixed = _PRESENT * math.exp(present - largest) + (1 - _PRESENT) * math.exp(later - largest)
    return largest + math.log(mixed)
