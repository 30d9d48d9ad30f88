"""Scikit-learn's handwritten digits: 1,797 real 8 × 8 images that come with the library."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from index_builder.datasets.images import LabelledImages, from_arrays
from model_store.errors import DatasetError

SIDE = 8
"""Width and height of a digit in pixels."""


@cache
def digits() -> LabelledImages:
    """All digits (Alpaydin & Kaynak 1998, the UCI test set), bright ink on a black ground."""
    library = find_spec("sklearn")  # the library itself is not imported, because it is slow
    if library is None or library.origin is None:
        raise DatasetError("The digits come with scikit-learn, which is not installed.")
    table = Path(library.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(table, delimiter=",", dtype=np.int64)  # 64 counts 0..16, and the label
    images = np.round(rows[:, :-1].reshape(-1, SIDE, SIDE) * (255 / 16)).astype(np.uint8)
    return from_arrays("digit", images, [str(label) for label in rows[:, -1].tolist()])
