"""The share of absent queries: queries without a true match in the gallery.

The share is estimated from served queries.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, stdtrit

from model_store.decision.evidence import Evidence
from model_store.decision.probabilities import bounded_logit, prior_shift

SHARES = np.linspace(0.01, 0.99, 197).round(3)
"""Shares of absent queries that an estimate compares with the served queries. The next query may be
absent, even if no earlier query was absent. So the smallest share is above 0."""

LEAST_QUERIES = 100
"""Minimum number of served queries for an estimate of the share."""

_OUTSIDE = 0.025
"""Part of the probability that a 95 % interval leaves out at each end."""

_EDGES = np.linspace(-12, 12, 241)
"""Bin edges of the histograms of P(no match), in log-odds."""

_CENTRES = np.r_[-12.0, (_EDGES[1:] + _EDGES[:-1]) / 2, 12.0]

_TINY = 1e-12
"""Added to variances. It avoids a division by zero."""

_PLACES: list[float] = _EDGES.tolist()

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShareEstimate:
    """The estimated share of absent queries among n served queries.

    Attributes
    ----------
    value : the estimate, between the smallest and the largest of `SHARES`.
    lower, upper : 95 % interval, to 0 or 1 where no share is excluded. The interval includes the
        sampling errors of the served queries and of the calibration queries. It does not include
        other differences between served and calibration queries.
    """

    value: float
    lower: float
    upper: float


class ServedShare:
    """A histogram of P(no match) over served queries, to estimate the share of absent queries.

    Each new query multiplies the weights of all earlier queries by 1 − 1 / `memory`.

    Attributes
    ----------
    counts : (242,) weights of the queries in each bin.
    """

    memory = 5_000
    """Effective number of queries in the histogram."""

    def __init__(self, counts: Floats | None = None) -> None:
        self.counts = np.zeros(len(_CENTRES)) if counts is None else counts
        if self.counts.shape != _CENTRES.shape:
            raise ValueError(f"{self.counts.shape=}; wanted {_CENTRES.shape}")

    def observe(self, no_match: float) -> None:
        """Add a served query to the histogram, given its P(no match) at the assumed share."""
        bounded = min(max(no_match, 1e-9), 1 - 1e-9)
        # `bisect` is used, because NumPy would release the GIL. The event loop would then wait for
        # a search thread.
        place = bisect_left(_PLACES, math.log(bounded / (1 - bounded)))
        self.counts *= 1 - 1 / self.memory
        self.counts[place] += 1


class ShareReference:
    """P(no match) of the calibration queries, to estimate the share of absent served queries.

    If a share π of the queries is absent, the mean of P(no match) at π is a mixture: (1 − π) times
    the mean of matched queries, plus π times the mean of absent queries. Both means come from the
    evidence. So the estimate needs no exact probabilities, unlike a maximum of the likelihood
    (Saerens et al. 2002). For each π, a score test compares the mean of the served queries with
    the mixture. The interval contains the shares that the test does not reject. Each object and
    each absent label counts once. The quantile is Student's, for the number of labels.

    The evidence includes queries that are flagged out of distribution, so the share is a share of
    all queries, as in `Stream`. The interval assumes that the served absent queries have as many
    labels as those of the evidence.

    Parameters
    ----------
    evidence : outcomes of the calibration queries.
    assumed : share of absent queries that the probabilities were fitted with.
    """

    def __init__(self, evidence: Evidence, assumed: float) -> None:
        shifts = np.array([prior_shift(assumed, float(share)) for share in SHARES])
        self._moved: Floats = expit(_CENTRES[:, None] - shifts)  # (242, 197)
        places = np.searchsorted(_EDGES, bounded_logit(evidence.no_match_probabilities))
        codes, labels = np.unique(evidence.clusters[evidence.absent], return_inverse=True)
        of_labels = np.zeros((len(codes), len(_CENTRES)))
        np.add.at(of_labels, (labels, places[evidence.absent]), 1.0)
        means = of_labels / of_labels.sum(axis=1, keepdims=True) @ self._moved
        counts = np.bincount(places[evidence.counted], minlength=len(_CENTRES))
        self._present, self._of_present = self._mean_and_variance(counts.astype(np.float64))
        self._mixed: Floats = (1 - SHARES) * self._present + SHARES * means.mean(axis=0)
        # A probability has a variance of at most 1/4; nothing better is known of one label. The
        # served absent queries are a sample of labels too, so the variance counts twice.
        of_absent = 2 * means.var(axis=0, ddof=1) / len(codes) if len(codes) > 1 else 0.25
        self._variance: Floats = (1 - SHARES) ** 2 * self._of_present + SHARES**2 * of_absent
        self._quantile = -float(stdtrit(max(len(codes) - 1, 1), _OUTSIDE))

    def _mean_and_variance(self, counts: Floats) -> tuple[Floats, Floats]:
        """Return the mean (197,) of P(no match) at each share, and the variance of this mean."""
        n = counts.sum()
        mean = counts @ self._moved / n
        return mean, (counts @ self._moved**2 / n - mean**2) / n

    def estimate(self, served: ServedShare) -> ShareEstimate | None:
        """Return the estimate.

        Returns
        -------
        None if there are fewer than `LEAST_QUERIES` queries, or if P(no match) is lower than
        without any absent query. In the second case, the queries with a match differ from those of
        the evidence.
        """
        if served.counts.sum() < LEAST_QUERIES:
            return None
        mean, variance = self._mean_and_variance(served.counts)
        score = (mean - self._mixed) / np.sqrt(variance + self._variance + _TINY)
        without_absent = (mean - self._present) / np.sqrt(variance + self._of_present + _TINY)
        if max(score.max(), without_absent[0]) < -self._quantile:
            return None
        # The score falls with the share. An end that no share excludes is open.
        falling = np.minimum.accumulate(score)[::-1]
        at = [self._quantile, 0.0, -self._quantile]
        lower, value, upper = np.interp(at, falling, SHARES[::-1], left=1.0, right=0.0).tolist()
        value = min(max(value, float(SHARES[0])), float(SHARES[-1]))
        return ShareEstimate(value, min(lower, value), max(upper, value))
