"""Computes a last layer in closed form: it whitens the differences between images of one label.

Two images that the layer was fitted to, and that have the same label, are too similar to each
other. Two new images of one label are less similar. For calibration, an image must be embedded by a
layer that was not fitted to it. `cross_fitted_whitenings` returns such layers, rotated to the
coordinates of the layer that was fitted to all images. A layer that was fitted to an image has also
moved the other images of its label towards it. So the image must be compared with images that the
layer without this image embeds. If the features of some images are not known, the rotation makes
their embeddings comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DatasetError

Floats = NDArray[np.float64]
Features = NDArray[np.floating[Any]]
Codes = NDArray[np.integer[Any]]

_ROUNDING = 1e-10
"""A direction is treated as rounding error if its eigenvalue is below this share of the largest
eigenvalue."""


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over images; the layer is computed from these sums.

    Attributes
    ----------
    counts : (C,) number of images of each label.
    features : (C, F) sums of features by label.
    products : (F, F), Σ φ φᵀ over all images.
    """

    counts: NDArray[np.int64]
    features: Floats
    products: Floats

    @classmethod
    def of(cls, blocks: Iterable[Features], codes: Codes, n_labels: int) -> _Sums:
        """Compute the sums over the N rows of ``blocks`` (n, F) with the labels ``codes`` (N,)."""
        features, products, first = None, None, 0
        for block in blocks:
            rows = np.asarray(block, dtype=np.float64)
            if features is None or products is None:
                features = np.zeros((n_labels, rows.shape[1]))
                products = np.zeros((rows.shape[1], rows.shape[1]))
            np.add.at(features, codes[first : first + len(rows)], rows)
            products += rows.T @ rows
            first += len(rows)
        if features is None or products is None or first != len(codes):
            raise ValueError(f"the blocks hold {first} rows, the labels {len(codes)}")
        return cls(np.bincount(codes, minlength=n_labels), features, products)

    def __sub__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.counts - other.counts,
            self.features - other.features,
            self.products - other.products,
        )

    def layer(
        self, embedding_dim: int, n_features: int, dtype: type[np.floating[Any]] = np.float64
    ) -> Floats:
        """Return the layer (D, F), see `learned_whitening`.

        The rows of the layer are the leading solutions of T v = μ (C + λ I) v with vᵀ (C + λ I) v =
        1, where T is the scatter of all images. This equals whitening by C + λ I, followed by a
        projection on the principal directions.

        Parameters
        ----------
        n_features : number of features; λ is the trace of C divided by this number.
        dtype : number type of the decomposition; float32 takes a third of the time of float64.

        Raises
        ------
        DatasetError : features do not differ within labels, or too little for ``dtype``.
        """
        from scipy.linalg import eigh  # noqa: PLC0415 - slow

        held = self.counts > 0
        n, n_labels = int(self.counts.sum()), int(held.sum())
        features, counts = self.features[held], self.counts[held, None]
        within = (self.products - features.T @ (features / counts)) / max(1, n - n_labels)
        mean = features.sum(axis=0) / n
        total = self.products - n * np.outer(mean, mean)
        size = len(within)
        shrinkage = np.trace(within) / n_features
        if not shrinkage >= np.finfo(dtype).tiny:
            raise DatasetError(
                "The features of the images or vectors of each label do not differ, or are too "
                "small to compute their differences. Scale them, for example to a norm of 1, or "
                "give features that differ."
            )
        within[np.diag_indices(size)] += shrinkage
        # Bisection finds a part of the eigenvectors, divide and conquer finds all. If a third is
        # wanted, divide and conquer is faster: half of 530 take 34 ms instead of 52 ms. Bisection
        # is faster for a fifth of 1,280. The coordinates of `_span` have ascending variances. For
        # such coordinates, only the upper triangle gives float32 its full precision.
        n_kept = min(embedding_dim, size)
        _, directions = eigh(
            total.astype(dtype),
            within.astype(dtype),
            lower=False,
            subset_by_index=None if 3 * n_kept > size else [size - n_kept, size - 1],
            check_finite=False,
        )
        layer: Floats = directions[:, -n_kept:][:, ::-1].T.astype(np.float64)
        return layer


def learned_whitening(blocks: Iterable[Features], codes: Codes, embedding_dim: int) -> Floats:
    """Return the weight W (D, F) of a layer h = W φ that whitens differences within labels.

    The method is that of Radenović et al. 2019, sec. 3.3. C is the covariance within labels. φ is
    multiplied by (C + λ I)^-½, and the D directions with the largest variance over all images are
    kept. λ is the mean eigenvalue of C. If there are fewer images than features, most eigenvalues
    are estimated as zero, and dividing by them would amplify noise. Features are not centred,
    because their mean is informative. Keeping the mean improves the comparison of images by cosine
    for labels that are not in the training data.

    At most N / 2 directions are kept, because each further direction would depend on a few images
    only. The other rows of W are zero.

    Parameters
    ----------
    blocks : (n, F) features in row order; they are read once.
    codes : (N,) label codes from 0; at least one label has two different images.
    embedding_dim : D ≤ F.

    Returns
    -------
    (D, F) float64; the largest entry of each row is positive, so W is unique.

    Raises
    ------
    ValueError : D is larger than F, or ``blocks`` and ``codes`` have different numbers of rows.
    DatasetError : features do not differ within labels.
    """
    _, codes = np.unique(codes, return_inverse=True)
    n_labels = int(codes.max(initial=0)) + 1
    blocks = iter(blocks)
    first = next(blocks, np.empty((0, 0)))
    n_features = first.shape[1]
    if embedding_dim > n_features:
        raise ValueError(f"{embedding_dim=}, but there are {n_features} features")
    blocks, features = chain([first], blocks), None
    n_kept = min(embedding_dim, max(len(codes) // 2, 1))
    if n_kept < len(codes) < n_features:
        features = np.concatenate(list(blocks))
        coordinates, coefficients = _span(features)
        blocks = [coordinates]
    weight = np.zeros((embedding_dim, n_features))
    kept = _Sums.of(blocks, codes, n_labels).layer(n_kept, n_features)
    # For copies, there are fewer rows.
    weight[: len(kept)] = kept if features is None else kept @ coefficients.T @ features
    largest = np.take_along_axis(weight, np.abs(weight).argmax(axis=1)[:, None], axis=1)
    return weight * np.sign(largest)


def cross_fitted_whitenings(
    features: Features, codes: Codes, left_out: Sequence[NDArray[np.int64]], weight: Features
) -> Iterator[NDArray[np.float32]]:
    """Yield a layer (D, F) for each fold; the layer is fitted to all images outside the fold.

    Two fits that are equally good can differ by a rotation. Each layer W_k is therefore aligned
    with ``weight`` W by a rotation R, which changes no cosines. R minimises Σ ‖R W_k φ − W φ‖² over
    the images that both layers were fitted to (orthogonal Procrustes, Schönemann 1966).

    Parameters
    ----------
    features, codes : (N, F) features and (N,) label codes that ``weight`` was fitted to.
    left_out : for each fold, the indices of the images to leave out.
    weight : (D, F), the layer fitted to all images.
    """
    n_features = features.shape[1]
    n_kept = int(np.any(weight != 0, axis=1).sum())
    _, codes = np.unique(codes, return_inverse=True)
    n_labels = int(codes.max(initial=0)) + 1
    rows, whole, basis = np.asarray(features, np.float64), np.asarray(weight, np.float64), None
    if n_kept < len(features) < n_features:
        whole = whole @ rows.T
        rows, coefficients = _span(rows)
        whole = whole @ coefficients
        # float32 is as precise as the layers.
        basis = coefficients.T.astype(np.float32) @ features.astype(np.float32, copy=False)
    sums = _Sums.of([rows], codes, n_labels)
    of_whole = whole @ sums.products
    for fold in left_out:
        rest = sums - _Sums.of([rows[fold]], codes[fold], n_labels)
        layer = rest.layer(n_kept, n_features, np.float32)  # features are float32, too
        of_rest = of_whole - (whole @ rows[fold].T) @ rows[fold]
        turned = (_nearest_rotation(of_rest @ layer.T) @ layer).astype(np.float32)
        yield turned if basis is None else turned @ basis


def _nearest_rotation(products: Floats) -> Floats:
    """Return U Vᵀ, where U S Vᵀ = ``products`` (D, D).

    Directions that contain only rounding errors are left out. U is computed from the eigenvectors
    of ``products`` times its transpose. This takes half the time of a singular value decomposition.
    """
    values, left = np.linalg.eigh(products @ products.T)
    kept = values > _ROUNDING**2 * values[-1]
    rotation: Floats = (left[:, kept] / np.sqrt(values[kept])) @ (left[:, kept].T @ products)
    return rotation


def _span(features: Features) -> tuple[Floats, Floats]:
    """Return the coordinates (N, r) of N ≤ F rows in an orthonormal basis of their span.

    Also return the coefficients (N, r) of the basis: ``features.T @ coefficients`` is the basis.
    """
    rows = np.asarray(features, dtype=np.float64)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    kept = values > _ROUNDING * values[-1]
    lengths = np.sqrt(values[kept])
    return vectors[:, kept] * lengths, vectors[:, kept] / lengths
