"""A running test of whether served queries are still such as the gallery was calibrated with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from model_store.decision.betting import ALARM, Jumper
from model_store.decision.calibration import Calibration
from model_store.decision.drift_bets import DriftBets, ExceedanceBets, RankBets

PERIOD = 10_000
"""Queries after which the test begins anew: it remembers no more, and loses no more power."""

CALM = 1_000
"""Queries that an alarm lasts for, or twice as many as it took to be raised if that is more: the
test begins anew with each alarm, and would be expected to have fired again by then."""

_PRESENT = 0.6
"""Share of the capital that bets on a change before the first query of the period, and stays."""

_JUMP = 0.003
"""Rate at which the rest moves between the bets and a reserve, so that later changes are found."""


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

    Each bet multiplies its capital by a factor f, see `RankBets` and `ExceedanceBets`. The capital
    is a mixture of two parts. One bets 1 − c + c f: a change that was there from the first query
    fades as c does. The other bets f, and moves between its bets and a reserve, for changes that
    come later. A mixture of test supermartingales is one, so Ville's inequality holds for the sum.

    Parameters
    ----------
    calibration_scores : outlier scores of the calibration queries.
    seed : breaks ties between equal scores.
    only_worse : whether only more alien queries are a drift, not any that are unlike these.
    """

    def __init__(
        self, calibration_scores: Iterable[float], seed: int = 0, *, only_worse: bool = False
    ) -> None:
        scores = sorted(calibration_scores)
        self._generator = np.random.default_rng(seed)
        self._bets: DriftBets = (
            ExceedanceBets(scores) if only_worse else RankBets(scores, self._generator)
        )
        self._alarmed_for = 0
        self._served: list[float] = []
        self._log_capital: float
        self._begin()

    @classmethod
    def of(cls, calibration: Calibration) -> Self:
        """Return the test for the queries that a calibration judges.

        Made-up views of items are worse than a photograph need be, so that better ones are no
        reason to withhold what is promised.
        """
        are_views = calibration.evidence.absence == "near_misses_of_views"
        return cls(calibration.outlier_scores.tolist(), only_worse=are_views)

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
        factors, fading = self._bets.factors(outlier_score)
        self._served.append(outlier_score)
        self._present.grow([1 - fading + fading * factor for factor in factors])
        self._later.grow([1.0, *factors])
        self._log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for -= 1
        if self._log_capital >= ALARM:
            self._alarmed_for = max(CALM, 2 * self.n_served)

    def state(self) -> DriftState:
        """Return what `restore` goes on from."""
        numbers = {
            "bets": self._bets.described,
            "capital": [[part.log_capital, part.shares] for part in (self._present, self._later)],
            "alarmed_for": self._alarmed_for,
            "generator": self._generator.bit_generator.state,
        }
        return DriftState(np.array(self._served, dtype=np.float64), numbers)

    def restore(self, state: DriftState) -> None:
        """Go on from ``state`` of a test with the same calibration scores.

        A state of other bets, which another release may have written, is left aside.
        """
        if state.numbers["bets"] != self._bets.described:
            return
        self._begin(state.scores.tolist())
        parts = (self._present, self._later)
        for part, (log_capital, shares) in zip(parts, state.numbers["capital"], strict=True):
            part.log_capital, part.shares = log_capital, shares
        self._log_capital = _log_mixture(self._present.log_capital, self._later.log_capital)
        self._alarmed_for = state.numbers["alarmed_for"]
        self._generator.bit_generator.state = state.numbers["generator"]

    def _begin(self, served: Iterable[float] = ()) -> None:
        self._served = list(served)
        self._bets.begin(self._served)
        n = len(self._bets.described)
        self._present = Jumper([1 / n] * n, rate=0)
        self._later = Jumper([1 / (1 + n)] * (1 + n), rate=_JUMP)
        self._log_capital = 0.0


def _log_mixture(present: float, later: float) -> float:
    """Log capital of both parts together; each began at 0."""
    largest = max(present, later)
    mixed = _PRESENT * math.exp(present - largest) + (1 - _PRESENT) * math.exp(later - largest)
    return largest + math.log(mixed)
