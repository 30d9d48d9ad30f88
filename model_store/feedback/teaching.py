"""The queries whose decisions would teach most about the probabilities that are served.

The stream is divided by its log-odds into strata k of equal weight W_k. After n_k decisions the
share of right first items in a stratum is known with a variance of about σ_k² / (n_k + 1), where
σ_k² = mean P (1 − P) by the known probabilities; and the whole curve from
probability to truth with

    V = Σ_k W_k² σ_k² / (n_k + 1).

One more decision in stratum k lowers V by W_k² σ_k² / ((n_k + 1)(n_k + 2)); the next query is the
oldest of the stratum where that is most. In the long run decisions are shared out as W_k σ_k, which
is Neyman's allocation (1934), with σ estimated on the way: active testing, as Sawade, Landwehr,
Bickel and Scheffer (2010) have it for risks. Most of it goes where P is neither near 0 nor near 1.

It depends on the log-odds alone, never on whether the answer is right, and assumes no form of the
curve. (The I-optimal design for a logistic curve needs more decisions than random order where the
curve is not one; see `tests.benchmarks.bench_review`.)
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Recalibration

N_STRATA = 10

DOUBT = 0.1
"""Added to each σ: the probabilities are what is in doubt, so that no stratum is left out."""

Floats = NDArray[np.float64]


def most_teaching(
    log_odds: Floats, decided: Floats, stream: Floats, served: Recalibration, n: int
) -> list[int]:
    """Return the places of the ``n`` queries to decide on next, the first one first.

    Each is chosen as if those before it had been decided on.

    Parameters
    ----------
    log_odds : (m,) of the queries that may be chosen, oldest first; NaN where there are none: these
        come last.
    decided : of the pairs with a decision.
    stream : of served queries drawn at random, if any. served : the correction so far.
    """
    stream = stream[np.isfinite(stream)]
    edges = np.quantile(stream, np.linspace(0, 1, N_STRATA + 1)[1:-1]) if len(stream) else stream
    deviation = _deviations(stream, np.searchsorted(edges, stream), served)
    n_decided = np.bincount(np.searchsorted(edges, decided), minlength=N_STRATA).astype(float)
    waiting = [deque[int]() for _ in range(N_STRATA)]
    unknown = deque[int]()
    for place, stratum in enumerate(np.searchsorted(edges, log_odds).tolist()):
        (waiting[stratum] if np.isfinite(log_odds[place]) else unknown).append(place)
    left = np.array([bool(places) for places in waiting])
    chosen: list[int] = []
    while len(chosen) < n and left.any():
        fall = deviation**2 / ((n_decided + 1) * (n_decided + 2))
        stratum = int(np.where(left, fall, -1.0).argmax())
        chosen.append(waiting[stratum].popleft())
        left[stratum] = bool(waiting[stratum])
        n_decided[stratum] += 1
    return (chosen + list(unknown))[:n]


def _deviations(stream: Floats, strata: NDArray[np.int64], served: Recalibration) -> Floats:
    """Return W σ of each stratum."""
    probabilities = served(stream)
    weights = np.bincount(strata, minlength=N_STRATA)
    variances = np.bincount(strata, probabilities * (1 - probabilities), minlength=N_STRATA)
    deviations: Floats = np.sqrt(variances / np.maximum(weights, 1)) + DOUBT
    return deviations * weights / max(len(stream), 1)
