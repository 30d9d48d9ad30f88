"""Operating points: how often to answer, and how often to be wrong when answering."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_THRESHOLD = 0.5
"""What is called a match is likelier one than not, whatever error its owner accepts."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """What comes of calling a first item a match from some probability on.

    Attributes
    ----------
    threshold : on the match probability.
    coverage : share of queries whose first item is called a match.
    error : share of those that is wrong.
    error_bound : 90 % upper confidence bound of ``error`` (Clopper & Pearson 1934).
    """

    threshold: float
    coverage: float
    error: float
    error_bound: float


@dataclass(frozen=True, slots=True)
class OperatingCurve:
    """The risk-coverage curve of a calibrated gallery (El-Yaniv & Wiener 2010).

    Attributes
    ----------
    thresholds, coverages, errors, error_bounds : (m,) each, thresholds falling and coverages
        rising; measured on queries that the probabilities were not fitted on.
    """

    thresholds: NDArray[np.float64]
    coverages: NDArray[np.float64]
    errors: NDArray[np.float64]
    error_bounds: NDArray[np.float64]

    def points(self) -> list[OperatingPoint]:
        """All of it, from the strictest on."""
        rows = zip(self.thresholds, self.coverages, self.errors, self.error_bounds, strict=True)
        return [OperatingPoint(*map(float, row)) for row in rows]

    def at(self, max_error: float) -> OperatingPoint | None:
        """The point of the largest coverage that errs at most so often; None where none does."""
        good = (self.errors <= max_error) & (self.thresholds >= LEAST_THRESHOLD)
        if not good.any():
            return None
        return self.points()[int(np.flatnonzero(good)[-1])]
