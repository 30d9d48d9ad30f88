"""Measures the quality of queries, and fits the head that measures image degradation.

The training data of the head are gallery images and degraded copies of these images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import DEGRADATIONS, degraded
from index_builder.datasets.images import Pixels
from index_builder.progress import track
from index_builder.vectors.encoder import embed_with_features
from model_store.decision.picture import DisplacementModel, log_features
from model_store.encoder.contract import Encoder
from model_store.images.quality import ordinary_limits, quality_measures

N_DEGRADED, LEAST_DEGRADED = 160, 40
"""Maximum and minimum number of gallery images in a fit. The fit also uses one degraded copy of
each image. More images are slightly better, but each image is encoded twice. The AUROC of degraded
against clean photographs of Caltech-101 is 0.890 after a fit to 96 images, 0.894 after 128, 0.898
after 160 and 0.906 after 300 (190 new photographs of the gallery's 38 labels, means of 12 draws of
the images). For 200 photographs of other labels, it is 0.870, 0.875, 0.877 and 0.886."""

RIDGE = 0.5
"""Ridge penalty divided by the number of features."""

N_FOLDS = 8
"""Number of cross-fitted heads. Each head is fitted to seven eighths of the images, and is applied
to the other eighth."""

LEAST_SCALE = 1e-3
"""Constant that is added to the standard deviation of each log feature, to avoid a division by
zero."""

Floats = NDArray[np.floating]


def fit_picture_state(
    encoder: Encoder,
    images: LabelledImages,
    seed: int,
    kinds: Sequence[str] = DEGRADATIONS,
) -> DisplacementModel | None:
    """Fit the head; None if the encoder takes no images, or if there are too few images.

    Parameters
    ----------
    images : gallery images in random order.
    seed : seed of the degradations.
    kinds : keys of `DEGRADE` that the head learns.
    """
    n = min(N_DEGRADED, len(images))
    if not encoder.metadata.takes_images or n < LEAST_DEGRADED:
        return None
    some = images.at(range(n))
    clean = embed_with_features(encoder, some, "images to degrade")
    moved = embed_with_features(encoder, degraded(some, seed, kinds), "degraded images")
    cosines = (moved.directions * clean.directions).sum(axis=1)
    # A fit of the log angle would give too much weight to tiny displacements.
    angles = np.arccos(np.clip(cosines.astype(np.float64), -1, 1))
    of_clean, of_moved = clean.features, moved.features
    levels = []
    for fold in range(N_FOLDS):
        kept = np.arange(n) % N_FOLDS != fold
        head = _fitted(of_clean[kept], of_moved[kept], angles[kept])
        levels.append(head.displacement(of_clean[~kept]))
    head = _fitted(of_clean, of_moved, angles)
    return DisplacementModel(
        head.centre, head.scale, head.weights, head.intercept, np.sort(np.concatenate(levels))
    )


def _fitted(clean: Floats, moved: Floats, angles: NDArray[np.float64]) -> DisplacementModel:
    """Fit a ridge regression of ``angles`` (n,) to features (n, F); clean images have angle 0."""
    rows = log_features(np.concatenate([moved, clean]).astype(np.float64))
    target = np.r_[angles, np.zeros(len(clean))]
    centre, scale = rows.mean(axis=0), rows.std(axis=0) + LEAST_SCALE
    rows = (rows - centre) / scale
    penalty = RIDGE * rows.shape[1] * np.eye(len(rows))
    weights = rows.T @ np.linalg.solve(rows @ rows.T + penalty, target - target.mean())
    return DisplacementModel(
        centre.astype(np.float32),
        scale.astype(np.float32),
        weights.astype(np.float32),
        float(target.mean()),
        np.empty(0),
    )


N_MEASURED = 250
"""Minimum number of queries whose quality is measured. If there are fewer queries than this number,
all queries are measured. Queries that are not yet measured are decoded again."""


class MeasuredPictures:
    """Measures the quality of queries when the queries are decoded for the encoder.

    Parameters
    ----------
    smallest_side : minimum side, in pixels, of an image decoded at reduced size. If a side of a
        decoded image is shorter than this minimum, the image was decoded at full size. Such an
        image is measured immediately. All other images have to be decoded again for the
        measurement.
    """

    def __init__(self, smallest_side: int | None) -> None:
        self._smallest_side = smallest_side
        self._measures: dict[int, NDArray[np.float64]] = {}

    def look_at(self, position: int, pixels: Pixels) -> None:
        """Measure a decoded query; do nothing for a vector."""
        if pixels.ndim < 3:
            return
        if self._smallest_side is None or min(pixels.shape[:2]) < self._smallest_side:
            self._measures[position] = quality_measures(pixels)

    def limits(self, queries: LabelledImages) -> dict[str, float]:
        """Return the quality limits of ordinary queries, see `quality_hints`; empty for vectors."""
        if not len(queries) or queries.pixels(0).ndim < 3:
            return {}
        return ordinary_limits(self._of(queries))

    def _of(self, queries: LabelledImages) -> NDArray[np.float64]:
        n_missing = max(min(N_MEASURED, len(queries)) - len(self._measures), 0)
        unknown = [row for row in range(len(queries)) if row not in self._measures][:n_missing]
        for row in track(unknown, "quality of the queries", len(unknown)):
            self._measures[row] = quality_measures(queries.pixels(row))
        return np.stack([self._measures[row] for row in sorted(self._measures)])
