"""The share of absent queries: queries without a true match in the gallery.

Match probabilities are adjusted to this share. The share is estimated from served queries.

`first_where` uses Python's `bisect`, because an import of SciPy's root finders takes 0.1 s.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit


def first_where(holds: Callable[[int], bool], start: int, stop: int) -> int:
    """Return the first step from ``start`` for which the monotone condition ``holds`` is true.

    Returns
    -------
    The first such step. The result is ``stop`` if the condition is false for every step below
    ``stop``.
    """
    return start + bisect_left(range(start, stop), True, key=holds)


FLOOR = 0.01
"""Minimum estimate of the share; the maximum is 1 − `FLOOR`. The next query may be absent, even if
no earlier query was absent."""

LEAST_QUERIES = 100
"""Minimum number of served queries for an estimate of the share."""

_STEPS = 10**6
"""Number of steps into which the range of shares is divided. The estimate is exact to one step."""

_HALF_CHI2 = 1.920729
"""Half of the 95 % quantile of χ² with one degree of freedom. At the ends of the interval, the log
likelihood is its maximum minus this value."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShareEstimate:
    """The estimated share of absent queries among n served queries.

    Attributes
    ----------
    value : maximum likelihood estimate.
    lower, upper : 95 % likelihood-ratio interval. The interval includes the sampling error, but not
        the error of the calibration.
    n_queries : number n of served queries.
    """

    value: float
    lower: float
    upper: float
    n_queries: int


def prior_shift(assumed: float, expected: float) -> float:
    """Return the value to add to all log-odds if the share of absent queries changes.

    By Bayes' rule, P(label | query) ∝ P(query | label) P(label). So only the prior odds of a match
    change, and the shift is log((1 − π')/π') − log((1 − π)/π). This shift is exact for a
    conditional logit.

    Parameters
    ----------
    assumed : share π of absent queries, in (0, 1).
    expected : share π' of absent queries, in (0, 1).
    """
    return math.log1p(-expected) - math.log(expected) - math.log1p(-assumed) + math.log(assumed)


def shifted(probabilities: Floats, no_match: Floats, shift: float) -> Floats:
    """Return match ``probabilities`` (...) after `prior_shift`: p e^c / (p₀ + e^c (1 − p₀)).

    Parameters
    ----------
    no_match : (...) p₀ = 1 − Σ of all match probabilities of the query.
    """
    if shift == 0:
        return probabilities
    # Both terms are divided by the larger term, so that they do not overflow.
    scale = math.exp(-min(abs(shift), 700.0))
    grown, kept = (1.0, scale) if shift > 0 else (scale, 1.0)
    moved: Floats = probabilities * grown / (no_match * kept + grown * (1 - no_match))
    return moved


def estimate_absent_share(no_match: Floats, counts: Floats, assumed: float) -> ShareEstimate | None:
    """Estimate the share of absent queries of a stream (Saerens et al. 2002).

    Maximises Σ log(π q/π₀ + (1 − π)(1 − q)/(1 − π₀)) over π in [`FLOOR`, 1 − `FLOOR`]. Here q is
    P(no match) of a served query, computed at the assumed share π₀. The function is concave, so
    expectation maximisation converges to the same maximum.

    Parameters
    ----------
    no_match : (m,) values of q.
    counts : (m,) number of queries with each value.
    assumed : π₀.

    Returns
    -------
    None if there are fewer than `LEAST_QUERIES` queries.
    """
    n = int(counts.sum())
    if n < LEAST_QUERIES:
        return None
    absent, present = no_match / assumed, (1 - no_match) / (1 - assumed)

    def share_of(step: int) -> float:
        return FLOOR + (1 - 2 * FLOOR) * step / _STEPS

    def log_likelihood(step: int) -> float:
        share = share_of(step)
        return float(counts @ np.log(share * absent + (1 - share) * present))

    def falls(step: int) -> bool:
        """Return whether the slope of the log likelihood at ``step`` is not positive."""
        share = share_of(step)
        slope = (absent - present) / (share * absent + (1 - share) * present)
        return float(counts @ slope) <= 0

    best = first_where(falls, 0, _STEPS)
    rejected = log_likelihood(best) - _HALF_CHI2
    lower = first_where(lambda step: log_likelihood(step) >= rejected, 0, best)
    upper = first_where(lambda step: log_likelihood(step) < rejected, best, _STEPS)
    return ShareEstimate(share_of(best), share_of(lower), share_of(upper), n)


class ServedShare:
    """A histogram of P(no match) over served queries, to estimate the share of absent queries.

    Each new query multiplies the weights of all earlier queries by 1 − 1 / `memory`.
    """

    memory = 5_000
    """Effective number of queries in the histogram."""

    _edges: ClassVar[list[float]] = np.linspace(-12, 12, 241).tolist()
    """Bin edges of the histogram, in log-odds."""

    def __init__(self, assumed: float, counts: Floats | None = None) -> None:
        self._assumed = assumed
        edges = np.array(self._edges)
        middles = (edges[1:] + edges[:-1]) / 2
        self._centres: Floats = np.asarray(expit(np.r_[-12.0, middles, 12.0]))
        self.counts = np.zeros(len(self._centres)) if counts is None else counts
        if self.counts.shape != self._centres.shape:
            raise ValueError(f"{self.counts.shape=}; wanted {self._centres.shape}")

    def observe(self, no_match: float) -> None:
        """Add a served query to the histogram, given its P(no match) at the assumed share."""
        bounded = min(max(no_match, 1e-9), 1 - 1e-9)
        # `bisect` is used, because NumPy would release the GIL. The event loop would then wait for
        # a search thread.
        place = bisect_left(self._edges, math.log(bounded / (1 - bounded)))
        self.counts *= 1 - 1 / self.memory
        self.counts[place] += 1

    def estimate(self) -> ShareEstimate | None:
        """Return the estimate; None until `LEAST_QUERIES` queries are served."""
        return estimate_absent_share(self._centres, self.counts, self._assumed)
