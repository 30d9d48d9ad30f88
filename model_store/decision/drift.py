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
"""Log capital at which the test fires. Densities are estimated, so that the bound of Ville (1939)
holds about: in simulated streams of 1,000 queries about 1 % or fewer fire in vain."""

ENOUGH = 100
"""Matched calibration queries below which the densities are less certain, and the test fires later:
100 / n − 1 nats are added."""

PERIOD = 10_000
"""Queries after which the test begins again: it loses its memory, and regains its power."""

CALM = 300
"""Queries without another alarm after which an alarm ends, or twice as many as it took to be raised
if that is more. The test begins again with each alarm, and a drift that lasts fires again."""

NOT_TESTED = message("drift_not_tested")

_PRESENT = 0.6
"""Share of the capital that bets on a change before the first query of the period, and stays."""

_JUMP = 0.003
"""Rate at which the rest moves between the bets and a reserve, so that later changes are found."""

_CHANGES = ((0.7, 1.0), (-0.7, 1.0), (1.4, 1.0), (0.0, 1.5), (0.0, 1.9), (0.0, 0.65))
"""Changes that are bet on: all scores move by so many standard deviations of the matched ones, and
their distance from the median of the matched ones is multiplied."""

_CHANGED_SHARES = (0.05, 0.4)
"""Shares of absent queries that each change is bet on with."""

_SHARES = np.r_[0, 0.02, np.arange(0.05, 0.96, 0.05), 0.98, 1]
"""Shares of absent queries that the null hypothesis is searched at."""

_OF_MATCHED = (0.03, 0.08, 0.16, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
_OF_ABSENT = (0.2, 0.4, 0.6, 0.8, 0.93)
"""Quantiles of both kinds of calibration scores: the bin edges in which scores are counted."""

_BANDWIDTH = 0.6
_SMOOTHING = 1.0
_ABSENT_LEARNS = 0.3
"""Weight of a served absent query against that of a calibration one, when the reference is learned:
which queries are absent is not known for certain."""

_LEARNED_EVERY, _N_STEPS = 25, 20
"""Served queries after which the reference is learned anew, and steps of that."""

_TAILS = (0.01, 0.03, 0.1, 0.25, 0.5)
"""Shares of absent calibration queries, the highest ones, that served ones are compared with."""

_ETA = 0.01
"""Probability that some tail's share among exchangeable queries is more than its bound."""

_EM_START = 0.3

Floats = NDArray[np.float64]


class DriftReference(Protocol):
    """The calibration scores that a drift test compares with; shared by many tests."""

    n: int
    """Calibration queries that the bets fade with; 0 where they do not."""

    edges: list[float]
    """Bin edges of the scores, in which served queries are counted."""

    def factors(self, counts: list[float]) -> list[list[float]]:
        """Return the factors (k, K) of k bets for a score in each of the K bins.

        No factor is expected to be above 1 for any share of absent queries.

        Parameters
        ----------
        counts : (K,) served queries of this period.
        """


class MixtureReference:
    r"""Bets against "served queries are a mixture of matched and absent ones", of any share.

    With F_m and F_a the distributions of matched and absent scores and q that of a changed stream,
    the bet is the ratio to the nearest mixture (Grünwald et al. 2024, Safe testing):

        f(s) = q(s) / ((1 − π*) F_m(s) + π* F_a(s)),    π* = argmax_π E_q log((1 − π) F_m + π F_a)

    Its expectation is at most 1 under both F_m and F_a, so under each mixture of them, whichever
    share each query has: a change of share alone is no evidence. Distributions are kernel estimates
    in bins, and are learned on from served queries by expectation maximisation: the calibration
    queries are a sample, and a long stream would otherwise differ from it.

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
        """Return F_m and F_a (K,) by calibration and served queries together."""
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
    r"""Bets that more queries reach the highest scores of absent calibration queries.

    Of queries that score like calibration queries, or lower, at most a share b is above
    the k-th highest score of n: the upper bound of F̄ ~ Beta(k, n + 1 − k), at once for all
    tails with probability 1 − η (Bonferroni); b is the larger of the bounds of matched and absent
    queries. A score above it multiplies the capital by √b / b, another by (1 − √b) / (1 − b).

    Served queries are no reference, since they may vary: after good photographs those as
    bad as calibration expects would look like a drift.

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
        # A bin ends with its edge: bin b lies above the edges before it.
        self.edges: list[float] = sorted(set(edges))
        self._factors = [
            [1 / math.sqrt(b) if above > edge else 1 / (1 + math.sqrt(b)) for above in self._bins()]
            for edge, b in zip(edges, bounds, strict=True)
        ]

    def factors(self, counts: list[float]) -> list[list[float]]:  # noqa: ARG002
        """Return the factors (k, K) of the bets: served queries change none."""
        return self._factors

    def _bins(self) -> list[float]:
        """Return a score (K,) inside each bin, larger than the edge that it lies above."""
        return [-math.inf, *(math.nextafter(edge, math.inf) for edge in self.edges)]


def _bound(scores: Floats, edge: float, eta: float) -> float:
    """Return the upper bound, missed with probability ``eta``, of the share above ``edge``."""
    n = len(scores)
    k = min(int((scores > edge).sum()) + 1, n)
    return float(betaincinv(k, n + 1 - k, 1 - eta))


def reference_of(calibration: Calibration) -> DriftReference | None:
    """Return the reference for the queries that a calibration judges; None for no test.

    Generated views of items are worse than a photograph need be: better queries are no drift there.
    Bundles of earlier releases keep no scores of absent queries, see `NOT_TESTED`.
    """
    matched, absent = calibration.outlier_scores, calibration.absent_outlier_scores
    if absent is None or len(absent) == 0 or _spread(matched) <= 0 or _spread(absent) <= 0:
        return None
    if calibration.evidence.absence == "near_misses_of_views":
        return ExceedanceReference(matched, absent)
    return MixtureReference(matched, absent)


@dataclass(frozen=True, slots=True)
class DriftState:
    """The state of a drift test, as JSON has it.

    Attributes
    ----------
    counts : (K,) served queries of this period in each bin.
    learned : (K,) those that the reference is learned from.
    numbers : edges of the bins, capital and its shares, and how long the alarm lasts.
    """

    counts: list[float]
    learned: list[float]
    numbers: dict[str, Any]


class DriftTest:
    r"""A test martingale with a portfolio of bets against "served queries are as calibrated".

    Each bet multiplies its capital by a factor f, see `MixtureReference`. The capital is a mixture
    of two parts. One bets 1 − c + c f with c = n / (n + t) after t served queries: a change that
    was there from the first query. The other bets f, and moves between its bets and a reserve, for
    changes that come later.

    Parameters
    ----------
    reference : of the calibration; it may be shared.
    """

    def __init__(self, reference: DriftReference) -> None:
        self._reference = reference
        self._alarm = ALARM + (max(ENOUGH / reference.n - 1, 0) if reference.n else 0)
        self._alarmed_for = 0
        self._log_capital: float
        self._begin()

    @classmethod
    def of(cls, calibration: Calibration) -> Self | None:
        """Return the test for the queries that a calibration judges; None where there is none."""
        reference = reference_of(calibration)
        return None if reference is None else cls(reference)

    @property
    def drifted(self) -> bool:
        """True while an alarm lasts, see `CALM`."""
        return self._alarmed_for > 0

    @property
    def log_capital(self) -> float:
        """Evidence of a drift, in nats; 0 to begin with."""
        return self._log_capital

    @property
    def n_served(self) -> int:
        """Queries of this period."""
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
        """End an alarm, and begin again."""
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
        """Continue from ``state`` of a test with the same reference; another state is ignored."""
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
    """Return half the distance between the 16 % and 84 % quantiles: of normal scores, their std."""
    low, high = np.quantile(scores, (0.16, 0.84))
    return float(high - low) / 2


def _log_mixture(present: float, later: float) -> float:
    """Log capital of both parts together; each began at 0."""
    largest = max(present, later)
    mixed = _PRESENT * math.exp(present - largest) + (1 - _PRESENT) * math.exp(later - largest)
    return largest + math.log(mixed)
