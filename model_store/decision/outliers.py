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

_LEAST = np.finfo(np.float32).tiny
"""Divides what has no length at all."""

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
        lengths = feature_lengths(embeddings.features)
        # Of x only its products are formed: one pass over what the last search has driven from the
        # processor's cache, in place of six.
        products: NDArray[np.float32] = embeddings.features @ self._axes.T
        products /= np.maximum(lengths, _LEAST)[:, None]
        coordinates: NDArray[np.float32] = products[:, 1:] - self._axes_of_centre[1:]
        squared_lengths = self._axes_of_centre[0] - 2 * products[:, 0] + (lengths > 0)
        residual = np.maximum(squared_lengths - np.vecdot(coordinates, coordinates), 0)
        values = np.empty((len(embeddings), len(OUTLIER_SIGNALS)))
        values[:, 0] = self._references.nearest_squared(coordinates) + residual + _TINY
        values[:, 1] = self._whitened_means.nearest_squared(coordinates @ self.whitening)
        values[:, 1] += residual / self.residual_variance + _TINY
        cosines = (embeddings.directions @ self._directions).max(axis=1)
        values[:, 2] = np.maximum(1 - cosines.astype(np.float64), 0) + _FLOOR
        values[:, 3] = embeddings.spherical_variances + _TINY
        deviation = (log_lengths(lengths) - self.length_centre) / self.length_scale
        values[:, 4] = 1 + deviation**2
        signals: NDArray[np.float64] = np.log(values, out=values)
        signals *= _POWERS
        return signals

    @cached_property
    def _axes(self) -> NDArray[np.float32]:
        """The centre and the columns of the basis, (1 + r, F), in the order they are read in."""
        return np.vstack([self.centre, self.basis.T])

    @cached_property
    def _axes_of_centre(self) -> NDArray[np.float32]:
        """Products of the centre with `_axes`, (1 + r,)."""
        products: NDArray[np.float32] = self._axes @ self.centre
        return products

    @cached_property
    def _references(self) -> _Points:
        return _Points.of(self.references)

    @cached_property
    def _whitened_means(self) -> _Points:
        return _Points.of(self.label_means @ self.whitening)

    @cached_property
    def _directions(self) -> NDArray[np.float32]:
        """Of the gallery, (D, M): so laid out they are multiplied in half the time."""
        return np.ascontiguousarray(self.directions.T)


@dataclass(frozen=True, slots=True)
class _Points:
    """M points, to find the nearest of.

    Attributes
    ----------
    minus_twice : (r, M) their coordinates, times −2.
    squared_lengths : (M,).
    """

    minus_twice: NDArray[np.float32]
    squared_lengths: NDArray[np.float32]

    @classmethod
    def of(cls, points: NDArray[np.float32]) -> _Points:
        """Of ``points`` (M, r)."""
        return cls(np.ascontiguousarray(-2 * points.T), np.vecdot(points, points))

    def nearest_squared(self, others: NDArray[np.float32]) -> NDArray[np.float64]:
        """Squared distance (B,) of each of ``others`` (B, r) to the nearest point."""
        compared = others @ self.minus_twice
        compared += self.squared_lengths
        squared = np.vecdot(others, others) + compared.min(axis=1)
        nearest: NDArray[np.float64] = np.maximum(squared, 0).astype(np.float64)
        return nearest


@dataclass(frozen=True)
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
        slopes, offset = self._line
        fused: NDArray[np.float64] = signals @ slopes - offset
        return fused

    @cached_property
    def _line(self) -> tuple[NDArray[np.float64], float]:
        """Slopes (S,) and offset of the score in the signals as they are."""
        slopes = self.weights / self.scale
        return slopes, float(self.centre @ slopes)


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2-normalise the rows of ``features`` (B, F); a row of zeros stays one."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = features / np.maximum(norms, _LEAST)
    return unit


def feature_lengths(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """The norms (B,) of the rows of ``features`` (B, F)."""
    lengths: NDArray[np.float32] = np.sqrt(np.vecdot(features, features))
    return lengths


def log_lengths(lengths: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithms (B,) of `feature_lengths` (B,); finite where they are zero."""
    logarithms: NDArray[np.float64] = np.log(lengths.astype(np.float64) + _TINY)
    return logarithms
