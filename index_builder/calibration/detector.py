"""Fitting the outlier detector."""

from __future__ import annotations

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


def fit_detector(embeddings: Embeddings, label_codes: NDArray[np.integer[Any]]) -> OutlierDetector:
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
    if len(embeddings) < MIN_REFERENCES:
        raise CalibrationError(
            f"The gallery has {len(embeddings)} images; outlier detection needs at least "
            f"{MIN_REFERENCES}. Index more images."
        )
    n_averaged = averaging(embeddings.features.shape[1])
    features = averaged_features(embeddings.features, n_averaged)
    rows = unit_rows(features)
    n_features = rows.shape[1]
    rank = min(RANK, len(rows) // 2, n_features, MOST_BASIS_ENTRIES // n_features)
    centre = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    basis = _principal_directions(rows - centre, rank)
    coordinates = (rows - centre) @ basis
    _, codes, counts = np.unique(label_codes, return_inverse=True, return_counts=True)
    n_labels = len(counts)
    if len(rows) - len(counts) < rank:  # too few images to estimate the spread within labels
        codes, counts = np.zeros_like(codes), np.array([len(rows)])
    means = np.zeros((len(counts), rank))
    np.add.at(means, codes, coordinates)
    means /= counts[:, None]
    n_references = min(max(REFERENCES_PER_LABEL * n_labels, LEAST_REFERENCES), MOST_REFERENCES)
    references = _references(label_codes, n_references)
    residual = ((rows - centre) ** 2).sum() - (coordinates.astype(np.float64) ** 2).sum()
    n_outside = max(len(rows) * (n_features - rank), 1)
    return OutlierDetector(
        n_averaged,
        centre,
        basis,
        coordinates[references],
        means.astype(np.float32),
        _whitening(coordinates - means[codes], len(rows) - len(counts)),
        float(max(residual / n_outside, np.finfo(np.float32).eps)),
        unit_direction(embeddings.mean[references]),
    )


def _references(label_codes: NDArray[np.integer[Any]], n_references: int) -> NDArray[np.int64]:
    """Choose reference images: first `LEAST_OF_LABEL` images of each label, then further images."""
    order = np.argsort(label_codes, kind="stable")
    _, starts, counts = np.unique(label_codes[order], return_index=True, return_counts=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, counts)
    chosen = np.argsort(place >= LEAST_OF_LABEL, kind="stable")[:n_references]
    return np.sort(chosen)


def _principal_directions(deviations: Rows, rank: int) -> Rows:
    """Return the ``rank`` leading principal directions (F, rank) of ``deviations`` (N, F).

    They come from the eigenvectors of the smaller one of two matrices of products: of the features
    (F, F), or of the images (N, N).
    """
    from scipy.linalg import eigh  # noqa: PLC0415 - slow

    few = len(deviations) < deviations.shape[1]
    products = deviations @ deviations.T if few else deviations.T @ deviations
    last = len(products) - 1
    vectors = eigh(products, subset_by_index=[last + 1 - rank, last], check_finite=False)[1]
    # A QR decomposition returns orthonormal directions even if some images are copies.
    directions: Rows = np.linalg.qr(deviations.T @ vectors if few else vectors)[0]
    return np.ascontiguousarray(directions[:, ::-1])


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
