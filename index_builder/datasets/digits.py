"""Scikit-learn's handwritten digits: 1,797 real 8 × 8 images that come with the library."""

from __future__ import annotations

import numpy as np

from index_builder.datasets.images import LabelledImages, from_arrays


def digits() -> LabelledImages:
    """All digits (Alpaydin & Kaynak 1998, the UCI test set), bright ink on a black ground."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - no other data set needs it

    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)  # stored as counts 0..16
    return from_arrays("digit", images, [str(label) for label in data.target])
