"""Measures the image quality of queries."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Pixels
from index_builder.progress import track
from model_store.images.quality import ordinary_limits, quality_measures

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
