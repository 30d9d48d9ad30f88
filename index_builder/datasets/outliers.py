"""Far-OOD images, of another type than the gallery's images, for calibration and evaluation."""

from __future__ import annotations

import numpy as np

from index_builder.configuration.build import OutlierKind
from index_builder.datasets.digits import digits
from index_builder.datasets.idx import idx_dataset
from index_builder.datasets.images import LabelledImages, Pixels, from_arrays

N_CROPS = 1000
"""Number of crops of each photograph. More crops would add no information."""


def outliers(kind: OutlierKind, part: int, generator: np.random.Generator) -> LabelledImages | None:
    """Return the outliers of one kind; None for ``none``.

    Parameters
    ----------
    kind : ``photographs`` are grey crops of scikit-learn's two photographs, upright or rotated;
        ``digits`` are scikit-learn's digits; ``mnist`` is the MNIST test set.
    part : 0 for calibration, 1 for evaluation; the two parts share no source image.
    """
    if kind == "none":
        return None
    if kind == "photographs":
        from sklearn.datasets import load_sample_images  # noqa: PLC0415 - slow

        photograph = load_sample_images().images[part]
        return from_arrays(
            f"photograph-{part}", _crops(photograph, generator), ["photograph"] * N_CROPS
        )
    source = digits() if kind == "digits" else idx_dataset("MNIST", "t10k")
    order = generator.permutation(len(source))
    return source.at(np.sort(order[part::2]))


def _crops(photograph: Pixels, generator: np.random.Generator) -> Pixels:
    """Crop random squares of 48 to 192 pixels, and return the crops in grey, resized to 48 × 48."""
    side = 48
    grey = photograph.mean(axis=-1)
    crops = np.empty((N_CROPS, side, side), dtype=np.uint8)
    for row in range(N_CROPS):
        factor = int(generator.integers(1, 5))
        top = generator.integers(0, grey.shape[0] - side * factor + 1)
        left = generator.integers(0, grey.shape[1] - side * factor + 1)
        window = grey[top : top + side * factor, left : left + side * factor]
        crops[row] = window.reshape(side, factor, side, factor).mean(axis=(1, 3)).round()
    return crops
