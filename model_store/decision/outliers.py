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

_ADDED = np.array([_TINY, _TINY, 1e-4, _TINY, 1.0])
"""Before the logarithm; to cosine distances more, since the distance of an image to its exact copy
would drown every other."""


@dataclass(frozen=True)
class OutlierDetector:
    """What tells alien images from the gallery's: distances, posterior variance, feature length.

    With φ the features, averaged as `averaged_features` says, x = φ / ‖φ‖ and its coordinates
    t = (x − c) U in the r leading principal directions of the gallery's features, what of x lies
    outside their subspace is e² = ‖(x − c) − t Uᵀ‖², the residual of ViM (Wang et al. 2022). The
    signals are logarithms of

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
    n_averaged : k, adjacent features that are averaged.
    centre : (F,) c, with F the number of averages.
    basis : (F, r) U, orthonormal columns.
    references : (M, r) coordinates t_m of gallery images.
    label_means : (C, r) μ_c.
    whitening : (r, r) L.
    residual_variance : σ² > 0.
    length_centre, length_scale : mean and standard deviation (> 0) of the gallery's log ‖φ‖.
    directions : (M, D) unit embeddings of gallery images.
    """

    n_averaged: int
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
        features = averaged_features(embeddings.features, self.n_averaged)
        lengths = feature_lengths(features)
        # Of x only its products are formed: one pass over what the last search has driven from the
        # processor's cache, in place of six.
        products: NDArray[np.float32] = features @ self._axes.T
        products /= np.maximum(lengths, _LEAST)[:, None]
        products -= self._axes_of_centre
        coordinates = products[:, 1:]
        from_centre = (lengths > 0) - products[:, 0]  # ‖x − c‖², with the first axis 2c
        residual = np.maximum(from_centre - np.vecdot(coordinates, coordinates), 0)
        whitened = coordinates @ self.whitening
        values = np.empty((len(embeddings), len(OUTLIER_SIGNALS)))
        values[:, 0] = from_centre + self._references.nearest(coordinates)
        values[:, 1] = np.vecdot(whitened, whitened) + self._whitened_means.nearest(whitened)
        values[:, 2] = 1 - (embeddings.directions @ self._directions).max(axis=1)
        values[:, 3] = embeddings.spherical_variances
        values[:, 4] = (log_lengths(lengths) - self.length_centre) / self.length_scale
        np.maximum(values[:, :3], 0, out=values[:, :3])  # but for rounding, they are
        values[:, 1] += residual / self.residual_variance
        values[:, 4] **= 2
        values += _ADDED
        signals: NDArray[np.float64] = np.log(values, out=values)
        signals *= _POWERS
        return signals

    @cached_property
    def _axes(self) -> NDArray[np.float32]:
        """Twice the centre and the columns of the basis, (1 + r, F), in the order they are read."""
        return np.vstack([2 * self.centre, self.basis.T])

    @cached_property
    def _axes_of_centre(self) -> NDArray[np.float32]:
        """Products of the centre with `_axes`, (1 + r,); with itself, of the first."""
        products: NDArray[np.float32] = self._axes @ self.centre
        products[0] /= 2
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

    def nearest(self, others: NDArray[np.float32]) -> NDArray[np.float32]:
        """Squared distances (B,) of ``others`` (B, r) to the nearest point, less ‖others‖²."""
        compared = others @ self.minus_twice
        compared += self.squared_lengths
        nearest: NDArray[np.float32] = compared.min(axis=1)
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


def averaged_features(features: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Means (B, F // k) of each ``k`` adjacent ``features`` (B, F); the last F mod k are left out.

    Where a convolution's map is not pooled, adjacent features are adjacent places in it, which say
    much the same: their means are fewer and less noisy.
    """
    if k == 1:
        return features
    n = features.shape[1] // k
    means: NDArray[np.float32] = features[:, : n * k].reshape(-1, n, k) @ np.full(
        k, 1 / k, dtype=np.float32
    )
    return means


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
