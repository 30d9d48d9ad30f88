"""Power and false alarms of the running test of drift."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from model_store.decision import DriftTest

N_SERVED = 5000

Change = Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]

CHANGES: dict[str, Change] = {
    "none": lambda scores, _: scores,
    "spread": lambda scores, _: 1.5 * scores,
    "half_deviation": lambda scores, _: scores + 0.5,
    "fifth_outliers": lambda scores, generator: np.where(
        generator.random(len(scores)) < 0.2, scores + 3, scores
    ),
}
"""What becomes of standard normal outlier scores."""


def alarms(change: str, n_calibration: int, seed: int) -> dict[str, float | bool]:
    """Return whether a change that was there from the first query is found, and when."""
    generator = np.random.default_rng([seed, n_calibration, 4])
    calibration = generator.standard_normal(n_calibration)
    served = CHANGES[change](generator.standard_normal(N_SERVED), generator)
    return first_alarm(calibration, served, seed)


def first_alarm(
    calibration: NDArray[np.float64], served: NDArray[np.float64], seed: int
) -> dict[str, float | bool]:
    """Return whether the test ever fires over the ``served`` scores, and after how many."""
    test = DriftTest(calibration.tolist(), seed)
    for n, score in enumerate(served.tolist(), start=1):
        test.observe(score)
        if test.drifted:
            return {"found": True, "after": float(n)}
    return {"found": False}
