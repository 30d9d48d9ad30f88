"""Scikit-learn's handwritten digits: 1,797 real 8 × 8 images that come with the library."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from index_builder.datasets.images import LabelledImages, from_arrays


def digits() -> LabelledImages:
    """All digits (Alpaydin & Kaynak 1998, the UCI test set), bright ink on a black ground.

    The table is read without `sklearn.datasets.load_digits`, because most builds need nothing else
    of scikit-learn, and its import takes two seconds of CPU time.
    """
    library = find_spec("sklearn")
    if library is None or library.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed", name="sklearn")
    with gzip.open(Path(library.origin).with_name("datasets") / "data" / "digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    inks = table[:, :-1].reshape(-1, 8, 8)
    images = np.round(inks * (255 / 16)).astype(np.uint8)  # stored as counts 0..16
    return from_arrays("digit", images, [str(label) for label in table[:, -1]])
