"""Result sets: as few items as hold a true match with a stated probability."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

MOST_UNPROMISED = 32
"""Labels of a set that promises nothing, the likeliest: a longer list of guesses helps nobody."""

DELTA = 0.1
"""Probability, over calibration sets, that a promised coverage is missed."""


@lru_cache(maxsize=1024)
def errors_allowed(n_queries: int, coverage: float) -> int:
    """Largest number of errors that still rejects "the error is above 1 − coverage"; −1 for none.

    Of the exact binomial test at level `DELTA`; remembered, because every query asks.
    """
    allowed = int(binom.ppf(DELTA, n_queries, 1 - coverage))
    return allowed if binom.cdf(allowed, n_queries, 1 - coverage) <= DELTA else allowed - 1


@dataclass(frozen=True, slots=True)
class ResultSet:
    """Items of which one is a true match, with a stated probability.

    Items of one label are right or wrong together, so that the nearest of each likely label stands
    for all of them.

    Attributes
    ----------
    places : (m,) in the result list, ascending; never empty.
    coverage : what was asked for.
    shortfall : None where the coverage is promised; else why it cannot be, in a sentence.
    """

    places: NDArray[np.int64]
    coverage: float
    shortfall: str | None


@dataclass(frozen=True, slots=True)
class ResultSetRule:
    """Which items belong in the set, for any coverage (Angelopoulos et al. 2021, Learn then Test).

    A set holds the likeliest label, and every label whose match probability reaches a threshold;
    that is the smallest family of sets on average (Sadinle et al. 2019). The error of a threshold
    grows with it, so that thresholds are tested from the largest sets on, each with the exact
    binomial test at level `DELTA`, until one is not rejected: no correction for their number is
    needed.

    The promise: with probability 1 − `DELTA` over the calibration queries, at least ``coverage`` of
    the sets hold a true match, among queries that have one in the gallery and are exchangeable with
    the calibration queries. The test is exact for the probabilities that it is given; those come
    from five cross-fits and the served ones from a fit to all queries, a difference that shrinks
    with their number.

    Attributes
    ----------
    critical : (n,) ascending; of each calibration query the largest threshold whose set holds a
        true match: ∞ where the likeliest label is right, −1 where no candidate is.
    """

    critical: NDArray[np.float64]

    def threshold(self, coverage: float) -> float | None:
        """The largest threshold that promises ``coverage``; None where none does."""
        allowed = errors_allowed(len(self.critical), coverage)
        if allowed < 0 or self.critical[allowed] < 0:
            return None
        return float(self.critical[allowed])

    def choose(
        self, places: NDArray[np.int64], probabilities: NDArray[np.float64], coverage: float
    ) -> ResultSet:
        """The set of one query.

        Parameters
        ----------
        places : (g,) of the nearest item of each label, ascending.
        probabilities : (g,) of their being true matches.
        coverage : in (0, 1).
        """
        threshold = self.threshold(coverage)
        if threshold is None:
            likeliest = np.sort(np.argsort(-probabilities, kind="stable")[:MOST_UNPROMISED])
            return ResultSet(places[likeliest], coverage, self._shortfall(coverage))
        chosen = probabilities >= threshold
        chosen[probabilities.argmax()] = True
        return ResultSet(places[chosen], coverage, None)

    def _shortfall(self, coverage: float) -> str:
        needed = math.ceil(math.log(DELTA) / math.log(coverage))
        if len(self.critical) < needed:
            return (
                f"A coverage of {coverage:g} needs {needed} calibration queries with a match; "
                f"there are {len(self.critical)}."
            )
        reached = float((self.critical >= 0).mean())
        return (
            f"Of the calibration queries with a match, the candidates hold it for {reached:.3f}; "
            f"that is too few to promise a coverage of {coverage:g}."
        )
