"""The features of a query: outlier score, mean directions of labels, degradation of the picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.gallery import Gallery

OUTLIER_SIGNALS = (
    "log_feature_distance",
    "log_mahalanobis",
    "log_embedding_distance",
)
"""Names of the signals, in the order of the last axis of `OutlierDetector.signals`."""

MOST_FEATURES = 2500
"""Maximum number of features; if there are more, adjacent features are averaged. Measured on
Fashion-MNIST with 9,216 features (one seed): means of four features detect corrupted images better
than all features do (AUROC 0.94 instead of 0.92). Images of another domain are detected equally
well by these means and by all features (AUROC 0.996). Means of twelve features detect outliers less
well than means of four features do."""

_TINY = 1e-12
"""Small constant that keeps the logarithm finite if a distance or a variance is zero."""

_COSINE_FLOOR = 1e-4
"""Constant added to cosine distances. Without this constant, the logarithm for an exact copy would
dominate the score."""

_LEAST = np.finfo(np.float32).tiny
"""Minimum divisor. It avoids a division by zero for a vector of length zero."""


@dataclass(frozen=True)
class OutlierDetector:
    """An outlier detector: its score is the log of the product of three distances to the gallery.

    φ are the features, averaged by `averaged_features`, and x = φ / ‖φ‖. The coordinates of x in
    the r leading principal directions of the gallery's features are t = (x − c) U. The part of x
    outside this subspace has the squared length e² = ‖(x − c) − t Uᵀ‖², the residual of ViM (Wang
    et al. 2022). The signals are logarithms of

    - the distance to the nearest gallery features (after Sun et al. 2022),
      √(min_m ‖t − t_m‖² + e²);
    - the Mahalanobis distance on normalised features (after Müller & Hein 2025) to the nearest mean
      of a label, √(min_c ‖(t − μ_c) L‖² + e² / σ²), with L Lᵀ the inverse of the covariance within
      labels and σ² the variance outside the subspace;
    - the cosine distance to the nearest gallery embedding.

    The outlier score is the sum of the signals. The sum has no learned weights, so the fit needs no
    examples of outliers. The score is not calibrated; `Calibration.outlier_p_value` converts it to
    a p-value.

    Attributes
    ----------
    n_averaged : number k of adjacent features that are averaged.
    centre : (F,) c; F is the number of averaged features.
    basis : (F, r) U, orthonormal columns.
    references : (M, r) coordinates t_m of gallery images.
    label_means : (C, r) μ_c.
    whitening : (r, r) L.
    residual_variance : σ² > 0.
    directions : (M, D) unit embeddings of gallery images.
    """

    n_averaged: int
    centre: NDArray[np.float32]
    basis: NDArray[np.float32]
    references: NDArray[np.float32]
    label_means: NDArray[np.float32]
    whitening: NDArray[np.float32]
    residual_variance: float
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
        """Return signals (B, len(OUTLIER_SIGNALS)) of B embeddings.

        A larger signal means that the embedding is more unusual.
        """
        features = averaged_features(embeddings.features, self.n_averaged)
        lengths: NDArray[np.float32] = np.sqrt(np.vecdot(features, features))
        # Only products of x are computed, so each matrix is read once instead of six times. After a
        # search, the matrices are no longer in the processor's cache.
        products: NDArray[np.float32] = features @ self._axes.T
        products /= np.maximum(lengths, _LEAST)[:, None]
        products -= self._axes_of_centre
        n_axes, of_first_axis = products.shape[1], products[:, 0].tolist()
        products[:, 0] = 1  # each row is (1, t) from here on
        compared = products @ self._compared
        whitened, to_references = compared[:, :n_axes], compared[:, n_axes:]
        measured = zip(
            lengths.tolist(),
            of_first_axis,
            _squared_lengths(products),
            np.minimum.reduce(to_references, axis=1).tolist(),
            _squared_lengths(whitened),
            np.minimum.reduce(whitened @ self._to_means, axis=1).tolist(),
            np.maximum.reduce(embeddings.directions @ self._directions, axis=1).tolist(),
            strict=True,
        )
        # Python floats from here on: for one image, arrays would not be faster.
        signals = []
        for length, first, t_t, to_reference, w_w, to_mean, cosine in measured:
            from_centre = (length > 0) - first  # ‖x − c‖²; the first axis is 2c
            outside = max(from_centre - t_t, 0) / self.residual_variance
            signals.append(
                (
                    math.log(max(from_centre + to_reference, 0) + _TINY) / 2,
                    math.log(max(w_w + to_mean, 0) + outside + _TINY) / 2,
                    math.log(max(1 - cosine, 0) + _COSINE_FLOOR),
                )
            )
        return np.array(signals).reshape(-1, len(OUTLIER_SIGNALS))

    def scores(self, embeddings: Embeddings) -> NDArray[np.float64]:
        """Return outlier scores (B,) of B embeddings; a larger score is more unusual."""
        scores: NDArray[np.float64] = self.signals(embeddings).sum(axis=1)
        return scores

    @cached_property
    def _axes(self) -> NDArray[np.float32]:
        """(1 + r, F): row 0 is twice the centre, the other rows are the columns of the basis."""
        return np.vstack([2 * self.centre, self.basis.T])

    @cached_property
    def _axes_of_centre(self) -> NDArray[np.float32]:
        """Dot products (1 + r,) of the centre with itself and with each column of the basis."""
        products: NDArray[np.float32] = self._axes @ self.centre
        products[0] /= 2
        return products

    @cached_property
    def _compared(self) -> NDArray[np.float32]:
        """A matrix with two blocks.

        The product of (1, t) with the first block is (1, t L). The second block is the
        `_comparison` of the references.
        """
        rank = len(self.whitening)
        whitening = np.eye(1 + rank, dtype=np.float32)
        whitening[1:, 1:] = self.whitening
        return np.hstack([whitening, _comparison(self.references)])

    @cached_property
    def _to_means(self) -> NDArray[np.float32]:
        return _comparison(self.label_means @ self.whitening)

    @cached_property
    def _directions(self) -> NDArray[np.float32]:
        """The gallery's directions (D, M).

        A matrix product with this layout takes half as long as with the layout (M, D).
        """
        return np.ascontiguousarray(self.directions.T)


def _comparison(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a matrix whose product with (1, t) is ‖t − p‖² − ‖t‖² for ``points`` p (M, r)."""
    return np.ascontiguousarray(np.vstack([np.vecdot(points, points), -2 * points.T]))


def _squared_lengths(points: NDArray[np.float32]) -> list[float]:
    """Return ‖t‖² (B,) for ``points`` (1, t), (B, 1 + r)."""
    coordinates = points[:, 1:]
    squared: list[float] = np.vecdot(coordinates, coordinates).tolist()
    return squared


def averaging(n_features: int) -> int:
    """Return the number of adjacent features to average, to get at most `MOST_FEATURES`."""
    return -(-n_features // MOST_FEATURES)


def averaged_features(features: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Return means (B, F // k) of ``k`` adjacent ``features`` (B, F); omit the last F mod k.

    In an unpooled feature map of a convolution, adjacent features are neighbouring positions with
    similar values. The means of such features have less noise.
    """
    if k == 1:
        return features
    n = features.shape[1] // k
    means: NDArray[np.float32] = features[:, : n * k].reshape(-1, k) @ _equal_weights(k)
    return means.reshape(-1, n)


@cache
def _equal_weights(k: int) -> NDArray[np.float32]:
    weights = np.full(k, 1 / k, dtype=np.float32)
    weights.setflags(write=False)
    return weights


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2-normalise the rows of ``features`` (B, F); a row of zeros remains zero."""
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    unit: NDArray[np.float32] = features / np.maximum(norms, _LEAST)
    return unit


_ROWS = 4096
"""Number of items whose directions are read in one call."""


@dataclass(frozen=True, slots=True)
class LabelMeans:
    """The mean direction of each label's items.

    If the encoder was not trained on the gallery's labels, the nearest mean is right more often
    than the nearest item (Snell et al. 2017, Prototypical networks).

    Attributes
    ----------
    directions : (C, D) unit vectors by label code; empty for a gallery without labels.
    """

    directions: NDArray[np.float32]

    def similarities(
        self,
        direction: NDArray[np.float32],
        label_codes: NDArray[np.int32],
        similarities: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the cosine (n,) between a query and the mean direction of each candidate's label.

        Parameters
        ----------
        direction : (D,) unit direction of the query.
        label_codes : (n,) label codes of the candidates. Some candidates have no label (−1), or a
            label that was added after the means were computed. For such a candidate, the result is
            the candidate's own value in ``similarities``.
        similarities : (n,) similarities of the candidates.
        """
        n_known, codes = len(self.directions), label_codes.tolist()
        if min(codes) >= 0 and max(codes) < n_known:  # the usual case
            return (self.directions[label_codes] @ direction).astype(np.float64)
        of_label = similarities.copy()
        known = (label_codes >= 0) & (label_codes < n_known)
        of_label[known] = self.directions[label_codes[known]] @ direction
        return of_label


def label_means(gallery: Gallery) -> LabelMeans:
    """The mean direction of each label of a gallery."""
    codes = gallery.label_codes(np.arange(gallery.n_items))
    sums = label_sums(gallery, codes)
    return LabelMeans(unit_rows(sums.astype(np.float32)))


def label_sums(gallery: Gallery, codes: NDArray[np.int32]) -> NDArray[np.float64]:
    """For each label, the sum of the directions of its items: (C, D)."""
    sums = np.zeros((len(gallery.labels), gallery.dim))
    for start in range(0, gallery.n_items, _ROWS):
        rows = np.arange(start, min(start + _ROWS, gallery.n_items))
        labelled = rows[codes[rows] >= 0]
        np.add.at(sums, codes[labelled], gallery.directions(labelled))
    return sums


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
