"""A running test of whether served queries are still such as the gallery was calibrated with."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision.betting import ALARM, Jumper

PERIOD = 10_000
"""Queries after which the test begins anew: it remembers no more, and loses no more power."""

CALM = 1_000
"""Queries that an alarm lasts for, or twice as many as it took to be raised if that is more: the
test begins anew with each alarm, and would be expected to have fired again by then."""

_BETS = ((0.4, 1.0), (-0.4, 1.0), (0.0, 1.3), (0.0, 0.75))
"""Mean and standard deviation that each bet takes the normal scores of p-values to have: queries
less or more alien than before, more spread, and less spread."""

_PRESENT = 0.6
"""Share of the capital that bets on a change before the first query of the period, and stays."""

_JUMP = 0.003
"""Rate at which the rest moves between the bets and a reserve, so that later changes are found."""

_CLIP = 1e-12
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class DriftState:
    """The state that a drift test needs to go on after a restart.

    Attributes
    ----------
    scores : (n,) outlier scores of the queries served in this period.
    numbers : capital and its shares, how long the alarm lasts, the generator; as JSON has them.
    """

    scores: NDArray[np.float64]
    numbers: dict[str, Any]


class DriftTest:
    r"""A conformal test martingale with a portfolio of bets.

    After Vovk et al. (2021, Retrain or not retrain), whose bets are linear in p.

    Each served query is ranked among the n calibration queries and all t served before it; while
    they are exchangeable these p-values are independent and uniform, whatever their distribution,
    and their normal scores z = Φ⁻¹(p) standard normal. Bet (μ, σ) takes them to be N(μ, σ²):

        f(z) = φ((z − μ) / σ) / (σ φ(z)),    E f(z) = 1 for z ~ N(0, 1)

    The capital is a mixture of two parts. One bets 1 − c + c f(z) with c = n / (n + t): a change
    that was there from the first query fades as the served queries become the reference. The other
    bets f(z), and moves between its bets and a reserve, for changes that come later. A mixture of
    test martingales is one, so Ville's inequality holds for the sum.

    Parameters
    ----------
    calibration_scores : outlier scores of the calibration queries.
    seed : breaks ties between equal scores.
    """

    def __init__(self, calibration_scores: Iterable[float], seed: int = 0) -> None:
        self._calibration = sorted(calibration_scores)
        self._generator = np.random.default_rng(seed)
        self._alarmed_for = 0
        self._served: list[float] = []
        self._log_capital = 0.0
        self._begin()

    @property
    def drifted(self) -> bool:
        """True if the test has fired lately; see `CALM`."""
        return self._alarmed_for > 0

    @property
    def log_capital(self) -> float:
        """Evidence against exchangeability, in nats; 0 to begin with."""
        return self._log_capital

    @property
    def n_served(self) -> int:
        """Queries of this period."""
        return len(self._served)

    def observe(self, outlier_score: float) -> None:
        """Take in a served query."""
        if self.n_served >= PERIOD or self._log_capital >= ALARM:
            self._begin()
        fading = len(self._calibration) / max(1, len(self._scores))
        insort(self._scores, outlier_score)
        self._served.append(outlier_score)
        factors = _factors(self._p_value(outlier_score))
        self._present.grow([1 - fading + fading * factor for factor in factors])
        self._later.grow([1.0, *factors])
        self._log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for -= 1
        if self._log_capital >= ALARM:
            self._alarmed_for = max(CALM, 2 * self.n_served)

    def state(self) -> DriftState:
        """Return what `restore` goes on from."""
        numbers = {
            "bets": [list(bet) for bet in _BETS],
            "capital": [[part.log_capital, part.shares] for part in (self._present, self._later)],
            "alarmed_for": self._alarmed_for,
            "generator": self._generator.bit_generator.state,
        }
        return DriftState(np.array(self._served, dtype=np.float64), numbers)

    def restore(self, state: DriftState) -> None:
        """Go on from ``state`` of a test with the same calibration scores.

        A state of other bets, which another release may have written, is left aside.
        """
        if state.numbers["bets"] != [list(bet) for bet in _BETS]:
            return
        self._begin()
        self._served = state.scores.tolist()
        self._scores = sorted([*self._calibration, *self._served])
        parts = (self._present, self._later)
        for part, (log_capital, shares) in zip(parts, state.numbers["capital"], strict=True):
            part.log_capital, part.shares = log_capital, shares
        self._log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for = state.numbers["alarmed_for"]
        self._generator.bit_generator.state = state.numbers["generator"]

    def _begin(self) -> None:
        self._scores = list(self._calibration)
        self._served = []
        self._present = Jumper([1 / len(_BETS)] * len(_BETS), rate=0)
        self._later = Jumper([1 / (1 + len(_BETS))] * (1 + len(_BETS)), rate=_JUMP)
        self._log_capital = 0.0

    def _p_value(self, score: float) -> float:
        """Rank of a score among those seen, itself with them; ties are broken at random."""
        n, below = len(self._scores), bisect_left(self._scores, score)
        up_to = bisect_right(self._scores, score)
        return (n - up_to + self._generator.random() * (up_to - below)) / n


def _factors(p_value: float) -> list[float]:
    """Return the factor by which each of `_BETS` multiplies its capital."""
    z = _NORMAL.inv_cdf(min(max(p_value, _CLIP), 1 - _CLIP))
    return [
        math.exp(0.5 * (z * z - ((z - mean) / std) ** 2)) / std  # φ((z − μ) / σ) / (σ φ(z))
        for mean, std in _BETS
    ]


def _log_mixture(present: float, later: float) -> float:
    """Log capital of both parts together; each began at 0."""
    largest = max(present, later)
    mixed = _PRESENT * math.exp(present - largest) + (1 - _PRESENT) * math.exp(later - largest)
    return largest + math.log(mixed)
