"""Predicts how far blur, darkness or a crop has moved the embedding of a picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAST_ANGLE = 0.05
"""A soft lower bound at 0 replaces a negative prediction by a small positive angle. This value
is the scale of the bound, in radians. The bound hardly changes predictions that are larger than
this value."""

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class DisplacementModel:
    """A linear model of an encoder's features that predicts the displacement of an embedding.

    The displacement is 1 minus the cosine between the embeddings of the degraded and the original
    picture. The model is trained on degraded copies of the gallery's images, without labels. The
    predicted displacement measures the uncertainty that comes from the picture (aleatoric). The
    posterior over weights does not include this uncertainty. Kirchhof et al. (2024) train such
    models on a large corpus.

    Attributes
    ----------
    centre : (F,) mean of the log features.
    scale : (F,) scale of the log features.
    weights : (F,) weights of the centred and scaled features.
    intercept : intercept of the prediction, in radians. The predicted value is the angle between
        the two embeddings.
    levels : (n,) sorted predictions for ordinary pictures that were not used for training.
    """

    centre: NDArray[np.float32]
    scale: NDArray[np.float32]
    weights: NDArray[np.float32]
    intercept: float
    levels: NDArray[np.float64]

    def displacement(self, features: Floats) -> NDArray[np.float64]:
        """Return the expected displacement (B,) in [0, 2] of pictures with features (B, F)."""
        rows = (log_features(features) - self.centre) / self.scale
        predicted = (rows * self.weights).sum(axis=1, dtype=np.float64) + self.intercept
        angles = (predicted + np.hypot(predicted, _LEAST_ANGLE)) / 2  # positive, in the same order
        found: NDArray[np.float64] = 1 - np.cos(np.minimum(angles, np.pi))
        return found

    def percentile(self, displacement: float) -> float:
        """Return the percentage of ordinary pictures with a smaller predicted displacement."""
        below = np.searchsorted(self.levels, displacement)
        return 100 * float(below) / len(self.levels)


def log_features(features: Floats) -> Floats:
    """Return sign(φ) log(1 + |φ|), which shortens the long tails of network features."""
    logs: Floats = np.sign(features) * np.log1p(np.abs(features))
    return logs
