"""The bets of a drift test: by how much each multiplies its capital when a query is served."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Protocol

import numpy as np
from scipy.special import betaincinv

_OF_RANKS = ((0.4, 1.0), (-0.4, 1.0), (0.0, 1.3), (0.0, 0.75))
"""Mean and standard deviation that each bet takes the normal scores of p-values to have: queries
less or more alien than before, more spread, and less spread."""

_CLIP = 1e-12
_NORMAL = NormalDist()

_TAILS = (0.01, 0.03, 0.1, 0.25, 0.5)
"""Shares of the calibration queries, the most alien ones, that served queries are held against."""

_ETA = 0.01
"""Probability that some tail's share among exchangeable queries is more than its bound."""


class DriftBets(Protocol):
    """A portfolio of bets against "served queries are such as were calibrated with"."""

    @property
    def described(self) -> list[list[float]]:
        """The bets as JSON has them: a state of others is none of these."""

    def begin(self, served: Iterable[float]) -> None:
        """Begin with what was ``served`` in this period."""

    def factors(self, score: float) -> tuple[list[float], float]:
        """Take in a score; return the bets' factors, and what those on the present fade to.

        No factor is expected to be above 1 while there is no drift, whatever came before.
        """


class RankBets:
    r"""Bets on the rank of a query among all before it: on any kind of change.

    While all are exchangeable these p-values are independent and uniform, and their normal scores
    z = Φ⁻¹(p) standard normal. Bet (μ, σ) takes them to be N(μ, σ²):

        f(z) = φ((z − μ) / σ) / (σ φ(z)),    E f(z) = 1 for z ~ N(0, 1)

    Of t served queries and n calibration queries the bets on the present fade to n / (n + t): what
    is served becomes the reference.

    Parameters
    ----------
    calibration_scores : (n,) ascending.
    generator : breaks ties between equal scores.
    """

    def __init__(self, calibration_scores: Sequence[float], generator: np.random.Generator) -> None:
        self._calibration = calibration_scores
        self._generator = generator
        self.begin(())

    @property
    def described(self) -> list[list[float]]:
        """Mean and standard deviation of each."""
        return [list(bet) for bet in _OF_RANKS]

    def begin(self, served: Iterable[float]) -> None:
        """Rank among the calibration queries and these."""
        self._scores = sorted([*self._calibration, *served])

    def factors(self, score: float) -> tuple[list[float], float]:
        """Rank a score among those seen, itself with them."""
        fading = len(self._calibration) / max(1, len(self._scores))
        insort(self._scores, score)
        n, below = len(self._scores), bisect_left(self._scores, score)
        up_to = bisect_right(self._scores, score)
        p_value = (n - up_to + self._generator.random() * (up_to - below)) / n
        return likelihood_ratios(p_value), fading


class ExceedanceBets:
    r"""Bets that more queries are as alien as the most alien ones that were calibrated with.

    Of queries as alien as calibration queries, or less so, each in its own way, at most a share b
    is above the k-th most alien of n calibration queries: the upper bound of
    F̄ ~ Beta(k, n + 1 − k), at once for all tails with probability 1 − η (Bonferroni). What is
    above it multiplies the capital by √b / b, what is not by (1 − √b) / (1 − b).

    Served queries are no reference, since they need not be alike: after good photographs those as
    bad as calibration expects would look like a drift.

    Parameters
    ----------
    calibration_scores : (n,) ascending.
    """

    def __init__(self, calibration_scores: Sequence[float]) -> None:
        n = len(calibration_scores)
        places = sorted({math.ceil(tail * n) for tail in _TAILS})
        self._least = [calibration_scores[n - k] for k in places]
        bounds = [float(betaincinv(k, n + 1 - k, 1 - _ETA / len(places))) for k in places]
        self._gains = [1 / math.sqrt(bound) for bound in bounds]
        self._losses = [1 / (1 + math.sqrt(bound)) for bound in bounds]

    @property
    def described(self) -> list[list[float]]:
        """Score and gain of each."""
        return [list(bet) for bet in zip(self._least, self._gains, strict=True)]

    def begin(self, served: Iterable[float]) -> None:
        """Begin anew: these bets remember nothing of what was served."""

    def factors(self, score: float) -> tuple[list[float], float]:
        """Hold a score against each tail."""
        of_tails = zip(self._least, self._gains, self._losses, strict=True)
        return [gain if score > least else loss for least, gain, loss in of_tails], 1.0


def likelihood_ratios(p_value: float) -> list[float]:
    """Return the factor by which each of `RankBets` multiplies its capital."""
    z = _NORMAL.inv_cdf(min(max(p_value, _CLIP), 1 - _CLIP))
    return [
        math.exp(0.5 * (z * z - ((z - mean) / std) ** 2)) / std  # φ((z − μ) / σ) / (σ φ(z))
        for mean, std in _OF_RANKS
    ]
