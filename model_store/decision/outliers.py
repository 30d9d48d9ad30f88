"""How alien a query is, at the cost of a few small matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from model_store.encoder import Embeddings

OUTLIER_SIGNALS = (
    "log_feature_distance",
    "log_mahalanobis",
    "log_embedding_distance",
    "log_uncertainty",
    "length_deviation",
)
"""The last axis of `OutlierDetector.signals`, in order."""

_POWERS = np.array([0.5, 0.5, 1.0, 1.0, 0.5])
"""What is squared when it is measured is a root in the signals."""

_TINY = 1e-12
"""Keeps the logarithm of a distance or variance that is exactly zero finite."""

_FLOOR = 1e-4
"""Added to cosine distances before their logarithm: the distance of an image to its exact copy
would drown every other."""


@dataclass(frozen=True)
class OutlierDetector:
    """What tells alien images from the gallery's: distances, posterior variance, feature length.

    With x = φ / ‖φ‖ and its coordinates t = (x − c) U in the r leading principal directions of the
    gallery's features, what of x lies outside their subspace is e² = ‖(x − c) − t Uᵀ‖², the
    residual of ViM (Wang et al. 2022). The signals are logarithms of

    - the distance to the nearest gallery features (after Sun et al. 2022),
      √(min_m ‖t − t_m‖² + e²);
    - the Mahalanobis distance on normalised features (after Müller & Hein 2025) to the nearest mean
      of a label, √(min_c ‖(t − μ_c) L‖² + e² / σ²), with L Lᵀ the inverse of the covariance within
      labels and σ² the variance outside the subspace;
    - the cosine distance to the nearest gallery embedding;
    - the spherical variance of the embedding;
    - √(1 + z²), with z by how many standard deviations the log length of the features, log ‖φ‖,
      lies from the gallery's mean: normalising drops it, and alien images are often too short or
      too long.

    Attributes
    ----------
    centre : (F,) c.
    basis : (F, r) U, orthonormal columns.
    references : (M, r) coordinates t_m of gallery images.
    label_means : (C, r) μ_c.
    whitening : (r, r) L.
    residual_variance : σ² > 0.
    length_centre, length_scale : mean and standard deviation (> 0) of the gallery's log ‖φ‖.
    directions : (M, D) unit embeddings of gallery images.
    """

    centre: NDArray[np.float32]
    basis: NDArray[np.float32]
    references: NDArray[np.float32]
    label_means: NDArray[np.float32]
    whitening: NDArray[np.float32]
    residual_variance: float
    length_centre: float
    length_scale: float
    directions: NDArray[np.float32]

    def __post_init__(self) -> None:
        n_features, rank = self.basis.shape
        if (
            self.centre.shape != (n_features,)
            or self.references.shape[1:] != (rank,)
            or self.label_means.shape[1:] != (rank,)
            or self.whitening.shape != (rank, rank)
        ):
            raise ValueError(
                f"{self.basis.shape=} does not go with {self.centre.shape=}, "
                f"{self.references.shape=}, {self.label_means.shape=} and {self.whitening.shape=}"
            )

    def signals(self, embeddings: Embeddings) -> NDArray[np.float64]:
        """Signals (B, len(OUTLIER_SIGNALS)) of B embeddings, larger is more alien."""
        centred: NDArray[np.float32] = unit_rows(embeddings.features) - self.centre
        coordinates: NDArray[np.float32] = centred @ self.basis
        residual = np.maximum((centred**2).sum(-1) - (coordinates**2).sum(-1), 0)
        nearest = _nearest_squared(coordinates, self.references, self._reference_lengths)
        whitened: NDArray[np.float32] = coordinates @ self.whitening
        mahalanobis = _nearest_squared(whitened, self._whitened_means, self._whitened_lengths)
        cosines = (embeddings.directions @ self.directions.T).max(axis=1).astype(np.float64)
        deviation = (log_lengths(embeddings.features) - self.length_centre) / self.length_scale
        values = np.stack(
            [
                nearest + residual + _TINY,
                mahalanobis + residual / self.residual_variance + _TINY,
                np.maximum(1 - cosines, 0) + _FLOOR,
                embeddings.spherical_variances + _TINY,
                1 + deviation**2,
            ],
            axis=-1,
        )
        signals: NDArray[np.float64] = np.log(values) * _POWERS
        return signals

    @cached_property
    def _reference_lengths(self) -> NDArray[np.float32]:
        lengths: NDArray[np.float32] = (self.references**2).sum(-1)
        return lengths

    @cached_property
    def _whitened_means(self) -> NDArray[np.float32]:
        means: NDArray[np.float32] = self.label_means @ self.whitening
        return means

    @cached_property
    def _whitened_lengths(self) -> NDArray[np.float32]:
        lengths: NDArray[np.float32] = (self._whitened_means**2).sum(-1)
        return lengths


@dataclass(frozen=True, slots=True)
class OutlierFusion:
    """The outlier score: w · (x − centre) / scale of the outlier signals x; larger is more alien.

    Over ordinary queries it has mean 0 and deviation 1.

    Attributes
    ----------
    weights, centre, scale : (S,) each; ``scale`` > 0.
    """

    weights: NDArray[np.float64]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __call__(self, signals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Outlier scores (B,) of ``signals`` (B, S)."""
        fused: NDArray[np.float64] = ((signals - self.centre) / self.scale) @ self.weights
        return fused


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2-normalise the rows of ``features`` (B, F); a row of zeros stays one."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = features / np.maximum(norms, np.finfo(np.float32).tiny)
    return unit


def log_lengths(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithm (B,) of the norms of ``features`` (B, F); finite where they are all zero."""
    norms = np.linalg.norm(features, axis=1).astype(np.float64)
    lengths: NDArray[np.float64] = np.log(norms + _TINY)
    return lengths


def _nearest_squared(
    points: NDArray[np.float32], others: NDArray[np.float32], lengths: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Squared distance (B,) of each of ``points`` (B, r) to the nearest of ``others`` (M, r).

    ``lengths`` (M,) are the squared norms of the others.
    """
    squared = (points**2).sum(-1) + (lengths - 2 * points @ others.T).min(axis=1)
    nearest: NDArray[np.float64] = np.maximum(squared, 0).astype(np.float64)
    return nearest
