"""Fitting the outlier detector."""

from __future__ import annotations

from functools import cached_property
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

Floats = NDArray[np.float64]


def fit_detector(embeddings: Embeddings, label_codes: NDArray[np.integer[Any]]) -> OutlierDetector:
    """Fit the outlier detector on gallery images; see `DetectorFits`."""
    return DetectorFits(embeddings, label_codes).of(np.arange(len(embeddings)))


class DetectorFits:
    """Fits outlier detectors to parts of a gallery; the parts share the products of features.

    Parameters
    ----------
    embeddings : N embeddings of gallery images in random order.
    label_codes : (N,) label codes. If most labels have a single image, all images count as one
        label.
    """

    def __init__(self, embeddings: Embeddings, label_codes: NDArray[np.integer[Any]]) -> None:
        self._embeddings, self._codes = embeddings, label_codes
        self._n_averaged = averaging(embeddings.features.shape[1])
        self._rows = unit_rows(averaged_features(embeddings.features, self._n_averaged))

    def of(self, kept: NDArray[np.int64]) -> OutlierDetector:
        """Return the detector that is fitted to the images ``kept`` (n,).

        Raises
        ------
        CalibrationError : there are fewer than `MIN_REFERENCES` images.
        """
        if len(kept) < MIN_REFERENCES:
            raise CalibrationError(
                f"The gallery has {len(kept)} images; outlier detection needs at least "
                f"{MIN_REFERENCES}. Index more images."
            )
        rows, label_codes = self._rows[kept], self._codes[kept]
        n_features = rows.shape[1]
        rank = min(RANK, len(rows) // 2, n_features, MOST_BASIS_ENTRIES // n_features)
        centre = rows.mean(axis=0)
        centred = rows - centre
        basis = self._principal_directions(kept, centred, rank)
        coordinates = centred @ basis
        _, codes, counts = np.unique(label_codes, return_inverse=True, return_counts=True)
        n_labels = len(counts)
        if len(rows) - len(counts) < rank:  # too few images to estimate the spread within labels
            codes, counts = np.zeros_like(codes), np.array([len(rows)])
        means = np.zeros((len(counts), rank))
        np.add.at(means, codes, coordinates)
        means /= counts[:, None]
        n_references = min(max(REFERENCES_PER_LABEL * n_labels, LEAST_REFERENCES), MOST_REFERENCES)
        references = _references(label_codes, n_references)
        residual = (centred**2).sum() - (coordinates.astype(np.float64) ** 2).sum()
        n_outside = max(len(rows) * (n_features - rank), 1)
        return OutlierDetector(
            self._n_averaged,
            centre,
            basis,
            coordinates[references],
            means.astype(np.float32),
            _whitening(coordinates - means[codes], len(rows) - len(counts)),
            float(max(residual / n_outside, np.finfo(np.float32).eps)),
            unit_direction(self._embeddings.mean[kept[references]]),
        )

    def _principal_directions(
        self, kept: NDArray[np.int64], centred: NDArray[np.float32], rank: int
    ) -> NDArray[np.float32]:
        """Return the leading principal directions (F, rank) of the rows ``centred`` (n, F).

        They are computed from the smaller of two matrices: the products of all pairs of images, or
        the products of all pairs of features.
        """
        from scipy.linalg import eigh  # noqa: PLC0415 - slow

        if self._are_of_images:
            products = self._products[np.ix_(kept, kept)]
            means = products.mean(axis=0)
            products += means.mean() - means - means[:, None]
        else:
            left_out = self._rows[np.delete(np.arange(len(self._rows)), kept)]
            mean = self._rows[kept].mean(axis=0, dtype=np.float64)
            products = self._products - _squares(left_out) - len(kept) * np.outer(mean, mean)
        size = len(products)
        # Features are float32, too, and eigenvectors of float64 would take twice the time.
        _, vectors = eigh(
            products.astype(np.float32),
            subset_by_index=[size - rank, size - 1],
            check_finite=False,
            overwrite_a=True,
        )
        leading = vectors[:, ::-1]
        # The decomposition also gives directions to copies of images, which span too few.
        basis = np.linalg.qr(centred.T @ leading if self._are_of_images else leading)[0]
        return np.ascontiguousarray(basis)

    @property
    def _are_of_images(self) -> bool:
        n_images, n_features = self._rows.shape
        return bool(n_images <= n_features)

    @cached_property
    def _products(self) -> Floats:
        """(N, N) products of the images, or (F, F) products of the features."""
        return _squares(self._rows.T if self._are_of_images else self._rows)


def _squares(rows: NDArray[np.float32]) -> Floats:
    """Return ``rows``ᵀ ``rows``; centring loses digits, so the result is float64."""
    precise = rows.astype(np.float64)
    products: Floats = precise.T @ precise
    return products


def _references(label_codes: NDArray[np.integer[Any]], n_references: int) -> NDArray[np.int64]:
    """Choose reference images: first `LEAST_OF_LABEL` images of each label, then further images."""
    order = np.argsort(label_codes, kind="stable")
    _, starts, counts = np.unique(label_codes[order], return_index=True, return_counts=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, counts)
    chosen = np.argsort(place >= LEAST_OF_LABEL, kind="stable")[:n_references]
    return np.sort(chosen)


def _whitening(deviations: Floats, degrees_of_freedom: int) -> NDArray[np.float32]:
    """Return L, where L Lᵀ is the inverse of the shrunk covariance (r, r) of ``deviations`` (N, r).

    The label means use C degrees of freedom, so N − C are left.
    """
    covariance = _shrunk_covariance(deviations)
    covariance *= len(deviations) / max(degrees_of_freedom, 1)
    floor = np.finfo(np.float32).eps * np.trace(covariance) / len(covariance)
    covariance += (floor + np.finfo(np.float64).tiny) * np.eye(len(covariance))
    lower = np.linalg.cholesky(np.linalg.inv(covariance))
    return np.ascontiguousarray(lower, dtype=np.float32)


def _shrunk_covariance(deviations: Floats) -> Floats:
    """Return the covariance (r, r) of ``deviations`` (N, r), shrunk towards a multiple of 1.

    The weight of the shrinkage minimises the expected squared error (Ledoit & Wolf 2004).
    """
    n, size = deviations.shape
    covariance = deviations.T @ deviations / n
    squares = deviations**2
    mean = np.trace(covariance) / size
    of_products = float((covariance**2).sum())
    distance = of_products - size * mean**2
    noise = (float((squares.T @ squares).sum()) / n - of_products) / n
    share = min(noise / distance, 1.0) if noise > 0 and distance > 0 else 0.0
    shrunk: Floats = (1 - share) * covariance + share * mean * np.eye(size)
    return shrunk
