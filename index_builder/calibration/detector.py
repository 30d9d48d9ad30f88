"""Fitting the outlier detector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision import OutlierDetector
from model_store.decision.outliers import (
    averaged_features,
    averaging,
    unit_rows,
)
from model_store.encoder.contract import Embeddings
from model_store.errors import CalibrationError
from model_store.sphere import unit_direction

RANK = 64
"""Number of principal directions of the outlier detector. With 128 directions, corrupted images are
detected slightly better (AUROC +0.004). Other image types are not detected better, and each query
takes more time."""

MOST_BASIS_ENTRIES = 82_000
"""Maximum number of entries in the basis of principal directions. The number is limited because
every query reads the whole basis. With the 1,280 features of a MobileNet, 64 directions are
possible."""

MIN_REFERENCES = 20
"""Minimum number of gallery images to estimate a subspace."""

REFERENCES_PER_LABEL, LEAST_REFERENCES, MOST_REFERENCES = 50, 500, 2000
"""Three numbers: mean number of reference images per label; minimum total number of reference
images; maximum total number. Every query is compared with all reference images. On the ten labels
of Fashion-MNIST, a detector with four times as many reference images was not better (AUROC −0.007
to 0.000, one seed)."""

LEAST_OF_LABEL = 5
"""Minimum number of reference images of a label. If the label has fewer images, all are used.
If the detector had no reference image of a small or new label, a query of this label would look
like an outlier."""

Rows = NDArray[np.float32]
Codes = NDArray[np.integer[Any]]
Indices = NDArray[np.int64]


def fit_detector(embeddings: Embeddings, label_codes: Codes) -> OutlierDetector:
    """Fit the outlier detector on gallery images.

    Parameters
    ----------
    embeddings : N embeddings of gallery images in random order.
    label_codes : (N,) label codes. If most labels have a single image, all images count as one
        label.

    Raises
    ------
    CalibrationError : there are fewer than `MIN_REFERENCES` images.
    """
    return next(fit_detectors(embeddings, label_codes, [np.arange(len(embeddings))]))


def fit_detectors(
    embeddings: Embeddings, label_codes: Codes, subsets: Iterable[Indices]
) -> Iterator[OutlierDetector]:
    """Fit an outlier detector on each subset of the gallery images.

    The result equals `fit_detector` for each subset. The products of the images are computed once
    for all subsets: 20 fits to most of 570 images take 0.6 of the time of 20 separate fits.

    Parameters
    ----------
    embeddings, label_codes : see `fit_detector`.
    subsets : indices of the images in each subset, in ascending order.

    Raises
    ------
    CalibrationError : a subset has fewer than `MIN_REFERENCES` images.
    """
    n_averaged = averaging(embeddings.features.shape[1])
    images = _Images.of(unit_rows(averaged_features(embeddings.features, n_averaged)))
    n_features = images.deviations.shape[1]
    for subset in subsets:
        if len(subset) < MIN_REFERENCES:
            raise CalibrationError(
                f"The gallery has {len(subset)} images; outlier detection needs at least "
                f"{MIN_REFERENCES}. Index more images."
            )
        rank = min(RANK, len(subset) // 2, n_features, MOST_BASIS_ENTRIES // n_features)
        centre, basis, coordinates, squares = images.projected(subset, rank)
        of_subset = label_codes[subset]
        _, codes, counts = np.unique(of_subset, return_inverse=True, return_counts=True)
        n_labels = len(counts)
        if len(subset) - n_labels < rank:  # too few images to estimate the spread within labels
            codes, counts = np.zeros_like(codes), np.array([len(subset)])
        order, starts = np.argsort(codes, kind="stable"), np.cumsum(counts) - counts
        means = np.add.reduceat(coordinates[order], starts, dtype=np.float64) / counts[:, None]
        n_references = min(max(REFERENCES_PER_LABEL * n_labels, LEAST_REFERENCES), MOST_REFERENCES)
        references = _references(of_subset, n_references)
        residual = squares - (coordinates.astype(np.float64) ** 2).sum()
        n_outside = max(len(subset) * (n_features - rank), 1)
        yield OutlierDetector(
            n_averaged,
            centre,
            basis,
            coordinates[references],
            means.astype(np.float32),
            _whitening(coordinates - means[codes], len(subset) - len(counts)),
            float(max(residual / n_outside, np.finfo(np.float32).eps)),
            unit_direction(embeddings.mean[subset[references]]),
        )


def _references(label_codes: Codes, n_references: int) -> Indices:
    """Choose reference images: first `LEAST_OF_LABEL` images of each label, then further images."""
    order = np.argsort(label_codes, kind="stable")
    _, starts, counts = np.unique(label_codes[order], return_index=True, return_counts=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, counts)
    chosen = np.argsort(place >= LEAST_OF_LABEL, kind="stable")[:n_references]
    return np.sort(chosen)


@dataclass(frozen=True, slots=True)
class _Images:
    """Unit features of N images, and their products, for fits on subsets of the images.

    Attributes
    ----------
    centre : (F,) mean of the unit features.
    deviations : (N, F) differences from ``centre``.
    products : the smaller one of two matrices of products of ``deviations``: of the images (N, N),
        or of the features (F, F).
    """

    centre: Rows
    deviations: Rows
    products: Rows

    @classmethod
    def of(cls, rows: Rows) -> _Images:
        centre = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        deviations = rows - centre
        few = len(rows) < rows.shape[1]
        products = deviations @ deviations.T if few else deviations.T @ deviations
        return cls(centre, deviations, products)

    def projected(self, subset: Indices, rank: int) -> tuple[Rows, Rows, Rows, float]:
        """Project a subset of n images on its ``rank`` leading principal directions.

        Returns
        -------
        The centre (F,) of the subset, the principal directions (F, rank), the coordinates (n, rank)
        of the images, and the sum of squared distances from the centre.
        """
        from scipy.linalg import eigh  # noqa: PLC0415 - slow

        few = len(self.products) < self.deviations.shape[1]
        rows = self.deviations if len(subset) == len(self.deviations) else self.deviations[subset]
        offset = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        if few:
            products = self.products[np.ix_(subset, subset)]
            means = products.mean(axis=0, dtype=np.float64).astype(np.float32)
            products -= means
            products -= (means - means.mean())[:, None]
        else:
            left_out = np.delete(self.deviations, subset, axis=0)
            products = (
                self.products - left_out.T @ left_out - len(subset) * np.outer(offset, offset)
            )
        squares = float(np.trace(products, dtype=np.float64))
        last = len(products) - 1
        of_leading = [last + 1 - rank, last]
        vectors = eigh(products, subset_by_index=of_leading, overwrite_a=True, check_finite=False)[
            1
        ]
        # A QR decomposition returns orthonormal directions even if some images are copies.
        directions: Rows = np.linalg.qr(rows.T @ vectors if few else vectors)[0]
        basis = np.ascontiguousarray(directions[:, ::-1])
        return self.centre + offset, basis, rows @ basis - offset @ basis, squares


def _whitening(deviations: NDArray[np.floating[Any]], degrees_of_freedom: int) -> Rows:
    """Return L, where L Lᵀ is the inverse of the shrunk covariance (r, r) of ``deviations`` (N, r).

    The covariance is shrunk towards a multiple of the identity (Ledoit & Wolf 2004). The
    label means use C degrees of freedom, so N − C are left.
    """
    rows = deviations.astype(np.float64)
    n, size = rows.shape
    covariance = rows.T @ rows / n
    scale = np.trace(covariance) / size
    from_identity = (covariance**2).sum() - size * scale**2
    error = ((rows**2).sum(axis=1) ** 2).sum() / n**2 - (covariance**2).sum() / n
    shrinkage = float(np.clip(error / from_identity, 0, 1)) if from_identity > 0 else 0.0
    covariance *= 1 - shrinkage
    covariance[np.diag_indices(size)] += shrinkage * scale
    covariance *= n / max(degrees_of_freedom, 1)
    floor = np.finfo(np.float32).eps * np.trace(covariance) / size
    covariance[np.diag_indices(size)] += floor + np.finfo(np.float64).tiny
    lower = np.linalg.cholesky(np.linalg.inv(covariance))
    return np.ascontiguousarray(lower, dtype=np.float32)
