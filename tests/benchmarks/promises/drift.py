"""Power and false alarms of the running test of drift."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from model_store.decision import DriftTest
from model_store.decision.drift import MixtureReference

N_SERVED, FOUND_WITHIN = 1000, 300
"""Queries of a stream without a change, and queries within which a change is to be found."""

DISTANCES = (1.3, 2.0, 2.8)
"""Between the scores of absent and matched queries, in standard deviations: an AUROC of 0.82, 0.92
and 0.98."""

Floats = NDArray[np.float64]
Change = Callable[[Floats, np.random.Generator], Floats]

CHANGES: dict[str, Change] = {
    "spread": lambda scores, _: 1.5 * scores,
    "half_deviation": lambda scores, _: scores + 0.5,
    "deviation": lambda scores, _: scores + 1,
    "less_alien": lambda scores, _: scores - 0.5,
}
"""What becomes of standard normal outlier scores, of which a fifth are of absent queries."""

SHARES: dict[str, Callable[[NDArray[np.int64]], Floats]] = {
    "share 0": lambda place: np.full(len(place), 0.0),
    "share 0.05": lambda place: np.full(len(place), 0.05),
    "share 0.2": lambda place: np.full(len(place), 0.2),
    "share 0.5": lambda place: np.full(len(place), 0.5),
    "share 0, then 0.5": lambda place: np.where(place < N_SERVED // 2, 0.0, 0.5),
}
"""Shares of absent queries by the place in the stream: no drift."""


def stream(shares: Floats, distance: float, generator: np.random.Generator) -> Floats:
    """Draw outlier scores (N,) of queries that are absent with probabilities ``shares`` (N,)."""
    is_absent = generator.random(len(shares)) < shares
    return generator.standard_normal(len(shares)) + distance * is_absent


def alarms(case: str, n_calibration: int, seed: int) -> dict[str, float | bool]:
    """Return whether the test fires over a stream, and after how many queries.

    Parameters
    ----------
    case : one of `CHANGES` or of `SHARES`.
    n_calibration : matched calibration queries, and as many absent ones.
    """
    generator = np.random.default_rng([seed, n_calibration, 4])
    distance = DISTANCES[seed % len(DISTANCES)]
    matched = generator.standard_normal(n_calibration)
    absent = generator.standard_normal(n_calibration) + distance
    if case in SHARES:
        served = stream(SHARES[case](np.arange(N_SERVED)), distance, generator)
    else:
        same = stream(np.full(FOUND_WITHIN, 0.2), distance, generator)
        served = CHANGES[case](same, generator)
    return first_alarm(matched, absent, served)


def first_alarm(matched: Floats, absent: Floats, served: Floats) -> dict[str, float | bool]:
    """Return whether the test ever fires over the ``served`` scores, and after how many."""
    test = DriftTest(MixtureReference(matched, absent))
    for n, score in enumerate(served.tolist(), start=1):
        test.observe(score)
        if test.drifted:
            return {"found": True, "after": float(n)}
    return {"found": False}
