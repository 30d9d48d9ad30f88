"""A running test of whether served queries are still such as the gallery was calibrated with."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

import numpy as np

ALARM = math.log(100)
"""Log capital at which the test fires: under exchangeability it ever gets there in a period with
probability 1/100 at most (Ville 1939)."""

PERIOD = 10_000
"""Queries after which the test begins anew: it remembers no more, and loses no more power."""

CALM = 1_000
"""Queries that an alarm lasts for, or twice as many as it took to be raised if that is more: the
test begins anew with each alarm, and would be expected to have fired again by then."""

_BETS = (-1.0, 0.0, 1.0)
_JUMP = 0.01
"""Rate at which capital moves between the bets, so that a change is followed late as well."""


class DriftTest:
    """The simple jumper, a conformal test martingale (Vovk et al. 2021, Retrain or not retrain).

    Each served query is ranked among the calibration queries and all served before it; while they
    are exchangeable these p-values are independent and uniform, whatever their distribution. A
    capital that bets on small, on large, and on neither grows when they are not: bet ε multiplies
    its share of the capital by 1 + ε (p − ½).

    Parameters
    ----------
    calibration_scores : outlier scores of the calibration queries.
    seed : breaks ties between equal scores.
    """

    def __init__(self, calibration_scores: Iterable[float], seed: int = 0) -> None:
        self._calibration = sorted(calibration_scores)
        self._scores: list[float] = []
        self._shares: list[float] = []
        self._log_capital = 0.0
        self._generator = np.random.default_rng(seed)
        self._alarmed_for = 0
        self._begin()

    @property
    def drifted(self) -> bool:
        """Whether the test has fired lately; see `CALM`."""
        return self._alarmed_for > 0

    @property
    def log_capital(self) -> float:
        """Evidence against exchangeability, in nats; 0 to begin with."""
        return self._log_capital

    @property
    def n_served(self) -> int:
        """Queries of this period."""
        return len(self._scores) - len(self._calibration)

    def observe(self, outlier_score: float) -> None:
        """Take in a served query."""
        if self.n_served >= PERIOD or self._log_capital >= ALARM:
            self._begin()
        insort(self._scores, outlier_score)
        n, below = len(self._scores), bisect_left(self._scores, outlier_score)
        up_to = bisect_right(self._scores, outlier_score)
        p_value = (n - up_to + self._generator.random() * (up_to - below)) / n
        grown = [
            ((1 - _JUMP) * share + _JUMP / len(_BETS)) * (1 + bet * (p_value - 0.5))
            for share, bet in zip(self._shares, _BETS, strict=True)
        ]
        total = sum(grown)
        self._log_capital += math.log(total)
        self._shares = [share / total for share in grown]
        self._alarmed_for -= 1
        if self._log_capital >= ALARM:
            self._alarmed_for = max(CALM, 2 * self.n_served)

    def _begin(self) -> None:
        self._scores = list(self._calibration)
        self._shares = [1 / len(_BETS)] * len(_BETS)
        self._log_capital = 0.0
